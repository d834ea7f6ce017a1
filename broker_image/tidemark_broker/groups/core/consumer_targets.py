"""Where the members of a consumer group are to be: when that is decided anew, and how it comes into
force.

Targets are made for all members at once (:mod:`.assignors`), for the group's epoch as it is then,
not more often than ``group.consumer.assignment.interval.ms`` says (KIP-1263). Those of a large
group are made elsewhere while its members go on, and come into force in parts.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.groups.core.assignors import ASSIGNORS, Assignment, Spec
from tidemark_broker.groups.core.consumer_effects import (
    assigned_entry,
    epoch_entry,
)
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.groups.core.consumer_journal import ConsumerJournal
from tidemark_broker.groups.core.consumer_values import Topic
from tidemark_broker.groups.core.group_configs import GroupConfigs
from tidemark_broker.groups.core.journal import Room
from tidemark_broker.groups.core.settings import GroupSettings, Now
from tidemark_broker.groups.core.steps import Steps, elsewhere
from tidemark_broker.groups.core.values import shown

logger = logging.getLogger(__name__)

#: Members whose targets come into force at a time: a slice of the loop's time.
TARGETS_AT_ONCE = 250
#: The size of a group whose targets a heartbeat waits for; nobody waits for those of a larger one.
ASSIGNED_AT_ONCE_MAX = 4000
_LATER_S = 0.05


@dataclass(frozen=True, slots=True)
class AssignmentDeadline:
    """Targets are to be made anew."""

    group_id: str


class Offload(NamedTuple):
    """Targets to be made elsewhere: ``compute`` looks at nothing that changes."""

    group: ConsumerGroup
    epoch: int
    assignor: str
    spec: Spec

    def compute(self) -> dict[str, Assignment]:
        """All of them, by member."""
        return ASSIGNORS[self.assignor](self.spec) if self.spec.members else {}


class ConsumerTargets:
    """Of all groups of KIP-848's protocol of one partition. ``topic``: by its name, None where
    there is none; ``offload`` takes what is to be made elsewhere. Pure."""

    def __init__(
        self,
        groups: dict[str, ConsumerGroup],
        journal: ConsumerJournal,
        deadlines: "Deadlines[object]",
        settings: GroupSettings,
        room: Room,
        *,
        topic: Callable[[str], Topic | None],
        configs: GroupConfigs,
        offload: Callable[[Offload], None],
    ) -> None:
        self._groups = groups
        self._journal = journal
        self._deadlines = deadlines
        self._settings = settings
        self._room = room
        self._topic = topic
        self._configs = configs
        self._offload = offload

    def make_if_due(self, group: ConsumerGroup, now: Now) -> Steps[None]:
        """Make targets for the group's epoch, unless that was done a moment ago."""
        if group.epoch <= group.assignment_epoch or group.is_being_assigned or group.is_empty:
            return
        if not self._is_due(group, now):
            self.make_later(group, now)
            return
        group.is_being_assigned, is_offloaded = True, False
        try:
            spec = yield from elsewhere(group.spec_size, partial(group.spec, self._topic))
            is_offloaded = spec.size > ASSIGNED_AT_ONCE_MAX
            if is_offloaded and not group.assignment_epoch:
                # The first member is told an epoch at once, and gets its partitions later.
                first = assigned_entry(group.group_id, group.epoch, 0)
                following = epoch_entry(group.group_id, group.epoch + 1, group.metadata_hash)
                self._journal.record_now(group, [first, following])
            assignor = group.preferred_assignor(self._settings.consumer_assignors[0])
            made = Offload(group, group.epoch, assignor, spec)
            if is_offloaded:
                self._offload(made)
                return
            targets = yield from elsewhere(spec.size, made.compute)
            yield from self.bring_into_force(made, targets, now)
        finally:
            if not is_offloaded:
                self.gave_up(group, now)

    def bring_into_force(
        self, made: Offload, targets: Mapping[str, Assignment], now: Now
    ) -> Steps[None]:
        """Part by part; in between others may have their turn, also members of the group."""
        group = made.group
        if self._groups.get(group.group_id) is not group:
            return
        now_there = {each: group.target_of(each) for each in group.members}
        targets = _with_successors(made, targets, group)
        changed = yield from elsewhere(
            len(now_there) + made.spec.size, partial(_changed, now_there, targets)
        )
        for start in range(0, len(changed), TARGETS_AT_ONCE):
            part = changed[start : start + TARGETS_AT_ONCE]
            yield from self._journal.record_targets(group, part)
        if self._groups.get(group.group_id) is not group:
            return
        self._journal.record_now(group, [assigned_entry(group.group_id, made.epoch, now.ms)])
        self._room.weigh(group)
        logger.info(
            "group %s: targets of epoch %d for %d members, made by %s",
            shown(group.group_id),
            made.epoch,
            len(targets),
            made.assignor,
        )

    def gave_up(self, group: ConsumerGroup, now: Now) -> None:
        """They are not being made any more; what is left to be done is done later."""
        group.is_being_assigned = False
        if self._groups.get(group.group_id) is group:
            self._room.weigh(group)
            self.make_later(group, now)

    def make_later(self, group: ConsumerGroup, now: Now) -> None:
        """As soon as they are due."""
        if group.epoch <= group.assignment_epoch or group.is_empty:
            return
        wait_s = _LATER_S
        if not self._is_due(group, now):
            interval_ms = self._configs.assignment_interval_ms(group.group_id)
            due_ms = group.assignment_timestamp_ms + interval_ms
            wait_s = max(wait_s, (due_ms - now.ms) / 1000)
        self._deadlines.schedule(AssignmentDeadline(group.group_id), now.s + wait_s)

    def _is_due(self, group: ConsumerGroup, now: Now) -> bool:
        """The first targets are due at once; clocks of brokers may differ."""
        since_ms = now.ms - group.assignment_timestamp_ms
        return not 0 <= since_ms < self._configs.assignment_interval_ms(group.group_id)


def _with_successors(
    made: Offload, targets: Mapping[str, Assignment], group: ConsumerGroup
) -> Mapping[str, Assignment]:
    """A static member that has come back under another id while targets were made has those of its
    former process."""
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
    """Whose targets are to be others, and which."""
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
