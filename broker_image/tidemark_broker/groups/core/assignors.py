"""Who is to consume what: the two assignors that Kafka's coordinator has.

``uniform`` balances the number of partitions and leaves with everybody what it has as far as that
goes; ``range`` gives neighbours of each topic to one member, the same numbers of topics that are
alike (KIP-848). Neither looks at racks. Both are pure, so they may run in a thread. Their time goes
with subscriptions and partitions, with a logarithm where members subscribe to different topics.
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
#: Through all topics, until none of their partitions has to move: it ends sooner but for odd
#: subscriptions.
_ROUNDS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """``topics`` are those that exist; members that subscribe to the same ones share the set.
    ``target`` is what it was to have until now."""

    instance_id: str | None
    topics: frozenset[uuid.UUID]
    target: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What there is to assign to whom: members by id, partitions by topic."""

    members: Mapping[str, Subscriber]
    partitions: Mapping[uuid.UUID, int]

    @property
    def size(self) -> int:
        """About what it takes to assign it, in partitions: a member is put on record."""
        return 10 * len(self.members) + sum(self.partitions.values())


def uniform(spec: Spec) -> dict[str, Assignment]:
    """As even as subscriptions allow, and sticky."""
    subscriptions = {each.topics for each in spec.members.values()}
    return dict(_even(spec) if len(subscriptions) == 1 else _mixed(spec))


def _even(spec: Spec) -> _Assigned:
    """Everybody subscribes to the same: each gets a share, some one more."""
    topics = next(iter(spec.members.values())).topics
    total = sum(spec.partitions[topic] for topic in topics)
    share, more = divmod(total, len(spec.members))
    kept, free = _keep(spec)
    #: Who has more than a share keeps one more first.
    order = sorted(spec.members, key=lambda each: (-_count(kept[each]), each))
    for place, member_id in enumerate(order):
        quota = share + (place < more)
        mine = kept[member_id]
        surplus = list(itertools.islice(_pairs(mine), quota, None))
        free += surplus
        for topic, number in surplus:
            mine[topic].discard(number)
    unassigned = iter(sorted(free))
    for place, member_id in enumerate(order):
        lacks = share + (place < more) - _count(kept[member_id])
        for topic, number in itertools.islice(unassigned, lacks):
            kept[member_id].setdefault(topic, set()).add(number)
    return kept


def _mixed(spec: Spec) -> _Assigned:
    """Subscriptions differ: the least loaded member that may gets the next partition, and then
    partitions move from the most loaded to the least loaded of a topic's subscribers."""
    kept, free = _keep(spec)
    loads = {member_id: _count(mine) for member_id, mine in kept.items()}
    subscribers: dict[uuid.UUID, list[str]] = {}
    for member_id in sorted(spec.members):
        for topic in spec.members[member_id].topics:
            subscribers.setdefault(topic, []).append(member_id)
    by_choice = sorted(free, key=lambda each: (len(subscribers.get(each[0], ())), each))
    for topic, numbers in itertools.groupby(by_choice, key=lambda each: each[0]):
        least = _Loads(subscribers.get(topic, ()), loads, 1)
        for _, number in numbers:
            member_id = least.first() or ""  # somebody wants it
            kept[member_id].setdefault(topic, set()).add(number)
            loads[member_id] += 1
    order = sorted(subscribers, key=lambda each: (len(subscribers[each]), each))
    for _ in range(_ROUNDS_MAX):
        moved = [_balance(topic, subscribers[topic], kept, loads) for topic in order]
        if True not in moved:
            break
    return kept


def _balance(
    topic: uuid.UUID, subscribers: Sequence[str], kept: _Assigned, loads: dict[str, int]
) -> bool:
    """Move the topic's partitions until no subscriber that has one has two more in all than
    another; did any move?"""
    owners = [each for each in subscribers if kept[each].get(topic)]
    most, least, moved = _Loads(owners, loads, -1), _Loads(subscribers, loads, 1), False
    while True:
        giver, taker = most.first(), least.first()
        if giver is None or taker is None or loads[giver] - loads[taker] < 2:
            return moved
        number = max(kept[giver][topic])
        kept[giver][topic].discard(number)
        if not kept[giver][topic]:
            most.drop(giver)
        kept[taker].setdefault(topic, set()).add(number)
        loads[giver] -= 1
        loads[taker] += 1
        moved = True


class _Loads:
    """The least loaded of some members, or with ``sign`` -1 the most loaded, as loads change."""

    def __init__(self, members: Iterable[str], loads: Mapping[str, int], sign: int) -> None:
        self._loads, self._sign = loads, sign
        self._gone: set[str] = set()
        self._heap = [(sign * loads[each], each) for each in members]
        heapq.heapify(self._heap)

    def first(self) -> str | None:
        while self._heap:
            load, member_id = self._heap[0]
            now = self._sign * self._loads[member_id]
            if member_id in self._gone:
                heapq.heappop(self._heap)
            elif load != now:
                heapq.heapreplace(self._heap, (now, member_id))
            else:
                return member_id
        return None

    def drop(self, member_id: str) -> None:
        self._gone.add(member_id)


def _keep(spec: Spec) -> tuple[_Assigned, list[tuple[uuid.UUID, int]]]:
    """What members have and may keep, and what nobody has."""
    taken: dict[uuid.UUID, set[int]] = {topic: set() for topic in spec.partitions}
    kept: _Assigned = {}
    for member_id, member in spec.members.items():
        mine: dict[uuid.UUID, set[int]] = {}
        for topic, numbers in member.target.items():
            if topic in member.topics:
                count = spec.partitions[topic]
                allowed = {each for each in numbers if each < count} - taken[topic]
                taken[topic] |= allowed
                mine[topic] = allowed
        kept[member_id] = mine
    wanted: set[uuid.UUID] = set()
    for topics in {member.topics for member in spec.members.values()}:
        wanted |= topics
    free = [
        (topic, number)
        for topic in wanted
        for number in range(spec.partitions[topic])
        if number not in taken[topic]
    ]
    return kept, free


def _count(mine: Assignment) -> int:
    return sum(map(len, mine.values()))


def _pairs(mine: Assignment) -> Iterable[tuple[uuid.UUID, int]]:
    """In order."""
    return ((topic, number) for topic in sorted(mine) for number in sorted(mine[topic]))


def range_(spec: Spec) -> dict[str, Assignment]:
    """Of each topic neighbours go together, the more of them the sooner a member comes; static
    members come first, by their names."""
    order = sorted(spec.members, key=lambda each: _place(each, spec.members[each]))
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
            if end == start:
                break
            assigned[member_id][topic] = set(range(start, end))
            start = end
    return dict(assigned)


def _place(member_id: str, member: Subscriber) -> tuple[bool, str]:
    if member.instance_id is None:
        return True, member_id
    return False, member.instance_id


#: By the names that clients ask for; the first one is what they get that ask for none.
ASSIGNORS: Mapping[str, Callable[[Spec], dict[str, Assignment]]] = MappingProxyType(
    {"uniform": uniform, "range": range_}
)
