"""Balanced, rack-aware and reproducible placement with placeholders (invariants 16 to 19)."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.controller.controller_world import (
    KIP_409,
    ControllerWorld,
    broker,
    cluster,
    fence,
    local_bytes,
    numbered_uuid,
    row,
    topic,
)
from tidemark_operator.controller import elections
from tidemark_operator.controller.placement import (
    BrokersMissing,
    fill_placeholders,
    place_topic,
)
from tidemark_operator.controller.state.model import PartitionRow


def _place(world: ControllerWorld, number: int = 1) -> tuple[int, ...] | BrokersMissing:
    draft = world.draft()
    outcome = place_topic(draft, world.view(number))
    world.commit(draft)
    return outcome


def _fill(world: ControllerWorld, limit: int = 1000) -> int:
    draft = world.draft()
    done = fill_placeholders(draft, limit=limit)
    world.commit(draft)
    return done


def test_missing_brokers_prevent_creation_without_the_flag() -> None:
    world = ControllerWorld(brokers=[broker(1), broker(2)], topics=[topic(replication_factor=3)])
    outcome = _place(world)
    assert outcome == BrokersMissing(required=3, live=2)
    assert isinstance(outcome, BrokersMissing)
    assert outcome.missing == 1
    assert not list(world.state.all_rows())


def test_with_the_flag_missing_replicas_become_placeholders() -> None:
    world = ControllerWorld(
        brokers=[broker(1)], topics=[topic(replication_factor=4)], view=cluster(KIP_409)
    )
    assert _place(world) == (0,)
    assert world.row().replicas == (1, -1, -2, -3)
    assert world.row().isr == (1,)


@pytest.mark.parametrize(
    ("min_isr", "factor", "live", "placed"),
    [("2", 3, 1, False), ("2", 3, 2, True), ("3", 2, 2, True), ("3", 2, 1, False)],
)
def test_creation_needs_min_isr_live_brokers(
    min_isr: str, factor: int, live: int, placed: bool
) -> None:
    world = ControllerWorld(
        brokers=[broker(node) for node in range(live)],
        topics=[topic(replication_factor=factor, config={"min.insync.replicas": min_isr})],
        view=cluster(KIP_409),
    )
    assert (_place(world) == (0,)) is placed


def test_unavailable_brokers_get_no_replicas() -> None:
    leaving = dataclasses.replace(broker(3), deleting=True)
    stopping = dataclasses.replace(broker(4), shutting_down=True)
    world = ControllerWorld(
        brokers=[broker(1), broker(2, fenced=True), leaving, stopping],
        topics=[topic(replication_factor=2)],
    )
    assert _place(world) == BrokersMissing(required=2, live=1)


def test_readers_get_no_replicas() -> None:
    reader = dataclasses.replace(broker(4), is_reader=True)
    brokers = [broker(1), broker(2), broker(3, fenced=True), reader]
    world = ControllerWorld(brokers=brokers, topics=[topic(replication_factor=3)])
    assert _place(world) == BrokersMissing(required=3, live=2)
    # Nor do they fill a placeholder.
    world = ControllerWorld(
        brokers=brokers, topics=[topic(replication_factor=3)], view=cluster(KIP_409)
    )
    assert _place(world) == (0,)
    assert _fill(world) == 0
    assert set(world.row().hosts) == {1, 2}
    # Nor does a request of a client put one there.
    world = ControllerWorld(
        brokers=brokers, topics=[topic(replication_factor=2, assignments={0: (1, 4)})]
    )
    assert _place(world) == (0,)
    assert set(world.row().hosts) == {1, 2}


def test_a_topic_grows_and_its_old_partitions_stay() -> None:
    world = ControllerWorld(
        # KIP-195: only partitions 1 and 2 are placed.
        brokers=[broker(n) for n in (1, 2, 3)],
        topics=[topic(partitions=3, replication_factor=1, partitions_placed=1)],
        rows=[row((2,), partition=0)],
    )
    assert _place(world) == (1, 2)
    assert world.row(0).replicas == (2,)


def test_missing_row_of_a_placed_partition_is_not_recreated() -> None:
    world = ControllerWorld(
        brokers=[broker(1)],
        topics=[topic(partitions=2, replication_factor=1, partitions_placed=2)],
        rows=[row((1,), partition=0)],
    )
    assert _place(world) == ()


def test_replicas_spread_over_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    world = ControllerWorld(
        brokers=[broker(node, rack=rack) for node, rack in racks.items()],
        topics=[topic(partitions=30, replication_factor=3)],
    )
    _place(world)
    for made in world.state.all_rows():
        assert len({racks[node] for node in made.replicas}) == 3


def test_leaders_and_replicas_are_balanced() -> None:
    world = ControllerWorld(
        brokers=[broker(node) for node in range(6)],
        topics=[topic(number, partitions=3) for number in range(40)],
    )
    for number in range(40):
        _place(world, number)
    replicas = Counter(node for made in world.state.all_rows() for node in made.replicas)
    leaders = Counter(made.leader for made in world.state.all_rows())
    assert max(replicas.values()) - min(replicas.values()) <= 2
    assert max(leaders.values()) - min(leaders.values()) <= 1


def test_a_broker_that_joins_does_not_lead_all_of_the_next_topic() -> None:
    """The new broker leads the fewest partitions, so it must not be the first choice every time."""
    world = ControllerWorld(
        brokers=[broker(node) for node in (1, 2, 3)],
        topics=[topic(number, partitions=12) for number in (1, 2)],
    )
    _place(world, 1)
    world.state.put_broker(broker(4))
    _place(world, 2)
    rows = world.state.rows_of(numbered_uuid(2)).values()
    assert Counter(made.leader for made in rows) == dict.fromkeys((1, 2, 3, 4), 3)
    assert Counter(node for made in rows for node in made.replicas) == dict.fromkeys(
        (1, 2, 3, 4), 9
    )


def test_tie_is_broken_by_the_total_of_replicas() -> None:
    world = ControllerWorld(
        brokers=[broker(node) for node in (1, 2, 3)],
        topics=[topic(number, replication_factor=1) for number in (1, 2)],
        # Broker 2 already has two replicas of another topic.
        rows=[row((node,), number=9, partition=node) for node in (1, 2, 2, 3)],
    )
    for part in range(3):
        world.state.put_row(row((1 + part % 2,), number=8, partition=part))
    _place(world)
    assert world.row().replicas == (3,)


def test_filling_respects_the_limit_per_broker() -> None:
    limits = {**KIP_409, "tidemark.catch.up.replicas.per.broker": "2"}
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(partitions=5, replication_factor=2, partitions_placed=5)],
        rows=[row((1, -1), partition=part) for part in range(5)],
        view=cluster(limits),
    )
    assert (_fill(world), _fill(world)) == (2, 0)
    world.state.put_row(dataclasses.replace(world.row(0), isr=(1, 2)))
    assert _fill(world) == 1, "one has caught up"
    # Broker 2 fails: its unfinished replicas free no slot on it, but they count no longer.
    fence(world, 2)
    world.state.put_broker(broker(3))
    assert _fill(world) == 2, "what is away does not catch up"


def test_filling_respects_the_limit_of_the_cluster() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2), broker(3)],
        topics=[topic(partitions=5, replication_factor=2, partitions_placed=5)],
        rows=[row((1, -1), partition=part) for part in range(5)],
        view=cluster({"tidemark.catch.up.replicas": "3"}),
    )
    assert (_fill(world), _fill(world)) == (3, 0)


def test_filling_respects_the_byte_limit_except_for_one_large_log() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(partitions=4, replication_factor=2, partitions_placed=4)],
        rows=[row((1, -1), partition=part) for part in range(4)],
        view=cluster({"tidemark.catch.up.bytes.per.broker": "100"}),
    )
    # Logs of 60 and 40 bytes fill the limit of 100. A log of 500 never fits.
    for part, size in enumerate((60, 40, 30, 500)):
        key = (numbered_uuid(1), part)
        world.state.reports[key] = local_bytes(key, size)
    assert _fill(world) == 2
    assert [world.row(part).replicas[1] for part in range(4)] == [2, 2, -1, -1]
    for part in (0, 1):
        world.state.put_row(dataclasses.replace(world.row(part), isr=(1, 2)))
    assert _fill(world) == 1
    # Only when nothing else catches up may the oversized log move.
    world.state.put_row(dataclasses.replace(world.row(2), isr=(1, 2)))
    assert _fill(world) == 1
    assert world.row(3).replicas == (1, 2)


def test_replica_waits_for_room_in_its_own_rack() -> None:
    """Otherwise it would share a rack permanently, since no later step moves it."""
    world = ControllerWorld(
        brokers=[broker(1, rack="a"), broker(2, rack="a"), broker(3, rack="b")],
        topics=[topic(partitions=2, replication_factor=2, partitions_placed=2)],
        rows=[row((1, -1), partition=part) for part in range(2)],
        view=cluster({"tidemark.catch.up.replicas.per.broker": "1"}),
    )
    # Broker 3 has one slot. Partition 1 waits for it rather than use broker 2 in rack a.
    assert _fill(world) == 1
    assert [world.row(part).replicas for part in range(2)] == [(1, 3), (1, -1)]


def test_the_same_seed_gives_the_same_plan() -> None:
    plans = []
    for _ in range(2):
        world = ControllerWorld(
            brokers=[broker(node) for node in (3, 1, 2)], topics=[topic(partitions=8)]
        )
        _place(world)
        plans.append(sorted(made.replicas for made in world.state.all_rows()))
    assert plans[0] == plans[1]


def test_joining_broker_fills_the_emptiest_partitions_first() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2), broker(9)],
        topics=[topic(partitions=2, partitions_placed=2)],
        # Partition 1 has one live replica, partition 0 has two.
        rows=[row((1, 2, -1), partition=0), row((1, -1, -2), partition=1)],
    )
    assert _fill(world, limit=1) == 1
    assert sum(part >= 0 for part in world.row(1).replicas) == 2
    while _fill(world):
        pass
    assert sorted(world.row(0).replicas) == [1, 2, 9]
    assert sorted(world.row(1).replicas) == [1, 2, 9]
    assert world.row(0).isr == (1, 2)
    assert _fill(world) == 0


def test_placeholder_without_a_live_source_is_not_filled() -> None:
    world = ControllerWorld(
        brokers=[broker(1, fenced=True), broker(2)],
        topics=[topic()],
        rows=[row((1, -1, -2), leader=-1)],
    )
    assert _fill(world) == 0


def test_paused_deleted_and_unknown_topics_are_left_alone() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(1, paused=True), topic(2, deletion_ms=5)],
        rows=[row((1, -1), number=number) for number in (1, 2, 3)],
    )
    assert _fill(world) == 0


# ---------------------------------------------------------------- invariants 16 to 19

_world = st.fixed_dictionaries(
    {
        "live": st.integers(1, 5),
        "factor": st.integers(1, 5),
        "min_isr": st.integers(1, 5),
        "partitions": st.integers(1, 5),
        "joins": st.lists(st.integers(10, 16), max_size=5, unique=True),
        "dies": st.lists(st.integers(0, 16), max_size=4),
        "racks": st.lists(st.sampled_from(["a", "b", None]), min_size=17, max_size=17),
    }
)


def _check(made: PartitionRow, world: ControllerWorld) -> None:
    hosts = made.hosts
    assert len(set(made.replicas)) == len(made.replicas), "17: no broker twice"
    assert made.leader in (-1, *hosts), "19: a placeholder never leads"
    assert set(made.isr) <= set(hosts), "19: nor is it in the ISR"
    assert made.leader == -1 or made.leader in made.isr
    assert made.leader == -1 or world.state.is_live(made.leader)


@given(_world)
def test_placement_invariants_hold_for_any_joins_and_failures(plan: dict[str, object]) -> None:
    live, factor, min_isr = plan["live"], plan["factor"], plan["min_isr"]
    joins, dies, racks = plan["joins"], plan["dies"], plan["racks"]
    partitions = plan["partitions"]
    assert isinstance(live, int)
    assert isinstance(factor, int)
    assert isinstance(min_isr, int)
    assert isinstance(partitions, int)
    assert isinstance(joins, list)
    assert isinstance(dies, list)
    assert isinstance(racks, list)
    placed_topic = topic(
        partitions=partitions,
        replication_factor=factor,
        config={"min.insync.replicas": str(min_isr)},
    )
    world = ControllerWorld(
        brokers=[broker(node, rack=racks[node]) for node in range(live)],
        topics=[placed_topic],
        view=cluster(KIP_409),
    )
    outcome = _place(world)
    assert isinstance(outcome, tuple) is (live >= min(min_isr, factor))
    for made in world.state.all_rows():
        _check(made, world)
        assert len(made.hosts) >= min(min_isr, factor), "18: min ISR real replicas at creation"
        assert len(made.replicas) == factor
    filled = Counter[tuple[int, int]]()
    # Brokers join one by one, and others fail in between.
    for node in [*joins]:
        before = {made.key: made for made in world.state.all_rows()}
        world.state.put_broker(broker(node, rack=racks[node]))
        draft = world.draft()
        elections.fence(draft, [victim for victim in dies if victim != node], reason="test")
        world.commit(draft)
        _fill(world)
        for made in world.state.all_rows():
            _check(made, world)
            filled_placeholders = set(before[made.key].replicas) - set(made.replicas)
            assert all(replica < 0 for replica in filled_placeholders), "no host is ever displaced"
            filled.update((made.partition, replica) for replica in filled_placeholders)
    assert all(times == 1 for times in filled.values()), "16: filled once"
    assert world.state.partitions.with_placeholders == {
        made.key for made in world.state.all_rows() if made.placeholders
    }
    assert all(key[0] == numbered_uuid(1) for key in world.state.partitions.with_placeholders)


def test_an_assignment_determines_a_partitions_brokers() -> None:
    view = topic(partitions=3, replication_factor=2, assignments={0: (3, 1), 1: (9, 1), 2: (2,)})
    world = ControllerWorld(brokers=[broker(1), broker(2), broker(3, fenced=True)], topics=[view])
    draft = world.draft()
    place_topic(draft, view)
    rows = draft.rows_of(view.id)
    assert (rows[0].replicas, rows[0].isr, rows[0].leader) == ((3, 1), (1,), 1)
    # An unknown broker, or too few of them: the assignment is ignored.
    assert [set(rows[partition].replicas) for partition in (1, 2)] == [{1, 2}, {1, 2}]


def test_coordinator_topic_is_created_on_one_broker() -> None:
    view = topic(name="__transaction_state", config={"min.insync.replicas": "2"})
    world = ControllerWorld(brokers=[broker(1)], topics=[view])
    draft = world.draft()
    place_topic(draft, view)
    world.commit(draft)
    assert world.row().replicas == (1, -1, -2)
    # The effective minimum follows the live replicas, until the topic has as many as the minimum.
    assert world.state.min_isr(world.row()) == 1
    filled = dataclasses.replace(world.row(), replicas=(1, 2, -2))
    assert world.state.min_isr(filled) == 2
    assert world.state.min_isr(dataclasses.replace(filled, replicas=(1, 2, 3))) == 2
