"""Registration with and without proof of a clean shutdown, heartbeats, and removal of Brokers."""

import dataclasses

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.controller.controller_world import (
    SESSION_MS,
    ControllerWorld,
    broker,
    numbered_uuid,
    registration_request,
    row,
    topic,
)
from tidemark.wire.control import BrokerHeartbeatRequest
from tidemark_operator.controller import catch_up_limits, elections, registration
from tidemark_operator.controller.state import commit
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import BrokerInfo

FRESH = 5000


def _world() -> ControllerWorld:
    return ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(partitions=3)],
        rows=[
            row((1, 2), partition=0),
            row((1, 2), isr=(1,), partition=1),
            row((2, 1), isr=(2,), leader=2, partition=2),
        ],
    )


def test_broker_with_proof_stays_in_its_isrs_but_leads_nothing() -> None:
    world = _world()
    # The epoch before the shutdown is the proof.
    error, epoch = world.register(1, incarnation=FRESH, previous=101)
    assert (error, world.state.brokers[1].fenced) == (0, True)
    assert epoch > 102
    assert (world.row(0).leader, world.row(0).isr) == (2, (1, 2))
    assert (world.row(1).leader, world.row(1).isr) == (-1, (1,))
    assert world.row(2).partition_epoch == 0


def test_broker_without_proof_leaves_every_isr_except_as_last_member() -> None:
    world = _world()
    world.register(1, incarnation=FRESH)
    assert (world.row(0).leader, world.row(0).isr) == (2, (2,))
    assert (world.row(1).leader, world.row(1).isr) == (-1, (1,))


def test_proof_of_another_epoch_is_ignored() -> None:
    world = _world()
    world.register(1, incarnation=FRESH, previous=100)
    assert world.row(0).isr == (2,)


def test_without_proof_a_proposal_made_for_the_former_process_is_void() -> None:
    """KIP-903: the partition epoch rises also where the broker was not in the ISR."""
    world = _world()
    world.register(1, incarnation=FRESH)
    assert world.row(2) == row((2, 1), isr=(2,), leader=2, partition=2, partition_epoch=1)


def test_another_directory_leaves_every_isr_and_is_reported() -> None:
    world = _world()
    draft = world.draft()
    request = registration_request(1, incarnation=FRESH, directory=77, previous=101)
    registration.register(draft, request, session_alive=False, session_timeout_ms=SESSION_MS)
    events = world.commit(draft).events
    assert world.row(0).isr == (2,)
    assert (world.row(1).leader, world.row(1).isr) == (-1, ())
    # Partition 1 had its only copy in the former directory.
    assert [event.reason for event in events] == ["BrokerRegistered", "LastCopyMissing"]
    # An empty replica is not elected after unfencing either.
    world.beat(1)
    assert (world.row(1).leader, world.row(1).isr) == (-1, ())


def test_same_process_keeps_epoch_and_isr() -> None:
    world = _world()
    before = {made.key: made for made in world.state.all_rows()}
    error, epoch = world.register(1, incarnation=1001, alive=True)
    # A lost answer made the broker repeat its registration.
    assert (error, epoch) == (0, 101)
    assert {made.key: made for made in world.state.all_rows()} == before
    assert not world.state.brokers[1].fenced


def test_another_process_while_one_is_alive_is_refused() -> None:
    world = _world()
    error, _ = world.register(1, incarnation=FRESH, alive=True)
    assert error == ErrorCode.duplicate_broker_registration.value
    assert world.state.brokers[1].broker_epoch == 101


def test_proof_of_a_clean_shutdown_counts_more_than_a_session_that_seems_alive() -> None:
    world = _world()
    error, epoch = world.register(1, incarnation=FRESH, previous=101, alive=True)
    assert (error, epoch) == (0, world.state.brokers[1].broker_epoch)
    assert epoch > 101
    error, _ = world.register(2, incarnation=FRESH + 1, previous=101, alive=True)
    assert error == ErrorCode.duplicate_broker_registration.value, "epoch of another broker"


def test_unknown_ids_and_other_clusters_are_refused_with_advice() -> None:
    world = _world()
    draft = world.draft()
    for request, error, word in (
        (registration_request(9, incarnation=1), ErrorCode.broker_id_not_registered, "Create one"),
        (
            registration_request(1, incarnation=1, cluster_id="other"),
            ErrorCode.inconsistent_cluster_id,
            "cluster.id of the broker is other",
        ),
    ):
        response = registration.register(
            draft, request, session_alive=False, session_timeout_ms=SESSION_MS
        )
        assert response.error_code == error.value
        assert word in (response.error_message or "")
    assert world.commit(draft).empty


def test_broker_epochs_are_never_reused() -> None:
    world = ControllerWorld(brokers=[BrokerInfo(node_id=1, key="ns/b1")], epoch=3)
    _, first = world.register(1, incarnation=1)
    world.state.drop_broker(1)
    world.state.put_broker(BrokerInfo(node_id=1, key="ns/b1"))
    _, second = world.register(1, incarnation=2)
    # Broker epochs start at the controller epoch in the upper bits.
    assert first > 3 << 24
    assert second > first
    later = ControllerWorld(brokers=[BrokerInfo(node_id=1, key="ns/b1")], epoch=4)
    assert later.register(1, incarnation=3)[1] > second


def test_a_broker_is_unfenced_only_after_a_full_snapshot_of_this_controller() -> None:
    world = _world()
    world.register(1, incarnation=FRESH)
    assert world.beat(1, snapshot_controller_epoch=-1) == (0, True, True)
    # A snapshot of the former controller, epoch 6, is outdated.
    assert world.beat(1, snapshot_controller_epoch=6) == (0, True, True)
    assert world.row(1).leader == -1
    assert world.beat(1) == (0, False, True)
    assert world.row(1).leader == 1


def test_blocked_event_loop_is_not_alive() -> None:
    world = _world()
    world.register(1, incarnation=FRESH)
    assert world.beat(1, loop_age_ms=SESSION_MS) == (0, True, False)


def test_a_heartbeat_of_a_former_registration_is_answered_with_register() -> None:
    world = _world()
    assert world.beat(1, broker_epoch=3)[0] == ErrorCode.stale_broker_epoch.value


def test_controlled_shutdown_moves_leaders() -> None:
    world = _world()
    draft = world.draft()
    beat = dataclasses.replace(_beat(world, 1), want_shut_down=True)
    response, _ = registration.heartbeat(draft, beat, session_timeout_ms=SESSION_MS)
    world.commit(draft)
    assert response.should_shut_down
    assert (world.row(0).leader, world.row(0).isr) == (2, (2,))
    assert (world.row(1).leader, world.row(1).isr) == (-1, (1,))
    # The clean shutdown gives the broker the proof for its next start.
    _, epoch = world.register(1, incarnation=FRESH, previous=101)
    assert epoch > 101
    assert world.beat(1)[1] is False
    assert world.row(1).leader == 1


def test_heartbeat_without_the_request_cancels_the_shutdown() -> None:
    """A live broker with heartbeats must not stay out of the ISR permanently."""
    world = _world()
    for wants_shut_down in (True, False):
        draft = world.draft()
        beat = dataclasses.replace(_beat(world, 1), want_shut_down=wants_shut_down)
        response, _ = registration.heartbeat(draft, beat, session_timeout_ms=SESSION_MS)
        world.commit(draft)
        assert response.should_shut_down is wants_shut_down
        assert world.state.brokers[1].live is not wants_shut_down
    assert world.row(1).leader == 1, "what waited for it has its leader back"


def _beat(world: ControllerWorld, node_id: int) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=node_id,
        broker_epoch=world.state.brokers[node_id].broker_epoch,
        snapshot_controller_epoch=7,
        loop_age_ms=0,
        want_shut_down=False,
    )


@pytest.mark.parametrize(
    ("stored", "rows", "fenced"),
    [
        (True, [row((1, 2), isr=(1, 2))], False),
        (True, [row((1,), isr=(1,), leader=-1)], True),
        (False, [], False),
        (True, [], True),
    ],
)
def test_at_a_takeover_the_slices_name_the_unfenced_brokers(
    stored: bool, rows: list[object], fenced: bool
) -> None:
    assert registration.fenced_at_take_over(1, stored, rows) is fenced  # type: ignore[arg-type]


def test_a_broker_with_the_last_copy_cannot_be_removed() -> None:
    world = _world()
    assert registration.removal_blockers(world.draft(), 1) == [(numbered_uuid(1), 1)]
    assert registration.removal_blockers(world.draft(), 2) == [(numbered_uuid(1), 2)]


def test_broker_needed_for_min_isr_cannot_be_removed() -> None:
    """Removing it would leave acknowledged records on one replica, with possibly unsynced data.

    With a minimum of 2, one failure must not lose a record.
    """
    world = ControllerWorld(
        brokers=[broker(1, fenced=True), broker(2)],
        topics=[topic(config={"min.insync.replicas": "2"})],
        rows=[
            # In the ISR's place as eligible replica, out of every set, with enough others, and
            # unproven: the leader may have crashed, too, and not be fenced yet.
            row((2, 1, -1), isr=(2,), elr=(1,), partition=0),
            row((2, 1, -1), isr=(2,), partition=1),
            row((2, 3, 1), isr=(2, 3), partition=2),
            row((2, 1, -1), isr=(2,), last_known_elr=(1,), partition=3),
        ],
    )
    needed = [(numbered_uuid(1), 0), (numbered_uuid(1), 3)]
    assert registration.removal_blockers(world.draft(), 1) == needed


def test_a_removed_broker_leaves_placeholders_behind() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)], topics=[topic()], rows=[row((1, 2, -1), isr=(1, 2))]
    )
    draft = world.draft()
    registration.remove_broker(draft, 1)
    world.commit(draft)
    # The free placeholder number -2, because -1 is in use.
    assert world.row() == row((-2, 2, -1), isr=(2,), leader=2, leader_epoch=1, partition_epoch=1)
    assert world.state.partitions.keys_on(1) == frozenset()


# ---------------------------------------------------------------- deleted and recreated Brokers


def test_a_broker_that_is_being_deleted_registers_and_takes_no_new_replica() -> None:
    world = _world()
    world.state.put_broker(dataclasses.replace(world.state.brokers[1], deleting=True))
    assert world.register(1, incarnation=FRESH)[0] == 0
    world.beat(1)
    assert world.row(1).leader == 1, "its partitions stay online until it may go"
    assert [candidate.node_id for candidate in catch_up_limits.takers(world.draft())] == [2]


def recreated_brokers(world: ControllerWorld, *node_ids: int) -> ControllerWorld:
    """Return the world of a next operator, with the slices and new, empty Broker objects."""
    brokers = [BrokerInfo(node_id=node_id, key=f"ns/new-{node_id}") for node_id in node_ids]
    after = ControllerWorld(brokers=brokers, topics=world.state.topics.values(), epoch=8)
    for index, payload in world.slices.items():
        commit.load_slice(after.state, index, payload)
    return after


def world_with_directories() -> ControllerWorld:
    """Return a world whose slices contain rows and the log directories of their brokers."""
    world = _world()
    for write in commit.take_over(world.state):
        world.slices[write.index] = dict(write.payload)
        commit.apply(world.state, write)
    return world


def test_recreated_broker_on_the_same_disk_keeps_its_copies() -> None:
    world = recreated_brokers(world_with_directories(), 1, 2)
    assert world.register(1, incarnation=FRESH)[0] == 0
    world.beat(1)
    assert (world.row(1).leader, world.row(1).isr) == (1, (1,))


def test_recreated_broker_on_another_disk_has_lost_its_copies() -> None:
    world = recreated_brokers(world_with_directories(), 1, 2)
    draft = world.draft()
    request = registration_request(1, incarnation=FRESH, directory=77)
    registration.register(draft, request, session_alive=False, session_timeout_ms=SESSION_MS)
    events = {event.reason: event.message for event in world.commit(draft).events}
    assert (world.row(1).leader, world.row(1).holders) == (-1, ())
    assert "with another log directory" in events["BrokerRegistered"]
    assert "LastCopyMissing" in events


def test_unknown_former_directory_counts_as_unproven() -> None:
    """The slices are of a release without directories, and the Broker object is new."""
    world = _world()
    world.state.put_broker(BrokerInfo(node_id=1, key="ns/broker-1"))
    world.register(1, incarnation=FRESH)
    assert (world.row(0).isr, world.row(1).isr) == ((2,), (1,))
    (known,) = {
        content.directories[1] for content in world.state.slices if 1 in content.directories
    }
    assert known == world.state.brokers[1].directory_id, "and from now on it is known"


def test_recreated_broker_objects_lose_no_records() -> None:
    """After a restore from a backup, the processes continue, but their objects are new."""
    world = recreated_brokers(world_with_directories(), 1, 2)
    for node_id in (1, 2):
        assert world.register(node_id, incarnation=1000 + node_id)[0] == 0
    for node_id in (1, 2):
        # Both are unfenced, and each leads where it was the last member.
        world.beat(node_id)
    assert (world.row(1).leader, world.row(1).isr) == (1, (1,))
    assert (world.row(2).leader, world.row(2).isr) == (2, (2,))
    assert world.row(0).leader == -1, "both have everything, or one has lost some: ask both"
    assert set(world.row(0).holders) == {1, 2}
    # Both may have lost unsynced records, so both logs are compared.
    assert [world.replica_logs.unanswered(world.state, n)[0][1] for n in (1, 2)] == [0, 0]


def test_slices_name_the_directories_of_the_brokers_in_them_and_no_others() -> None:
    world = world_with_directories()
    index = world.state.slice_index((numbered_uuid(1), 0))
    assert set(world.state.slices[index].directories) == {1, 2}
    state = ControllerState(controller_id="b", controller_epoch=9, cluster=world.state.cluster)
    commit.load_slice(state, index, world.slices[index])
    assert state.slices[index].directories == world.state.slices[index].directories
    draft = world.draft()
    registration.remove_broker(draft, 1)
    world.commit(draft)
    assert set(world.state.slices[index].directories) == {2}


def test_slice_without_directories_is_readable() -> None:
    world = world_with_directories()
    index = world.state.slice_index((numbered_uuid(1), 0))
    # The format of a release that did not record directories.
    old = {key: value for key, value in world.slices[index].items() if key != "directories"}
    commit.load_slice(world.state, index, old)
    assert world.state.slices[index].directories == {}


def test_broker_without_its_object_leads_nothing() -> None:
    world = _world()
    world.state.drop_broker(1)
    draft = world.draft()
    elections.broker_gone(draft, 1)
    world.commit(draft)
    assert (world.row(0).leader, world.row(0).isr) == (2, (2,))
    assert (world.row(1).leader, world.row(1).isr) == (-1, (1,))


# ---------------------------------------------------------------- killed processes


def test_a_killed_process_is_replaced_as_soon_as_its_connections_are_closed() -> None:
    """Its session may last some seconds longer, but the new process has the directory's lock."""
    world = _world()
    draft = world.draft()
    request = registration_request(1, incarnation=FRESH)
    # First the connections are open, then the kernel has closed them.
    for connected, error in ((True, 101), (False, 0)):
        response = registration.register(
            draft,
            request,
            session_alive=True,
            connected=connected,
            session_timeout_ms=SESSION_MS,
        )
        assert response.error_code == error


def test_another_directory_is_refused_as_long_as_the_session_lasts() -> None:
    world = _world()
    # Another directory is another copy: the former process may still write to its own.
    draft = world.draft()
    request = registration_request(1, incarnation=FRESH, directory=77)
    response = registration.register(
        draft, request, session_alive=True, connected=False, session_timeout_ms=SESSION_MS
    )
    assert response.error_code == ErrorCode.duplicate_broker_registration.value


@pytest.mark.parametrize("previous", [2**63 - 2, 2_000_000 << 24])
def test_implausible_previous_epoch_is_refused(previous: int) -> None:
    """Otherwise the epoch would rise above the reported one permanently."""
    world = _world()
    error, _ = world.register(1, incarnation=5000, previous=previous)
    assert error == int(ErrorCode.invalid_registration.value)
    error, epoch = world.register(2, incarnation=6000)
    assert (error, epoch < 2**40) == (0, True)


@pytest.mark.parametrize(
    ("adding", "removing", "after"),
    [((3,), (1,), (2, 3)), ((1,), (3,), (2, 3)), ((), (), (2, -1, 3))],
    ids=["leaving", "joining", "staying"],
)
def test_removed_broker_in_a_move_leaves_no_placeholder(
    adding: tuple[int, ...], removing: tuple[int, ...], after: tuple[int, ...]
) -> None:
    """Otherwise one replica too many is placed in the end."""
    moved = row((2, 1, 3), isr=(2,), adding=adding, removing=removing)
    world = ControllerWorld(brokers=[broker(n) for n in (1, 2, 3)], topics=[topic()], rows=[moved])
    draft = world.draft()
    # The broker is deleted while it is being added, or while it is being removed.
    registration.remove_broker(draft, 1)
    world.commit(draft)
    assert world.row().replicas == after
    assert 1 not in world.row().adding + world.row().removing


def test_min_isr_applies_while_the_successor_catches_up() -> None:
    """Otherwise one replica would be enough while the other one catches up."""
    view = topic(replication_factor=2, config={"min.insync.replicas": "2"})
    moved = row((2, 3, 1), isr=(2, 1), adding=(3,), removing=(1,))
    world = ControllerWorld(brokers=[broker(n) for n in (1, 2, 3)], topics=[view], rows=[moved])
    draft = world.draft()
    registration.remove_broker(draft, 1)
    world.commit(draft)
    assert (world.row().replicas, world.row().adding) == ((2, 3), ())
    assert world.state.min_isr(world.row()) == 2
