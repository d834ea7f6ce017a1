"""Deleting a topic: tombstones, confirmations, the tier, the finalizer (invariant 23)."""

import dataclasses

from tests.unit.controller.controller_world import (
    T0,
    ControllerWorld,
    broker,
    numbered_uuid,
    row,
    tiered,
    topic,
)
from tidemark.tiering import TieringState
from tidemark.wire.control import DeleteRemoteTopicResponse, PartitionError, PartitionStatesResponse
from tidemark_operator.controller import snapshot, topic_deletion
from tidemark_operator.controller.state.model import DeletionPolicy
from tidemark_operator.controller.topic_deletion import Deletions, DeletionStep

ID = numbered_uuid(1)


def _world(**fields: object) -> ControllerWorld:
    made = topic(partitions=130, partitions_placed=130, deletion_ms=T0, **fields)  # type: ignore[arg-type]
    return ControllerWorld(
        brokers=[broker(1), broker(2), broker(3, fenced=True)],
        topics=[made],
        rows=[row((1, 2, 3), partition=part) for part in range(130)],
    )


def _step(world: ControllerWorld) -> DeletionStep:
    step = world.decide().deletion
    assert step is not None
    return step


def _confirm(world: ControllerWorld, node_id: int, *, failed: bool = False) -> tuple[object, ...]:
    errors = (PartitionError(topic_id=ID, partition=3, error_code=56, message="disk"),)
    response = PartitionStatesResponse(
        error_code=0,
        broker_epoch=world.state.brokers[node_id].broker_epoch,
        errors=errors if failed else (),
    )
    return world.deletions.take(world.state, node_id, snapshot.full(world.state), response)


def test_rows_become_tombstones_in_the_same_write() -> None:
    world = _world()
    assert not _step(world).release
    assert not list(world.state.all_rows())
    tombs = world.state.tombstones_of(ID)
    assert len(tombs) == 2, "partitions 0 to 127 happen to share a slice"
    for index, tomb in tombs.items():
        assert (tomb.pending, tomb.partitions, tomb.tiered_epoch) == ((1, 2, 3), 130, -1)
        assert world.slices[index]["partitions"] == []
        assert world.slices[index]["tombstones"] != []


def test_topic_is_released_without_dead_brokers_whose_tombstones_stay() -> None:
    world = _world()
    _step(world)
    # Broker 3 is fenced, so the finalizer does not wait for it.
    assert _step(world).waiting_for == (1, 2)
    assert _confirm(world, 1) == (ID,)
    assert _confirm(world, 1) == ()
    # An error for one partition is no confirmation.
    assert _confirm(world, 2, failed=True) == ()
    assert _step(world).waiting_for == (2,)
    assert _confirm(world, 2) == (ID,)
    assert _step(world).release
    world.state.topics.drop("ns/topic-1")
    draft = world.draft()
    assert topic_deletion.collect(draft, world.deletions) == 0
    world.commit(draft)
    assert {tomb.pending for tomb in world.state.tombstones_of(ID).values()} == {(3,)}
    # The dead broker returns and confirms, so the tombstones can be collected.
    assert _confirm(world, 3) == (ID,)
    draft = world.draft()
    assert topic_deletion.collect(draft, world.deletions) == 2
    world.commit(draft)
    assert world.state.tombstones == {}


def test_dead_broker_deletes_a_moved_replica_on_its_return() -> None:
    """The broker missed the move. Without a tombstone it would keep the replica permanently."""
    world = ControllerWorld(
        brokers=[broker(1), broker(2), broker(3, fenced=True), broker(4, epoch=-1)],
        topics=[topic(partitions_placed=1, deletion_ms=T0)],
        # Broker 3 had a replica before the move, broker 4 has never registered.
        rows=[row((1, 2), partition_epoch=7)],
    )
    _step(world)
    assert {tomb.pending for tomb in world.state.tombstones_of(ID).values()} == {(1, 2, 3)}
    assert _step(world).waiting_for == (1, 2), "it is not waited for"
    for node_id in (1, 2, 3):
        _confirm(world, node_id)
    world.state.topics.drop("ns/topic-1")
    draft = world.draft()
    assert topic_deletion.collect(draft, world.deletions) == 1


def test_tombstones_stay_while_the_topic_exists() -> None:
    world = _world()
    _step(world)
    for node in (1, 2, 3):
        _confirm(world, node)
    draft = world.draft()
    assert topic_deletion.collect(draft, world.deletions) == 0


def test_a_broker_without_an_object_is_not_waited_for() -> None:
    world = _world()
    _step(world)
    _confirm(world, 1)
    _confirm(world, 2)
    world.state.topics.drop("ns/topic-1")
    world.state.drop_broker(3)
    draft = world.draft()
    assert topic_deletion.collect(draft, world.deletions) == 2


def test_a_confirmation_from_another_log_directory_does_not_count_for_this_one() -> None:
    world = _world()
    _step(world)
    _confirm(world, 1)
    # An empty directory has nothing to delete: the former one may still return.
    world.register(1, incarnation=99, directory=98)
    world.beat(1)
    assert _step(world).waiting_for == (1, 2)


def test_a_takeover_repeats_the_request() -> None:
    world = _world()
    _step(world)
    _confirm(world, 1)
    # Confirmations are not persisted, so the next controller requests them again.
    world.deletions = Deletions()
    assert _step(world).waiting_for == (1, 2)


def _remote_answer(code: int, message: str = "") -> DeleteRemoteTopicResponse:
    return DeleteRemoteTopicResponse(error_code=code, message=message)


def test_the_tier_is_emptied_by_one_live_broker_after_the_replicas_are_deleted() -> None:
    world = _world(**tiered(True, TieringState.ENABLED, epoch=2))
    _step(world)
    assert _step(world).remote is None
    _confirm(world, 1)
    _confirm(world, 2)
    step = _step(world)
    assert step.remote is not None
    node_id, request = step.remote
    assert (request.tiered_epoch, request.partitions, request.name) == (2, 130, "topic-1")
    # 7 is REQUEST_TIMED_OUT: the same broker continues.
    assert not world.deletions.take_remote(ID, node_id, _remote_answer(7))
    assert _step(world).remote == step.remote
    # 56 is KAFKA_STORAGE_ERROR: another broker tries.
    assert not world.deletions.take_remote(ID, node_id, _remote_answer(56, "no such bucket"))
    failed = _step(world)
    assert failed.remote is not None
    assert failed.remote[0] != node_id
    assert "no such bucket" in failed.problem
    assert "Orphan" in failed.problem
    assert world.deletions.take_remote(ID, failed.remote[0], _remote_answer(0))
    assert _step(world).release


def test_orphan_releases_at_once_and_reports_what_remains() -> None:
    world = _world(deletion_policy=DeletionPolicy.ORPHAN)
    step = _step(world)
    assert step.release
    assert step.orphan is not None
    assert (step.orphan.topic_id, step.orphan.name) == (ID, "topic-1")
    assert len(list(world.state.all_rows())) == 130


def test_orphan_also_releases_a_deletion_that_hangs() -> None:
    world = _world(**tiered(True, TieringState.ENABLED))
    _step(world)
    view = dataclasses.replace(world.view(), deletion_policy=DeletionPolicy.ORPHAN)
    # The user gives the tier up by changing the policy of the deleted Topic.
    world.state.put_topic(view)
    step = _step(world)
    assert step.release
    assert step.orphan is not None


def test_a_topic_that_was_never_placed_is_deleted_at_once() -> None:
    world = ControllerWorld(topics=[topic(deletion_ms=T0)])
    assert _step(world).release
    assert _step(world).orphan is None


def test_a_topic_whose_rows_are_lost_is_deleted_on_every_broker() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)], topics=[topic(partitions_placed=1, deletion_ms=T0)]
    )
    assert not _step(world).release
    (tomb,) = world.state.tombstones_of(ID).values()
    assert tomb.pending == (1, 2)


def test_without_a_live_broker_the_tier_waits() -> None:
    world = ControllerWorld(
        brokers=[broker(1, fenced=True)],
        topics=[topic(partitions_placed=1, deletion_ms=T0, **tiered(True, TieringState.ENABLED))],  # type: ignore[arg-type]
        rows=[row((1,))],
    )
    _step(world)
    step = _step(world)
    assert (step.release, step.remote) == (False, None)
    assert "live broker" in step.message


def test_topic_without_its_name_leaves_foreign_partitions_alone() -> None:
    world = ControllerWorld(
        brokers=[broker(1)],
        topics=[topic(1, partitions_placed=1), topic(2, name="topic-1", deletion_ms=T0)],
        rows=[row((1,))],
    )
    step = world.decide(2).deletion
    assert step is not None
    assert step.release
    assert world.row().replicas == (1,)


def test_unreached_brokers_are_not_waited_for() -> None:
    """The controller cannot fence them, so their tombstones wait as for dead brokers."""
    world = ControllerWorld(brokers=[broker(1), broker(2)], topics=[topic(replication_factor=2)])
    world.reconcile()
    world.state.put_topic(dataclasses.replace(world.view(), deletion_ms=T0))
    world.decide()
    assert world.decide().deletion.waiting_for == (1, 2)  # type: ignore[union-attr]
    world.state.unreached = True
    assert world.decide().deletion.release  # type: ignore[union-attr]
    (tombstone,) = world.state.tombstones_of(numbered_uuid(1)).values()
    assert tombstone.pending == (1, 2)
