"""Assignors of the group coordinator (KIP-848): ``uniform`` and ``range``.

``uniform`` balances the number of partitions and otherwise leaves members what they have. ``range``
gives contiguous partitions of each topic to a member, and the same numbers of topics with equal
counts. Neither considers racks. Both are pure, so they may run in a thread. Their time is linear in
subscriptions and partitions, with a logarithmic factor if members subscribe to different topics.
"""

import heapq
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

#: Partitions by topic.
Assignment: TypeAlias = Mapping[uuid.UUID, AbstractSet[int]]
_Assigned: TypeAlias = dict[str, dict[uuid.UUID, set[int]]]
#: Passes over all topics until no partition has to move. Only odd subscriptions reach the limit.
_ROUNDS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member for the assignor.

    ``topics`` contains existing topics only, and members with equal subscriptions share the set.
    ``target`` is the member's target so far.
    """

    instance_id: str | None
    topics: frozenset[uuid.UUID]
    target: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Input of an assignor: members by id, number of partitions by topic."""

    members: Mapping[str, Subscriber]
    partitions: Mapping[uuid.UUID, int]

    @property
    def size(self) -> int:
        """Approximate cost of the assignment in partitions.

        A member counts for the record it causes.
        """
        return 10 * len(self.members) + sum(self.partitions.values())


def uniform(spec: Spec) -> dict[str, Assignment]:
    """Return an assignment as balanced as the subscriptions allow, and sticky."""
    subscriptions = {member.topics for member in spec.members.values()}
    return dict(_even(spec) if len(subscriptions) == 1 else _mixed(spec))


def _even(spec: Spec) -> _Assigned:
    """Assign equal shares to members that all have the same subscription.

    The counts differ by at most one. Members keep what they have as far as their share permits.
    """
    topics = next(iter(spec.members.values())).topics
    # ``more`` members get one partition above the share.
    total = sum(spec.partitions[topic] for topic in topics)
    share, more = divmod(total, len(spec.members))
    kept, free = _keep(spec)
    # Members with more than a share keep one more, so that fewer partitions move.
    order = sorted(spec.members, key=lambda member: (-_count(kept[member]), member))
    # First take away what exceeds a member's share, then distribute all that is free.
    for place, member_id in enumerate(order):
        quota = share + (place < more)
        assigned = kept[member_id]
        surplus = list(itertools.islice(_pairs(assigned), quota, None))
        free += surplus
        for topic, number in surplus:
            assigned[topic].discard(number)
    # Sorting makes the result independent of set order, which differs between brokers.
    unassigned = iter(sorted(free))
    for place, member_id in enumerate(order):
        missing_count = share + (place < more) - _count(kept[member_id])
        for topic, number in itertools.islice(unassigned, missing_count):
            kept[member_id].setdefault(topic, set()).add(number)
    return kept


def _mixed(spec: Spec) -> _Assigned:
    """Assign to members with different subscriptions.

    The least loaded subscriber gets the next free partition. Then partitions move from the most to
    the least loaded subscribers of each topic.
    """
    kept, free = _keep(spec)
    loads = {member_id: _count(assigned) for member_id, assigned in kept.items()}
    subscribers: dict[uuid.UUID, list[str]] = {}
    for member_id in sorted(spec.members):
        for topic in spec.members[member_id].topics:
            subscribers.setdefault(topic, []).append(member_id)
    # Topics with few subscribers are assigned first, as they leave the least choice.
    by_choice = sorted(
        free, key=lambda partition: (len(subscribers.get(partition[0], ())), partition)
    )
    for topic, numbers in itertools.groupby(by_choice, key=lambda partition: partition[0]):
        # A heap with the least loaded subscriber first.
        least = _Loads(subscribers.get(topic, ()), loads, 1)
        for _, number in numbers:
            member_id = least.first() or ""  # a free partition has at least one subscriber
            kept[member_id].setdefault(topic, set()).add(number)
            loads[member_id] += 1
    order = sorted(subscribers, key=lambda subscriber: (len(subscribers[subscriber]), subscriber))
    # A move for one topic may unbalance another one, so the passes repeat until nothing moves.
    for _ in range(_ROUNDS_MAX):
        moved = [_balance(topic, subscribers[topic], kept, loads) for topic in order]
        if True not in moved:
            break
    return kept


def _balance(
    topic: uuid.UUID, subscribers: Sequence[str], kept: _Assigned, loads: dict[str, int]
) -> bool:
    """Move partitions of a topic to subscribers that have at least two fewer than the owner.

    Loads count the partitions of all topics. Returns whether any partition moved.
    """
    owners = [subscriber for subscriber in subscribers if kept[subscriber].get(topic)]
    most, least, moved = _Loads(owners, loads, -1), _Loads(subscribers, loads, 1), False
    while True:
        giver, taker = most.first(), least.first()
        # A difference of one cannot improve by a move, and moving anyway would never end.
        if giver is None or taker is None or loads[giver] - loads[taker] < 2:
            return moved
        # The highest number, so that the result is the same on every broker.
        number = max(kept[giver][topic])
        kept[giver][topic].discard(number)
        if not kept[giver][topic]:
            most.drop(giver)
        kept[taker].setdefault(topic, set()).add(number)
        loads[giver] -= 1
        loads[taker] += 1
        moved = True


class _Loads:
    """Least loaded of some members, or most loaded with ``sign`` -1, while loads change."""

    def __init__(self, members: Iterable[str], loads: Mapping[str, int], sign: int) -> None:
        self._loads, self._sign = loads, sign
        self._gone: set[str] = set()
        self._heap = [(sign * loads[member], member) for member in members]
        heapq.heapify(self._heap)

    def first(self) -> str | None:
        """Return the member with the extreme load (see the sign), None if there is none."""
        while self._heap:
            load, member_id = self._heap[0]
            now = self._sign * self._loads[member_id]
            if member_id in self._gone:
                heapq.heappop(self._heap)
            # The entry is stale because loads have changed. It is re-sorted when it reaches the
            # top.
            elif load != now:
                heapq.heapreplace(self._heap, (now, member_id))
            else:
                return member_id
        return None

    def drop(self, member_id: str) -> None:
        self._gone.add(member_id)


def _keep(spec: Spec) -> tuple[_Assigned, list[tuple[uuid.UUID, int]]]:
    """Return the partitions that each member keeps, and the (topic, partition) pairs without owner.

    A member keeps those of its previous target that it still subscribes to and that still exist.
    """
    claimed: dict[uuid.UUID, set[int]] = {topic: set() for topic in spec.partitions}
    kept: _Assigned = {}
    for member_id, member in spec.members.items():
        assigned: dict[uuid.UUID, set[int]] = {}
        for topic, numbers in member.target.items():
            if topic in member.topics:
                count = spec.partitions[topic]
                # Two members may claim one partition after a change of the assignor. The first
                # keeps it.
                allowed = {number for number in numbers if number < count} - claimed[topic]
                claimed[topic] |= allowed
                assigned[topic] = allowed
        kept[member_id] = assigned
    subscribed: set[uuid.UUID] = set()
    for topics in {member.topics for member in spec.members.values()}:
        subscribed |= topics
    free = [
        (topic, number)
        for topic in subscribed
        for number in range(spec.partitions[topic])
        if number not in claimed[topic]
    ]
    return kept, free


def _count(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def _pairs(assignment: Assignment) -> Iterable[tuple[uuid.UUID, int]]:
    """Return the partitions in order."""
    return ((topic, number) for topic in sorted(assignment) for number in sorted(assignment[topic]))


def range_(spec: Spec) -> dict[str, Assignment]:
    """Assign contiguous partitions of each topic; the first members get those that remain.

    Static members come first, in the order of their instance ids (KIP-848's ``range``).
    """
    # One order for all topics, so that topics with equal counts are co-partitioned.
    order = sorted(spec.members, key=lambda member: _place(member, spec.members[member]))
    subscribers: dict[uuid.UUID, list[str]] = {}
    for member_id in order:
        for topic in spec.members[member_id].topics:
            subscribers.setdefault(topic, []).append(member_id)
    assigned: _Assigned = {member_id: {} for member_id in spec.members}
    for topic, members in subscribers.items():
        share, more = divmod(spec.partitions[topic], len(members))
        start = 0
        for place, member_id in enumerate(members):
            end = start + share + (place < more)
            # More members than partitions: the remaining ones get none.
            if end == start:
                break
            assigned[member_id][topic] = set(range(start, end))
            start = end
    return dict(assigned)


def _place(member_id: str, member: Subscriber) -> tuple[bool, str]:
    if member.instance_id is None:
        return True, member_id
    return False, member.instance_id


#: Assignors by the name that clients use. The first one is the default.
ASSIGNORS: Mapping[str, Callable[[Spec], dict[str, Assignment]]] = MappingProxyType(
    {"uniform": uniform, "range": range_}
)
