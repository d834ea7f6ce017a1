"""Reconciliation of one member from its current to its target assignment (Kafka's
CurrentAssignmentBuilder).

A member first gives up partitions that are no longer assigned to it, and stays in its epoch until
it has confirmed that. Then it gets the partitions that no other member owns, and later the others
as they are released. A partition is therefore never assigned to two members.
"""

import uuid
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.consumer_records import (
    STABLE,
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
)

_NOTHING: AbstractSet[int] = frozenset()
#: Partitions by topic, each with the epoch of its assignment.
PartitionEpochs: TypeAlias = Mapping[uuid.UUID, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPosition:
    """Current assignment of a member.

    ``previous_epoch`` is still accepted, because the answer with ``epoch`` may have been lost.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: int = STABLE
    assigned: PartitionEpochs
    revoking: PartitionEpochs

    def moved_to(
        self, epoch: int, state: int, assigned: PartitionEpochs, revoking: PartitionEpochs
    ) -> "MemberPosition":
        """Return the following position, with this one's epoch as the previous one."""
        return MemberPosition(
            epoch=epoch,
            previous_epoch=self.epoch,
            state=state,
            assigned=assigned,
            revoking=revoking,
        )

    @property
    def size(self) -> int:
        """Approximate number of topics and partitions."""
        return sum(
            len(partitions) + sum(map(len, partitions.values()))
            for partitions in (self.assigned, self.revoking)
        )

    def is_at(self, target_epoch: int) -> bool:
        """True if the member has reached the target epoch."""
        return self.state == STABLE and self.epoch == target_epoch


NOWHERE = MemberPosition(assigned={}, revoking={})


class MemberTarget(NamedTuple):
    """Target of a member.

    ``is_owned`` returns whether any member, itself included, owns a partition.
    """

    epoch: int
    partitions: Assignment
    is_owned: Callable[[uuid.UUID, int], bool]


def advance(
    position: MemberPosition,
    target: MemberTarget,
    owned: Assignment | None,
    subscribed: Callable[[uuid.UUID], bool] | None = None,
) -> MemberPosition:
    """Return the member's next position (its current assignment and epoch).

    Returns the same object if nothing changes. ``owned``: partitions that the member reports, None
    for no change. ``subscribed``: passed if its subscription has just changed; topics that it
    dropped are revoked at once.
    """
    # Until the member confirms a revocation it stays in its epoch, whatever the target is.
    if position.state == UNREVOKED_PARTITIONS:
        if not _owns_any(position.revoking, owned):
            return _towards(position, position.epoch, target, owned)
    elif position.state == UNRELEASED_PARTITIONS or position.epoch != target.epoch:
        return _towards(position, position.epoch, target, owned)
    return position if subscribed is None else _give_up(position, subscribed)


def _owns_any(revoking: PartitionEpochs, owned: Assignment | None) -> bool:
    if owned is None:
        return True
    return any(not numbers.isdisjoint(revoking.get(topic, ())) for topic, numbers in owned.items())


# Split the assignment into what remains and what must be revoked.
def _towards(
    position: MemberPosition, epoch: int, target: MemberTarget, owned: Assignment | None
) -> MemberPosition:
    """Return the position after a step towards the target: revoke first, then take free partitions.

    ``epoch``: the member's own, in which it stays until it has confirmed the revocations. A
    partition that another member still owns is not free; the member waits for it.
    """
    # Partition numbers with the epoch in which the member got them (KIP-1251).
    assigned: dict[uuid.UUID, Mapping[int, int]] = {}
    revoking: dict[uuid.UUID, Mapping[int, int]] = {}
    # First split the present assignment into what stays and what must be given up.
    for topic, epochs in position.assigned.items():
        targeted = target.partitions.get(topic, _NOTHING)
        if epochs.keys() <= targeted:
            assigned[topic] = epochs  # the same object, which makes comparisons cheap
            continue
        kept = {number: since for number, since in epochs.items() if number in targeted}
        if kept:
            assigned[topic] = kept
        revoking[topic] = {
            number: since for number, since in epochs.items() if number not in targeted
        }
    # Partitions that the member does not own any more need no confirmation.
    if revoking and _owns_any(revoking, owned):
        return _settled(position, epoch, UNREVOKED_PARTITIONS, assigned, revoking)
    # Nothing is left to revoke, so the member enters the target epoch and takes free partitions.
    waits = False
    for topic, targeted in target.partitions.items():
        owned_epochs = assigned.get(topic, {})
        missing = targeted - owned_epochs.keys()
        free = {number: target.epoch for number in missing if not target.is_owned(topic, number)}
        waits |= len(free) < len(missing)
        if free:
            assigned[topic] = {**owned_epochs, **free}
    state = UNRELEASED_PARTITIONS if waits else STABLE
    return _settled(position, target.epoch, state, assigned, {})


def _give_up(position: MemberPosition, subscribed: Callable[[uuid.UUID], bool]) -> MemberPosition:
    """Return the position that revokes partitions of topics without a subscription.

    ``subscribed``: whether the member still subscribes to a topic. Returns the same object if
    nothing is to be revoked.
    """
    unsubscribed = {
        topic: epochs for topic, epochs in position.assigned.items() if not subscribed(topic)
    }
    if not unsubscribed:
        return position
    kept = {
        topic: epochs for topic, epochs in position.assigned.items() if topic not in unsubscribed
    }
    revoking = {**position.revoking}
    for topic, epochs in unsubscribed.items():
        revoking[topic] = {**revoking.get(topic, {}), **epochs}
    return _settled(position, position.epoch, UNREVOKED_PARTITIONS, kept, revoking)


def _settled(
    position: MemberPosition,
    epoch: int,
    state: int,
    assigned: PartitionEpochs,
    revoking: PartitionEpochs,
) -> MemberPosition:
    """Return a position with these values, or the same object if nothing changes."""
    is_same = (
        epoch == position.epoch
        and state == position.state
        and assigned == position.assigned
        and revoking == position.revoking
    )
    return position if is_same else position.moved_to(epoch, state, assigned, revoking)
