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
Held: TypeAlias = Mapping[uuid.UUID, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPosition:
    """Current assignment of a member.

    ``previous_epoch`` is still accepted, because the answer with ``epoch`` may have been lost.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: int = STABLE
    assigned: Held
    revoking: Held

    def moved_to(self, epoch: int, state: int, assigned: Held, revoking: Held) -> "MemberPosition":
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
            len(held) + sum(map(len, held.values())) for held in (self.assigned, self.revoking)
        )

    def is_at(self, target_epoch: int) -> bool:
        """True if the member has reached the target epoch."""
        return self.state == STABLE and self.epoch == target_epoch


NOWHERE = MemberPosition(assigned={}, revoking={})


class MemberTarget(NamedTuple):
    """Target of a member.

    ``is_held`` tells whether any member, itself included, owns a partition.
    """

    epoch: int
    partitions: Assignment
    is_held: Callable[[uuid.UUID, int], bool]


def advance(
    position: MemberPosition,
    target: MemberTarget,
    owned: Assignment | None,
    subscribed: Callable[[uuid.UUID], bool] | None = None,
) -> MemberPosition:
    """Return the next position, or the same object if nothing changes.

    ``owned`` is what the member reports, None for no change. ``subscribed`` is passed if its
    subscription has just changed: topics that it dropped are revoked at once.
    """
    # Until the member confirms the revocation it stays as it is, whatever the target is.
    if position.state == UNREVOKED_PARTITIONS:
        if not _owns_any(position.revoking, owned):
            return _towards(position, position.epoch, target, owned)
    elif position.state == UNRELEASED_PARTITIONS or position.epoch != target.epoch:
        return _towards(position, position.epoch, target, owned)
    return position if subscribed is None else _give_up(position, subscribed)


def _owns_any(revoking: Held, owned: Assignment | None) -> bool:
    if owned is None:
        return True
    return any(not numbers.isdisjoint(revoking.get(topic, ())) for topic, numbers in owned.items())


# Split the assignment into what remains and what must be revoked.
def _towards(
    position: MemberPosition, epoch: int, target: MemberTarget, owned: Assignment | None
) -> MemberPosition:
    assigned: dict[uuid.UUID, Mapping[int, int]] = {}
    revoking: dict[uuid.UUID, Mapping[int, int]] = {}
    for topic, held in position.assigned.items():
        targeted = target.partitions.get(topic, _NOTHING)
        if held.keys() <= targeted:
            assigned[topic] = held  # the same object, which makes comparisons cheap
            continue
        kept = {number: since for number, since in held.items() if number in targeted}
        if kept:
            assigned[topic] = kept
        revoking[topic] = {
            number: since for number, since in held.items() if number not in targeted
        }
    # Partitions that the member does not own any more need no confirmation.
    if revoking and _owns_any(revoking, owned):
        return _settled(position, epoch, UNREVOKED_PARTITIONS, assigned, revoking)
    # Nothing is left to revoke, so the member enters the target epoch and takes free partitions.
    waits = False
    for topic, targeted in target.partitions.items():
        mine = assigned.get(topic, {})
        lacking = targeted - mine.keys()
        free = {number: target.epoch for number in lacking if not target.is_held(topic, number)}
        waits |= len(free) < len(lacking)
        if free:
            assigned[topic] = {**mine, **free}
    state = UNRELEASED_PARTITIONS if waits else STABLE
    return _settled(position, target.epoch, state, assigned, {})


def _give_up(position: MemberPosition, subscribed: Callable[[uuid.UUID], bool]) -> MemberPosition:
    gone = {topic: held for topic, held in position.assigned.items() if not subscribed(topic)}
    if not gone:
        return position
    kept = {topic: held for topic, held in position.assigned.items() if topic not in gone}
    revoking = {**position.revoking}
    for topic, held in gone.items():
        revoking[topic] = {**revoking.get(topic, {}), **held}
    return _settled(position, position.epoch, UNREVOKED_PARTITIONS, kept, revoking)


def _settled(
    position: MemberPosition, epoch: int, state: int, assigned: Held, revoking: Held
) -> MemberPosition:
    is_same = (
        epoch == position.epoch
        and state == position.state
        and assigned == position.assigned
        and revoking == position.revoking
    )
    return position if is_same else position.moved_to(epoch, state, assigned, revoking)
