"""State that brokers receive: everything once, then changes; absence never deletes."""

import dataclasses

from tests.unit.controller.controller_world import (
    ControllerWorld,
    broker,
    cluster,
    numbered_uuid,
    reports,
    row,
    tiered,
    topic,
)
from tidemark.tiering import TieringState
from tidemark_operator.controller import snapshot
from tidemark_operator.controller.state import commit
from tidemark_operator.controller.state.model import (
    BrokerInfo,
    ClusterRebuilding,
    OrphanedTopic,
    Tombstone,
)


def _world() -> ControllerWorld:
    world = ControllerWorld(
        brokers=[broker(1), broker(2, fenced=True), BrokerInfo(node_id=3, key="ns/b3")],
        topics=[
            topic(1, partitions=2, partitions_placed=2, config={"b": "2", "a": "1"}),
            topic(2, partitions_placed=1, **tiered(True, TieringState.ENABLED, 4)),  # type: ignore[arg-type]
            topic(3),
        ],
        rows=[
            row((1, 2, -1), number=1, partition=1),
            row((1, 2), number=1, partition=0, manifest=True),
            row((2,), number=2),
            # Topic 3 is not placed according to its status, and topic 9 has no object.
            row((1,), number=3),
            row((1,), number=9),
        ],
        view=cluster({"x": "y"}, remote_storage='{"filesystem":{}}', store_id="s1"),
    )
    tomb = Tombstone(topic_id=numbered_uuid(8), name="g", partitions=1, tiered_epoch=-1, pending=())
    world.state.put_tombstone(numbered_uuid(8), 5, tomb)
    return world


def test_a_snapshot_names_the_readers() -> None:
    world = _world()
    world.state.put_broker(dataclasses.replace(broker(4), is_reader=True))
    readers = {state.broker_id: state.is_reader for state in snapshot.full(world.state).brokers}
    assert readers == {1: False, 2: False, 4: True}


def test_a_snapshot_has_every_served_topic_and_every_tombstone() -> None:
    pushed = snapshot.full(_world().state)
    assert pushed.full
    assert [topic.name for topic in pushed.topics] == ["topic-1", "topic-2"]
    assert [part.partition for part in pushed.topics[0].partitions] == [0, 1]
    assert pushed.topics[0].partitions[0].manifest
    assert [entry.name for entry in pushed.topics[0].config] == ["a", "b"]
    assert (pushed.topics[0].tiering_state, pushed.topics[0].tiered_epoch) == (0, -1)
    assert (pushed.topics[1].tiering_state, pushed.topics[1].tiered_epoch) == (1, 4)
    assert [(item.topic_id, item.partition) for item in pushed.removals] == [(numbered_uuid(8), -1)]
    assert [(b.broker_id, b.fenced) for b in pushed.brokers] == [(1, False), (2, True)]
    assert not any(b.is_reader for b in pushed.brokers)
    assert (pushed.cluster_id, pushed.store_id, pushed.controller_epoch) == ("tide-1", "s1", 7)


def test_partition_is_pushed_once_the_status_counts_it() -> None:
    world = _world()
    view = dataclasses.replace(world.view(1), partitions_placed=1)
    world.state.put_topic(view)
    pushed = snapshot.full(world.state)
    assert [part.partition for part in pushed.topics[0].partitions] == [0]
    keys = [(numbered_uuid(1), 0), (numbered_uuid(1), 1)]
    (changed,) = snapshot.delta(world.state, rows=keys).topics
    assert [part.partition for part in changed.partitions] == [0]


def test_delta_contains_changes_only() -> None:
    world = _world()
    pushed = snapshot.delta(
        world.state, rows=[(numbered_uuid(1), 1), (numbered_uuid(9), 0)], topics=["ns/topic-2"]
    )
    assert not pushed.full
    assert [(t.name, [p.partition for p in t.partitions]) for t in pushed.topics] == [
        ("topic-1", [1]),
        ("topic-2", []),
    ]
    assert pushed.removals == ()


def test_removal_has_the_new_partition_epoch() -> None:
    world = _world()
    draft = world.draft()
    # Broker 2 loses its replica under partition epoch 3.
    moved = dataclasses.replace(world.row(0), replicas=(1, -1), isr=(1,), partition_epoch=3)
    draft.put_row(moved)
    (write,) = commit.plan(draft).writes
    removals = snapshot.removals_of(world.state, write)
    assert list(removals) == [2]
    assert [(item.partition, item.partition_epoch) for item in removals[2]] == [(0, 3)]


def test_tombstone_goes_to_all_brokers_and_again_to_pending_ones() -> None:
    """Every broker shows clients every topic, so every broker has to receive the deletion."""
    world = _world()
    world.state.put_broker(broker(3))
    view = dataclasses.replace(world.view(1), deletion_ms=1)
    world.state.put_topic(view)
    draft = world.draft()
    index = world.state.slice_index(world.row(0).key)
    tomb = Tombstone(
        topic_id=view.id, name="topic-1", partitions=2, tiered_epoch=-1, pending=(1, 2)
    )
    draft.put_tombstone(index, tomb)
    (write,) = commit.plan(draft).writes
    removals = snapshot.removals_of(world.state, write)
    assert {node: [item.partition for item in items] for node, items in removals.items()} == {
        1: [-1],
        2: [-1],
        3: [-1],
    }
    world.commit(draft)
    draft = world.draft()
    # Broker 1 has confirmed: the tombstone is only repeated for broker 2.
    draft.put_tombstone(index, dataclasses.replace(tomb, pending=(2,)))
    (write,) = commit.plan(draft).writes
    assert list(snapshot.removals_of(world.state, write)) == [2]


def with_all_reports(world: ControllerWorld) -> ControllerWorld:
    for node_id in (1, 2, 3):
        reports(world, node_id)
    return world


def test_absence_means_deletion_once_all_brokers_reported() -> None:
    world = _world()
    assert not snapshot.full(world.state).knows_all
    reports(world, 1)
    reports(world, 2)
    world.state.remove_row((numbered_uuid(9), 0))
    assert snapshot.full(world.state).knows_all, "broker 3 never registered"
    with_all_reports(world)
    pushed = snapshot.full(world.state)
    assert pushed.knows_all
    assert pushed.unserved == ()
    # Rows in doubt, or outdated slices, make the snapshot incomplete.
    world.state.unverified_rows.add((numbered_uuid(1), 0))
    assert not snapshot.full(world.state).knows_all
    world.state.unverified_rows.clear()
    world.state.cluster = dataclasses.replace(
        world.state.cluster, rebuilding=ClusterRebuilding(since="t", behind=True)
    )
    assert not snapshot.delta(world.state).knows_all


def test_unknown_broker_in_a_row_prevents_deletions_by_absence() -> None:
    """The broker joined after the backup, and may have the only replica of a topic."""
    world = with_all_reports(_world())
    world.state.remove_row((numbered_uuid(9), 0))
    world.state.put_row(row((1, 4), number=1, partition=0))
    assert not snapshot.full(world.state).knows_all
    world.state.put_broker(broker(4))
    assert not snapshot.full(world.state).knows_all
    reports(world, 4)
    assert snapshot.full(world.state).knows_all


def test_stray_topic_is_listed_and_not_deleted() -> None:
    world = _world()
    world.state.remove_row((numbered_uuid(9), 0))
    world.state.put_row(dataclasses.replace(row((1,), number=9), name="nine"))
    with_all_reports(world)
    # Three kinds: an orphan of the status, a reported one, and rows without a Topic.
    reports(world, 2, row((2,), number=7))
    orphan = OrphanedTopic(topic_id=numbered_uuid(6), name="six", since_ms=0)
    world.state.cluster = dataclasses.replace(world.state.cluster, orphans=(orphan,))
    pushed = snapshot.delta(world.state)
    assert [(item.name, item.topic_id, item.is_unmanaged) for item in pushed.unserved] == [
        ("six", numbered_uuid(6), False),
        ("topic-7", numbered_uuid(7), True),
        ("nine", numbered_uuid(9), True),
    ]
    assert pushed.knows_all


def test_doubted_and_lost_partitions_are_counted() -> None:
    world = _world()
    world.state.unverified_rows.add((numbered_uuid(1), 1))
    # A broker reports partition 3, whose row is lost.
    reports(world, 2, row((2,), number=1, partition=3))
    (pushed, _) = snapshot.full(world.state).topics
    assert [part.partition for part in pushed.partitions] == [0]
    assert pushed.partition_count == 4
