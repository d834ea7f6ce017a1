"""Target assignments of a consumer group: when they are recomputed, and how they are applied.

Targets are computed for all members at once (:mod:`.assignors`), for the group's epoch at that
time, and not more often than ``group.consumer.assignment.interval.ms`` (KIP-1263). Those of a large
group are computed outside while its members continue, and are applied in parts.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tidemark_broker.groups.core.assignors import ASSIGNORS, Assignment, Spec
from tidemark_broker.groups.core.consumer_effects import (
    assigned_entry,
    epoch_entry,
)
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.groups.core.journal import ConsumerJournal, GroupContext
from tidemark_broker.groups.core.settings import Now
from tidemark_broker.groups.core.steps import Steps, off_loop
from tidemark_broker.groups.core.values import shown

logger = logging.getLogger(__name__)

#: Members whose targets are applied at a time: one slice of the loop's time.
TARGETS_AT_ONCE = 250
#: Size of a group up to which a heartbeat waits for its targets.
ASSIGNED_AT_ONCE_MAX = 4000
_LATER_S = 0.05


@dataclass(frozen=True, slots=True)
class AssignmentDeadline:
    """Targets must be recomputed."""

    group_id: str


class Offload(NamedTuple):
    """Targets to compute outside. ``compute`` reads only immutable data."""

    group: ConsumerGroup
    epoch: int
    assignor: str
    spec: Spec

    def compute(self) -> dict[str, Assignment]:
        """Return all targets, by member."""
        return ASSIGNORS[self.assignor](self.spec) if self.spec.members else {}


class ConsumerTargets:
    """Targets of all consumer-protocol groups of one partition.

    ``topic`` returns a topic by name, or None. ``offload`` receives targets to compute outside.
    Pure.
    """

    def __init__(
        self,
        context: GroupContext,
        journal: ConsumerJournal,
        offload: Callable[[Offload], None],
    ) -> None:
        """Compute targets of the consumer groups of ``context``; see the class for ``offload``."""
        self._context = context
        self._journal = journal
        # Computed outside, because this class must not block or start threads.
        self._offload = offload

    def make_if_due(self, group: ConsumerGroup, now: Now) -> Steps[None]:
        """Compute targets for the group's epoch, unless that was done too recently.

        Small computations finish within this call. Larger ones are handed to ``offload``, and
        :meth:`bring_into_force` applies their result. After too short an interval a deadline is
        set.
        """
        if group.epoch <= group.assignment_epoch or group.is_being_assigned or group.is_empty:
            return
        if not self._is_due(group, now):
            self.make_later(group, now)
            return
        # The flag stops other heartbeats from computing the same targets while this one yields.
        group.is_being_assigned, is_offloaded = True, False
        try:
            spec = yield from off_loop(group.spec_size, partial(group.spec, self._context.topic))
            is_offloaded = spec.size > ASSIGNED_AT_ONCE_MAX
            if is_offloaded and not group.assignment_epoch:
                # The first member gets an epoch at once, and its partitions with the next one.
                first = assigned_entry(group.group_id, group.epoch, 0)
                following = epoch_entry(group.group_id, group.epoch + 1, group.metadata_hash)
                self._journal.record_now(group, [first, following])
            assignor = group.preferred_assignor(self._context.settings.consumer_assignors[0])
            made = Offload(group, group.epoch, assignor, spec)
            if is_offloaded:
                self._offload(made)
                return
            targets = yield from off_loop(spec.size, made.compute)
            # Computed within this request, so it is applied at once.
            yield from self.bring_into_force(made, targets, now)
        # An offloaded computation keeps the flag until its result is applied.
        finally:
            if not is_offloaded:
                self.gave_up(group, now)

    def bring_into_force(
        self, made: Offload, targets: Mapping[str, Assignment], now: Now
    ) -> Steps[None]:
        """Record computed targets, and then their epoch.

        Targets are recorded in parts, so that other requests, also of this group, are served in
        between. ``made``: the computation, whose result is ``targets``. Nothing happens if the
        group no longer exists.
        """
        group = made.group
        # The group may have been deleted or replaced during the computation.
        if self._context.consumer_groups.get(group.group_id) is not group:
            return
        now_there = {member: group.target_of(member) for member in group.members}
        # Members may have changed during the computation. New ones get targets in the next epoch.
        targets = _with_successors(made, targets, group)
        # Only targets that differ are recorded.
        changed = yield from off_loop(
            len(now_there) + made.spec.size, partial(_changed, now_there, targets)
        )
        for start in range(0, len(changed), TARGETS_AT_ONCE):
            part = changed[start : start + TARGETS_AT_ONCE]
            yield from self._journal.record_targets(group, part)
        if self._context.consumer_groups.get(group.group_id) is not group:
            return
        # The epoch is recorded last: until then a new coordinator would recompute the targets.
        self._journal.record_now(group, [assigned_entry(group.group_id, made.epoch, now.ms)])
        self._context.room.weigh(group)
        logger.info(
            "group %s: targets of epoch %d for %d members, made by %s",
            shown(group.group_id),
            made.epoch,
            len(targets),
            made.assignor,
        )

    def gave_up(self, group: ConsumerGroup, now: Now) -> None:
        """End a computation, and schedule the next one if it is needed."""
        group.is_being_assigned = False
        if self._context.consumer_groups.get(group.group_id) is group:
            self._context.room.weigh(group)
            self.make_later(group, now)

    def make_later(self, group: ConsumerGroup, now: Now) -> None:
        """Schedule the computation for the time at which it is due."""
        if group.epoch <= group.assignment_epoch or group.is_empty:
            return
        wait_s = _LATER_S
        if not self._is_due(group, now):
            interval_ms = self._context.configs.assignment_interval_ms(group.group_id)
            due_ms = group.assignment_timestamp_ms + interval_ms
            wait_s = max(wait_s, (due_ms - now.ms) / 1000)
        self._context.deadlines.schedule(AssignmentDeadline(group.group_id), now.s + wait_s)

    def _is_due(self, group: ConsumerGroup, now: Now) -> bool:
        """True if the interval has passed, for the first targets, or if the timestamp is in the
        future because clocks differ.
        """
        since_ms = now.ms - group.assignment_timestamp_ms
        return not 0 <= since_ms < self._context.configs.assignment_interval_ms(group.group_id)


def _with_successors(
    made: Offload, targets: Mapping[str, Assignment], group: ConsumerGroup
) -> Mapping[str, Assignment]:
    """Add targets of static members that returned under another id during the computation.

    They take over the target of their former member id.
    """
    # Static members that the computation has seen under an id that no longer exists.
    former = {
        subscriber.instance_id: member_id
        for member_id, subscriber in made.spec.members.items()
        if subscriber.instance_id is not None and member_id not in group.members
    }
    if not former:
        return targets
    back = {
        member_id: targets.get(former[instance_id], {})
        for instance_id, member_id in group.static_members.items()
        if instance_id in former
    }
    return {**targets, **back}


def _changed(
    now_there: Mapping[str, Assignment], targets: Mapping[str, Assignment]
) -> list[tuple[str, Assignment]]:
    """Return the members whose targets differ, with the new targets."""
    found: list[tuple[str, Assignment]] = []
    for member_id, before in now_there.items():
        target = {
            topic: frozenset(numbers)
            for topic, numbers in targets.get(member_id, {}).items()
            if numbers
        }
        if target != before:
            found.append((member_id, target))
    return found
