"""Changes of spec.replicationFactor add and remove replicas without losing records."""

import dataclasses

import pytest

from tests.unit.controller.controller_world import (
    KIP_409,
    ControllerWorld,
    broker,
    cluster,
    fence,
    messages,
    numbered_uuid,
    ready,
    row,
    topic,
)
from tests.unit.controller.test_draining import catch_up, shape
from tidemark_operator.controller import placement, replication_factor_changes
from tidemark_operator.controller.state.model import PartitionRow


def world(*rows: PartitionRow, factor: int, brokers: int = 4, **config: str) -> ControllerWorld:
    """Return a world with a topic whose spec.replicationFactor has changed to ``factor``."""
    made = ControllerWorld(
        brokers=map(broker, range(1, brokers + 1)),
        topics=[
            topic(partitions=len(rows), replication_factor=factor, partitions_placed=len(rows))
        ],
        rows=rows,
        view=cluster(config),
    )
    made.state.resizing.add(numbered_uuid(1))
    return made


def step(made: ControllerWorld) -> int:
    draft = made.draft()
    changed = replication_factor_changes.step(draft)
    made.commit(draft)
    return changed


def settle(made: ControllerWorld) -> None:
    """Run steps with replicas that catch up, until nothing changes."""
    for _ in range(20):
        if not step(made):
            return
        for found in list(made.state.all_rows()):
            catch_up(made, found.partition)
    raise AssertionError("not settled after 20 steps")


def test_replicas_are_added_one_at_a_time() -> None:
    made = world(row((1,)), factor=3)
    assert step(made) == 1
    replicas, adding, removing = shape(made)
    assert (replicas[0], len(replicas), adding, removing) == (1, 2, replicas[1:], ())
    settle(made)
    assert len(made.row().isr) == 3
    assert made.row().leader == 1
    assert step(made) == 0


def test_added_replicas_are_balanced() -> None:
    made = world(*(row((1,), partition=part) for part in range(6)), factor=2)
    settle(made)
    assert sorted(made.row(part).replicas[1] for part in range(6)) == [2, 2, 3, 3, 4, 4]


def test_added_replicas_respect_the_catch_up_limit() -> None:
    config = {"tidemark.catch.up.replicas": "2"}
    made = world(*(row((1,), partition=part) for part in range(6)), factor=2, **config)
    assert (step(made), step(made)) == (2, 0)


@pytest.mark.parametrize(
    ("before", "isr", "kept"),
    [
        ((1, 2, 3), (1, 2), (1, 2)),
        ((1, 2, 3), (1, 3), (1, 3)),
        ((1, 2, -1), (1, 2), (1, 2)),
        ((1, 2, -1), (1,), (1, 2)),
        ((1, 2, 3), (1, 2, 3), (1, 2)),
    ],
    ids=["out-of-sync", "another-out-of-sync", "placeholder", "behind", "most-loaded"],
)
def test_replicas_outside_the_isr_are_removed_first(
    before: tuple[int, ...], isr: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    made = world(row(before, isr=isr), factor=2)
    # Broker 3 has more replicas than the others, which decides a tie.
    made.state.put_row(row((3, 3), number=8))
    assert step(made) == 1
    assert shape(made) == (kept, (), ())


def test_draining_broker_loses_its_replica_first() -> None:
    made = world(row((1, 2, 3)), factor=2)
    made.state.put_broker(dataclasses.replace(broker(2), drain=True))
    step(made)
    assert made.row().replicas == (1, 3)


def test_removal_keeps_racks_distinct() -> None:
    made = world(row((1, 2, 3)), factor=2)
    for node_id, rack in ((1, "a"), (2, "a"), (3, "b")):
        made.state.put_broker(dataclasses.replace(broker(node_id), spec_rack=rack))
    step(made)
    assert made.row().replicas == (1, 3)


def test_the_last_replica_in_sync_stays_and_leads() -> None:
    made = world(row((1, 2, 3), isr=(2,), leader=2), factor=1)
    assert step(made) == 1
    assert (made.row().replicas, made.row().isr, made.row().leader) == ((2,), (2,), 2)


def test_without_a_leader_nothing_is_deleted() -> None:
    made = world(row((1, 2, 3), isr=(2,), leader=-1), factor=1)
    # No replica can lead, so removing any could remove the last complete copy.
    fence(made, 2)
    assert step(made) == 0
    waits = made.decide().refused
    assert waits is not None
    assert waits.reason == "ReplicationFactorPending"
    assert "1 partition without a leader" in waits.message


def test_reverted_factor_cancels_the_change() -> None:
    made = world(row((1, 2)), factor=3)
    step(made)
    assert made.row().adding
    # The user reverts the factor before the new replica has caught up.
    made.state.put_topic(dataclasses.replace(made.view(), replication_factor=2))
    assert step(made) == 1
    assert shape(made) == ((1, 2), (), ())


def test_a_replication_factor_without_enough_brokers_is_reported_and_the_topic_continues() -> None:
    made = world(row((1, 2)), factor=4, brokers=2)
    assert step(made) == 0
    result = made.reconcile()
    assert ready(result)["Ready"] == ("True", "Serving")
    assert ready(result)["Stalled"] == ("True", "ReplicationFactorPending")
    assert ready(result)["FullyReplicated"] == ("True", "AllInSync"), "of what is placed"
    assert "too few live brokers accept replicas" in messages(result)["Stalled"]
    # With two more brokers, the change completes.
    for node_id in (3, 4):
        made.state.put_broker(broker(node_id))
    settle(made)
    assert ready(made.reconcile())["Stalled"][0] == "False"


def test_placeholders_fill_a_raised_factor() -> None:
    made = world(row((1, 2)), factor=4, brokers=2, **KIP_409)
    settle(made)
    assert made.row().replicas == (1, 2, -1, -2)
    assert ready(made.reconcile())["FullyReplicated"] == ("False", "Placeholders")


def test_paused_topic_keeps_its_replicas() -> None:
    made = world(row((1, 2)), factor=1)
    made.state.put_topic(dataclasses.replace(made.view(), paused=True))
    assert step(made) == 0


def test_a_minimum_in_sync_is_not_required_before_the_replicas_exist() -> None:
    """Otherwise producers would be refused from the moment of the edit."""
    made = world(row((1,)), factor=3)
    config = {"min.insync.replicas": "2"}
    made.state.put_topic(dataclasses.replace(made.view(), config=config))
    assert made.state.min_isr(made.row()) == 1
    step(made)
    assert made.state.min_isr(made.row()) == 1
    catch_up(made)
    assert made.state.min_isr(made.row()) == 2


def test_dead_added_replica_is_removed_first() -> None:
    made = world(row((1, 2)), factor=3)
    step(made)
    fence(made, *made.row().adding)
    made.state.put_topic(dataclasses.replace(made.view(), replication_factor=2))
    step(made)
    assert made.row().replicas == (1, 2)


def test_replica_needed_for_min_isr_stays_until_another_caught_up() -> None:
    """The drained broker is in sync, and its successor is not yet."""
    # A move from broker 2 to 4 is running, with one replica too many.
    moved = row((4, 3, 1, 2), isr=(2, 3), leader=2, adding=(4,), removing=(2,))
    made = world(moved, factor=2)
    config = {"min.insync.replicas": "2"}
    made.state.put_topic(dataclasses.replace(made.view(), config=config))
    fence(made, 1)
    assert step(made) == 1
    assert shape(made) == ((4, 3, 1, 2), (4,), (1, 2))
    assert made.row().isr == (2, 3)


def test_brokers_are_not_visited_without_free_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of 10,000 partitions would examine all brokers, every second."""
    config = {"tidemark.catch.up.replicas": "2"}
    made = world(*(row((1,), partition=part) for part in range(40)), factor=3, **config)
    assert step(made) == 2
    visited: list[object] = []
    monkeypatch.setattr(placement, "rack_of", visited.append)
    assert step(made) == 0
    assert visited == []
