"""Check the assignors against properties of every assignment, for many random groups."""

import random
import uuid

import pytest

from tidemark_broker.groups.core.assignors import (
    ASSIGNORS,
    Assignment,
    Spec,
    Subscriber,
)

TOPICS = [uuid.UUID(int=number) for number in range(1, 9)]


def group(chance: random.Random, *, same: bool) -> Spec:
    partitions = {topic: chance.randint(1, 12) for topic in TOPICS}
    members = {}
    everything = frozenset(TOPICS)
    for number in range(chance.randint(1, 10)):
        subscribed = everything if same else frozenset(chance.sample(TOPICS, chance.randint(0, 8)))
        members[f"m{number}"] = Subscriber(
            instance_id=f"i{number}" if chance.random() < 0.3 else None,
            topics=subscribed,
            target={},
        )
    return Spec(members=members, partitions=partitions)


def owners(spec: Spec, made: dict[str, Assignment]) -> dict[tuple[uuid.UUID, int], str]:
    """Return the owner of each partition; check that only subscribers own partitions."""
    found: dict[tuple[uuid.UUID, int], str] = {}
    assert set(made) <= set(spec.members)
    for member_id, assignment in made.items():
        for topic, numbers in assignment.items():
            assert topic in spec.members[member_id].topics
            for number in numbers:
                assert 0 <= number < spec.partitions[topic]
                assert (topic, number) not in found
                found[topic, number] = member_id
    subscribed = frozenset().union(*(member.topics for member in spec.members.values()))
    assert set(found) == {(t, n) for t in subscribed for n in range(spec.partitions[t])}
    return found


def next_spec(spec: Spec, made: dict[str, Assignment], without: str | None = None) -> Spec:
    members = {
        member_id: Subscriber(
            instance_id=member.instance_id, topics=member.topics, target=made.get(member_id, {})
        )
        for member_id, member in spec.members.items()
        if member_id != without
    }
    return Spec(members=members, partitions=spec.partitions)


def loads(made: dict[str, Assignment]) -> dict[str, int]:
    return {member_id: sum(map(len, item.values())) for member_id, item in made.items()}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("seed", range(30))
def test_every_partition_has_one_member(name: str, seed: int) -> None:
    chance = random.Random(seed)
    spec = group(chance, same=bool(seed % 2))
    made = ASSIGNORS[name](spec)
    owners(spec, made)
    # In the next generation m0 is missing. The other members pass their targets as preferences.
    smaller = next_spec(spec, made, without="m0")
    if smaller.members:
        owners(smaller, ASSIGNORS[name](smaller))


@pytest.mark.parametrize("seed", range(30))
def test_uniform_is_balanced_and_sticky(seed: int) -> None:
    chance = random.Random(seed)
    spec = group(chance, same=bool(seed % 2))
    made = ASSIGNORS["uniform"](spec)
    weight = loads(made)
    # Balanced: a move of one partition between two subscribers would not narrow their difference.
    for topic in TOPICS:
        subscribers = [member for member in spec.members if topic in spec.members[member].topics]
        for giver in subscribers:
            if made[giver].get(topic):
                assert all(weight[giver] - weight[receiver] < 2 for receiver in subscribers)
    # Sticky: an unchanged group has the same assignment again.
    assert owners(spec, ASSIGNORS["uniform"](next_spec(spec, made))) == owners(spec, made)


@pytest.mark.parametrize("seed", range(10))
def test_uniform_moves_only_partitions_of_the_removed_member(seed: int) -> None:
    chance = random.Random(seed)
    spec = group(chance, same=True)
    made = ASSIGNORS["uniform"](spec)
    smaller = next_spec(spec, made, without="m0")
    if not smaller.members:
        return
    before, after = owners(spec, made), owners(smaller, ASSIGNORS["uniform"](smaller))
    assert all(after[item] == owner for item, owner in before.items() if owner != "m0")


def test_range_assigns_adjacent_and_equal_numbers_in_equal_topics() -> None:
    both = frozenset(TOPICS[:2])
    members = {
        # Instance ids sort before member ids: z precedes b and c, and has the odd partition.
        "z": Subscriber(instance_id="a", topics=both, target={}),
        "b": Subscriber(instance_id=None, topics=both, target={}),
        "c": Subscriber(instance_id=None, topics=both, target={}),
    }
    made = ASSIGNORS["range"](Spec(members=members, partitions=dict.fromkeys(TOPICS[:2], 7)))
    for topic in both:
        assert made["z"][topic] == {0, 1, 2}
        assert made["b"][topic] == {3, 4}
        assert made["c"][topic] == {5, 6}
