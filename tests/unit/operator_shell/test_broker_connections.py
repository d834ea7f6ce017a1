"""Own brokers behind the engine's interface: snapshots, changes, and requests with answers."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.controller.controller_world import (
    ControllerWorld,
    broker,
    numbered_uuid,
    row,
    topic,
)
from tidemark.tiering import DisablePolicy
from tidemark.wire import control, deletions
from tidemark.wire.users import UserStatesRequest, UserStatesResponse
from tidemark_operator.controller.state.commit import apply, plan
from tidemark_operator.controller.state.users import UserInfo
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.own import link as link_module
from tidemark_operator.engines.own import user_link
from tidemark_operator.engines.own.broker_connections import OwnBrokers

ID = numbered_uuid(1)
STATES = control.PartitionStatesRequest
DISABLEMENT = control.DisableRemoteTopicRequest(
    controller_epoch=7,
    topic_id=ID,
    tiered_epoch=3,
    disable_policy=int(DisablePolicy.DELETE),
    partitions=(0,),
    timeout_ms=1000,
)


class FakeChannel:
    """Command connection: ``answer`` handles each request, and states are applied by default."""

    def __init__(self, broker_id: int = 1) -> None:
        self.broker_id = broker_id
        self.closed = False
        self.last_command = deletions.DELETE_TOPIC_RECORDS
        self.broker_epoch = 100 + broker_id
        self.sent: list[Any] = []
        self.users: list[UserStatesRequest] = []
        self.take_users: Callable[[Any], Any] = lambda _: known()
        self.answer: Callable[[Any], Any] = lambda request: request
        self.states: Callable[[STATES], control.PartitionStatesResponse] = applied
        self.requested_event = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(self, request: Any, response_type: type, timeout_s: float) -> Any:
        (self.users if isinstance(request, UserStatesRequest) else self.sent).append(request)
        self.requested_event.set()
        await self.gate.wait()
        if self.closed:
            raise ConnectionResetError("failed")
        if isinstance(request, UserStatesRequest):
            return self.take_users(request)
        return self.states(request) if isinstance(request, STATES) else self.answer(request)

    async def call_large(self, request: Any, response_type: type, timeout_s: float) -> Any:
        return await self.call(request, response_type, timeout_s)

    def close_threadsafe(self) -> None:
        self.closed = True


def applied(request: STATES, *errors: control.PartitionError) -> control.PartitionStatesResponse:
    return control.PartitionStatesResponse(error_code=0, broker_epoch=101, errors=errors)


def known(error_code: int = 0) -> UserStatesResponse:
    return UserStatesResponse(error_code=error_code, broker_epoch=101)


class LinkListener:
    """Listener of the links that records its calls."""

    def __init__(self) -> None:
        self.applied: list[bool] = []
        self.stale: list[int] = []
        self.users: list[int] = []

    def on_users(self, node_id: int) -> None:
        self.users.append(node_id)

    def on_states(self, node_id: int, request: STATES, response: Any) -> None:
        self.applied.append(request.full)

    def on_stale(self, node_id: int) -> None:
        self.stale.append(node_id)


class EngineBench:
    """Engine with one topic of four partitions, and a command connection of broker 1."""

    def __init__(self) -> None:
        self.world = ControllerWorld(
            brokers=[broker(1), broker(2)],
            topics=[topic(partitions_placed=4, partitions=4)],
            rows=[row((1, 2), partition=number) for number in range(4)],
        )
        self.listener = LinkListener()
        self.brokers = OwnBrokers(self.world.state, self.listener)
        self.channel = FakeChannel()

    async def attach(self) -> None:
        self.brokers.attach(self.channel)  # type: ignore[arg-type]
        await self.nth_request(1)

    async def nth_request(self, number: int) -> Any:
        """Return the last request once there are ``number`` of them."""
        async with asyncio.timeout(5):
            while len(self.channel.sent) < number:
                self.channel.requested_event.clear()
                await self.channel.requested_event.wait()
        # Let the link record the acknowledgement before the test continues.
        await asyncio.sleep(0.001)
        return self.channel.sent[-1]

    async def ended(self) -> None:
        async with asyncio.timeout(5):
            await asyncio.gather(*self.brokers._tasks)


@pytest.fixture
async def engine() -> AsyncIterator[EngineBench]:
    made = EngineBench()
    yield made
    await made.brokers.close()


# ---------------------------------------------------------------- states


async def test_a_full_snapshot_is_sent_first_and_requests_wait_for_it(
    engine: EngineBench,
) -> None:
    # The broker has attached, but it has not acknowledged its snapshot.
    engine.channel.gate.clear()
    engine.brokers.attach(engine.channel)  # type: ignore[arg-type]
    await asyncio.sleep(0.001)
    assert not engine.brokers.connected(1)
    with pytest.raises(EngineUnavailable):
        await engine.brokers.disable_tiering(1, DISABLEMENT)
    engine.channel.gate.set()
    snapshot = await engine.nth_request(1)
    assert snapshot.full
    assert len(snapshot.topics[0].partitions) == 4
    assert len(snapshot.brokers) == 2
    assert engine.brokers.connected(1)
    assert engine.listener.applied == [True]


async def test_changes_during_a_push_are_sent_together_in_their_latest_state(
    engine: EngineBench,
) -> None:
    await engine.attach()
    # The first change is in flight while two more are published.
    engine.channel.gate.clear()
    engine.brokers.publish(rows=[(ID, 0)])
    await asyncio.sleep(0.001)
    engine.brokers.publish(rows=[(ID, 1)])
    engine.brokers.publish(rows=[(ID, 2)])
    engine.channel.gate.set()
    change = await engine.nth_request(3)
    assert not change.full
    assert [part.partition for part in change.topics[0].partitions] == [1, 2]
    assert change.brokers == (), "they have not changed since the snapshot"


async def test_a_changed_topic_is_pushed_with_all_its_partitions(engine: EngineBench) -> None:
    await engine.attach()
    engine.brokers.publish(topics=["ns/topic-1", "ns/unknown"])
    change = await engine.nth_request(2)
    assert [part.partition for part in change.topics[0].partitions] == [0, 1, 2, 3]


async def test_a_changed_list_of_brokers_is_pushed_again(engine: EngineBench) -> None:
    await engine.attach()
    engine.world.state.put_broker(broker(3))
    engine.brokers.publish()
    assert len((await engine.nth_request(2)).brokers) == 3


async def test_the_stores_credentials_are_pushed_once_and_after_each_change(
    engine: EngineBench,
) -> None:
    state = engine.world.state

    def store(text: str) -> None:
        state.cluster = dataclasses.replace(state.cluster, remote_storage=text, store_id="s")

    # The credentials are sent with the snapshot and omitted while they are unchanged.
    store("with a secret")
    await engine.attach()
    assert engine.channel.sent[-1].remote_storage == "with a secret"
    engine.brokers.publish()
    known = await engine.nth_request(2)
    assert (known.remote_storage, known.storage_as_before) == ("", True)
    # Changed credentials, then a cluster without remote storage.
    store("with another secret")
    engine.brokers.publish()
    changed = await engine.nth_request(3)
    assert (changed.remote_storage, changed.store_id) == ("with another secret", "s")
    assert not changed.storage_as_before
    store("")
    engine.brokers.publish()
    assert not (await engine.nth_request(4)).storage_as_before


async def test_committed_changes_are_pushed_at_the_flush_and_removals_to_the_brokers_concerned(
    engine: EngineBench,
) -> None:
    await engine.attach()
    state, draft = engine.world.state, engine.world.draft()
    # Broker 1 loses its replica: broker 2 gets the state, broker 1 the removal.
    draft.put_row(row((2,), partition=0, partition_epoch=1))
    for write in plan(draft).writes:
        engine.brokers.slice_stored(state, write)
        apply(state, write)
    await asyncio.sleep(0.005)
    assert len(engine.channel.sent) == 1, "not before the whole group is stored"
    engine.brokers.flush()
    change = await engine.nth_request(2)
    assert [part.replicas for part in change.topics[0].partitions] == [(2,)]
    assert [removal.partition for removal in change.removals] == [0]


async def test_an_election_is_sent_before_the_rest_of_its_group_is_stored(
    engine: EngineBench,
) -> None:
    await engine.attach()
    state, draft = engine.world.state, engine.world.draft()
    draft.put_row(row((1, 2), leader=2, isr=(2,), leader_epoch=1, partition_epoch=1))
    (write,) = plan(draft).writes
    engine.brokers.slice_stored(state, write)
    apply(state, write)
    # No flush: other slices of the group are still being written.
    change = await engine.nth_request(2)
    (sent,) = change.topics[0].partitions
    assert (sent.leader, sent.leader_epoch) == (2, 1)


async def test_a_large_change_is_sent_in_parts(
    engine: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four partitions in parts of at most three.
    monkeypatch.setattr(link_module, "DELTA_ROWS_MAX", 3)
    await engine.attach()
    engine.brokers.publish(topics=["ns/topic-1"])
    await engine.nth_request(3)
    parts = [len(request.topics[0].partitions) for request in engine.channel.sent[1:]]
    assert parts == [3, 1]


async def test_failed_partition_state_is_pushed_again(
    engine: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "REPEAT_S", 0.01)
    # 56 is KAFKA_STORAGE_ERROR. The broker keeps refusing this partition.
    error = control.PartitionError(topic_id=ID, partition=2, error_code=56, message="disk")
    engine.channel.states = lambda request: applied(request, error)
    await engine.attach()
    again = await engine.nth_request(3)
    assert [part.partition for part in again.topics[0].partitions] == [2]


async def test_a_failed_state_of_a_deleted_topic_is_forgotten(
    engine: EngineBench,
) -> None:
    """Otherwise it would be requested every few seconds, for ever."""
    await engine.attach()
    link = engine.brokers._links[1]
    topic_id = numbered_uuid(1)
    error = control.PartitionError(
        topic_id=topic_id, partition=0, error_code=56, message="the disk"
    )
    # Failed states of the deleted topic, and of another one.
    link.errors[topic_id, 0] = error
    link.errors[numbered_uuid(2), 0] = error
    topic_removal = control.Removal(topic_id=topic_id, partition=-1, partition_epoch=-1)
    link.add(removals=[topic_removal])
    await engine.nth_request(2)
    assert set(link.errors) == {(numbered_uuid(2), 0)}


async def test_broker_with_a_higher_controller_epoch_is_disconnected(
    engine: EngineBench,
) -> None:
    stale = int(ErrorCode.stale_controller_epoch)
    engine.channel.states = lambda _: control.PartitionStatesResponse(
        error_code=stale, broker_epoch=101, errors=()
    )
    engine.brokers.attach(engine.channel)  # type: ignore[arg-type]
    await engine.ended()
    assert engine.listener.stale == [1]
    assert engine.channel.closed
    assert not engine.brokers.connected(1)


async def test_reattached_broker_receives_a_full_snapshot(engine: EngineBench) -> None:
    await engine.attach()
    # The broker's connection breaks, which the next push notices.
    engine.channel.closed = True
    engine.brokers.publish()
    await engine.ended()
    engine.channel = FakeChannel()
    await engine.attach()
    assert engine.channel.sent[0].full
    assert engine.brokers.connected(1)


# ---------------------------------------------------------------- requests


async def test_disablement_carries_the_controller_epoch_and_its_answer_is_converted(
    engine: EngineBench,
) -> None:
    await engine.attach()
    result = control.DisableRemoteTopicResult(
        partition=0,
        error_code=0,
        leader_epoch=5,
        is_leader=True,
        local_log_start_offset=9,
        message="",
    )
    engine.channel.answer = lambda request: control.DisableRemoteTopicResponse(
        error_code=0, broker_epoch=101, tiered_epoch=request.tiered_epoch, results=(result,)
    )
    answer = await engine.brokers.disable_tiering(1, DISABLEMENT)
    sent = engine.channel.sent[-1]
    # 7 is the epoch of this world's controller, and 1 the policy Delete on the wire.
    assert (sent.controller_epoch, sent.tiered_epoch, sent.disable_policy) == (7, 3, 1)
    assert (answer.broker_epoch, answer.tiered_epoch) == (101, 3)
    (part,) = answer.results
    assert (part.partition, part.leader_epoch, part.is_leader) == (0, 5, True)


async def test_an_answer_with_a_top_level_error_has_no_entries(engine: EngineBench) -> None:
    await engine.attach()
    engine.channel.answer = lambda _: control.DisableRemoteTopicResponse(
        # 11 is STALE_CONTROLLER_EPOCH.
        error_code=11,
        broker_epoch=101,
        tiered_epoch=3,
        results=(),
    )
    with pytest.raises(EngineUnavailable, match="error 11"):
        await engine.brokers.disable_tiering(1, DISABLEMENT)
    engine.channel.answer = lambda _: control.ReplicaLogInfoResponse(
        error_code=11, broker_epoch=101, logs=()
    )
    with pytest.raises(EngineUnavailable, match="error 11"):
        await engine.brokers.replica_logs(1, [(ID, 0)])


async def test_failed_tier_deletion_reports_its_progress(
    engine: EngineBench,
) -> None:
    await engine.attach()
    engine.channel.answer = lambda _: control.DeleteRemoteTopicResponse(
        error_code=56, remaining_segments=2, message="no such bucket"
    )
    deletion = control.DeleteRemoteTopicRequest(
        controller_epoch=7, topic_id=ID, name="t", tiered_epoch=0, partitions=4
    )
    answer = await engine.brokers.empty_tier(1, deletion)
    assert (answer.error_code, answer.message) == (56, "no such bucket")
    assert engine.channel.sent[-1].controller_epoch == 7


async def test_ends_of_logs_are_requested_by_topic_and_returned_by_partition(
    engine: EngineBench,
) -> None:
    await engine.attach()
    log = control.ReplicaLog(
        topic_id=ID,
        partition=1,
        error_code=0,
        last_epoch=4,
        # The log ends at 80, and the offsets 80 to 89 were lost in a crash.
        next_offset=80,
        leader_epoch=5,
        lost_start_offset=80,
        lost_end_offset=90,
    )
    engine.channel.answer = lambda _: control.ReplicaLogInfoResponse(
        error_code=0, broker_epoch=101, logs=(log,)
    )
    answer = await engine.brokers.replica_logs(1, [(ID, 1), (ID, 0)])
    (requested,) = engine.channel.sent[-1].topics
    # Partitions of one topic share an entry of the request.
    assert (requested.topic_id, requested.partitions) == (ID, (0, 1))
    (found,) = answer.logs
    assert found == log


COMMAND = [deletions.PartitionDeletion(partition=0, offset=7, leader_epoch=4, last_epoch=3)]


async def test_record_deletion_names_topic_id_and_leader_epoch(
    engine: EngineBench,
) -> None:
    """A name may be reused, and a leader may have missed later changes."""
    await engine.attach()
    point = deletions.DeletionPoint(
        partition=0,
        error_code=0,
        log_start_offset=1,
        high_watermark=42,
        offset=7,
        last_epoch=3,
        size_bytes=-1,
    )
    engine.channel.answer = lambda _: deletions.DeletionPointsResponse(
        error_code=0, points=(point,)
    )
    # The two forms of a query: by offset and by time.
    queries = [
        deletions.DeletionPointQuery(partition=0, leader_epoch=4, before_offset=7),
        deletions.DeletionPointQuery(partition=1, leader_epoch=5, before_time_ms=99),
    ]
    assert await engine.brokers.deletion_points(1, ID, queries) == (point,)
    assert engine.channel.sent[-1] == deletions.DeletionPointsRequest(
        controller_epoch=7, topic_id=ID, partitions=tuple(queries)
    )
    # Records below the offset were lost from offset 5, in an unclean election.
    failed = deletions.PartitionDeletionResult(
        partition=0, error_code=1, low_watermark=-1, lost_from_offset=5
    )
    engine.channel.answer = lambda _: deletions.DeleteTopicRecordsResponse(
        error_code=0, results=(failed,)
    )
    assert await engine.brokers.delete_records(1, ID, COMMAND, 1000) == (failed,)
    assert engine.channel.sent[-1] == deletions.DeleteTopicRecordsRequest(
        controller_epoch=7, topic_id=ID, timeout_ms=1000, partitions=tuple(COMMAND)
    )


async def test_broker_of_a_later_controller_refuses_record_deletion(engine: EngineBench) -> None:
    await engine.attach()
    engine.channel.answer = lambda _: deletions.DeleteTopicRecordsResponse(
        error_code=11, results=()
    )
    with pytest.raises(EngineUnavailable, match="error 11"):
        await engine.brokers.delete_records(1, ID, COMMAND, 1000)
    engine.channel.answer = lambda _: deletions.DeletionPointsResponse(error_code=11, points=())
    with pytest.raises(EngineUnavailable, match="error 11"):
        await engine.brokers.deletion_points(1, ID, [])


async def test_unknown_commands_are_not_sent_to_an_earlier_version(
    engine: EngineBench,
) -> None:
    # The broker announced no commands beyond the first version when it attached.
    engine.channel.last_command = 0
    await engine.attach()
    sent = len(engine.channel.sent)
    with pytest.raises(EngineUnavailable, match="has an earlier version"):
        await engine.brokers.deletion_points(1, ID, [])
    with pytest.raises(EngineUnavailable, match="has an earlier version"):
        await engine.brokers.delete_records(1, ID, COMMAND, 1000)
    assert len(engine.channel.sent) == sent


async def test_disconnected_or_slow_broker_is_unavailable(engine: EngineBench) -> None:
    with pytest.raises(EngineUnavailable, match="no command connection"):
        await engine.brokers.replica_logs(2, [])
    await engine.attach()

    def late(_: Any) -> None:
        raise TimeoutError

    engine.channel.answer = late
    with pytest.raises(EngineUnavailable, match="no answer in"):
        await engine.brokers.replica_logs(1, [])
    engine.channel.closed = True
    with pytest.raises(EngineUnavailable, match="failed"):
        await engine.brokers.replica_logs(1, [])


# ---------------------------------------------------------------- users


def put_user(engine: EngineBench, name: str) -> None:
    info = UserInfo(key=f"ns/{name}", uid=name, username=name, generation=1)
    engine.world.state.users.put(info, info.state(()))
    engine.brokers.publish_users()


async def pushed_users(engine: EngineBench, number: int) -> Any:
    """Return the names in the last command with users once there are ``number`` of them."""
    async with asyncio.timeout(5):
        while len(engine.channel.users) < number:
            engine.channel.requested_event.clear()
            await engine.channel.requested_event.wait()
    await asyncio.sleep(0.005)
    assert len(engine.channel.users) == number
    return [user.name for user in engine.channel.users[-1].users]


async def test_users_are_pushed_once_the_snapshot_is_applied(engine: EngineBench) -> None:
    put_user(engine, "alice")
    # While the snapshot is unacknowledged, no users are sent.
    engine.channel.gate.clear()
    engine.brokers.attach(engine.channel)  # type: ignore[arg-type]
    await asyncio.sleep(0.005)
    assert engine.channel.users == []
    engine.channel.gate.set()
    assert await pushed_users(engine, 1) == ["alice"]
    assert engine.channel.users[0].controller_epoch == 7
    assert engine.listener.users == [1]


async def test_an_empty_list_of_users_is_pushed_too(engine: EngineBench) -> None:
    """A former controller may have pushed users that do not exist any more."""
    await engine.attach()
    assert await pushed_users(engine, 1) == []


async def test_unknown_users_are_not_pushed(engine: EngineBench) -> None:
    users = engine.world.state.users
    # The User object was found, but its Secret has not been read yet.
    users.expect("ns/alice")
    await engine.attach()
    engine.brokers.publish_users()
    await asyncio.sleep(0.005)
    assert engine.channel.users == []
    assert engine.brokers.users_behind(users.version) == [1]
    put_user(engine, "alice")
    assert await pushed_users(engine, 1) == ["alice"]
    assert engine.brokers.users_behind(users.version) == []


async def test_a_change_during_a_push_of_users_is_pushed_once_and_completely(
    engine: EngineBench,
) -> None:
    await engine.attach()
    await pushed_users(engine, 1)
    engine.channel.gate.clear()
    put_user(engine, "alice")
    assert await pushed_users(engine, 2) == ["alice"]
    # Three changes while the push of alice is unanswered.
    put_user(engine, "bob")
    put_user(engine, "carol")
    engine.world.state.users.drop("ns/alice")
    await asyncio.sleep(0.005)
    assert len(engine.channel.users) == 2, "at most one is under way"
    engine.channel.gate.set()
    assert await pushed_users(engine, 3) == ["bob", "carol"]


async def test_known_states_are_not_pushed_again(engine: EngineBench) -> None:
    await engine.attach()
    await pushed_users(engine, 1)
    put_user(engine, "alice")
    await pushed_users(engine, 2)
    engine.brokers.publish_users()
    engine.brokers.publish()
    await asyncio.sleep(0.02)
    assert await pushed_users(engine, 2) == ["alice"]


async def test_unacknowledged_users_are_pushed_again(
    engine: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_link, "REPEAT_S", 0.01)
    # The first attempt times out, and the second one fails on the broker.
    failures: list[Any] = [TimeoutError(), known(error_code=56)]

    def take(_: Any) -> UserStatesResponse:
        failure = failures.pop(0) if failures else known()
        if isinstance(failure, TimeoutError):
            raise failure
        return failure

    engine.channel.take_users = take
    put_user(engine, "alice")
    await engine.attach()
    assert await pushed_users(engine, 3) == ["alice"]
    assert engine.brokers.users_behind(engine.world.state.users.version) == []
    # A failure of users does not affect the connection.
    assert engine.brokers.connected(1), "pushes of partition states continue meanwhile"


async def test_stale_epoch_is_detected_by_a_push_of_users(engine: EngineBench) -> None:
    engine.channel.take_users = lambda _: known(int(ErrorCode.stale_controller_epoch))
    await engine.attach()
    await pushed_users(engine, 1)
    assert engine.listener.stale == [1]
    assert engine.brokers.users_behind(1) == [1]


async def test_partitions_states_do_not_wait_for_users(engine: EngineBench) -> None:
    answered = asyncio.Event()

    async def slow(request: Any, *_: Any) -> Any:
        if isinstance(request, UserStatesRequest):
            engine.channel.users.append(request)
            await answered.wait()
            return known()
        return await FakeChannel.call(engine.channel, request, *_)

    engine.channel.call = slow  # type: ignore[method-assign]
    await engine.attach()
    engine.brokers.publish(rows=[(ID, 0)])
    assert not (await engine.nth_request(2)).full
    assert engine.brokers.users_behind(1) == [1]


async def test_broker_that_closes_on_users_is_retried_after_a_pause(
    engine: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of an earlier version does not know the command, and continues to serve."""

    def ends(_: Any) -> Any:
        engine.channel.closed = True
        raise ConnectionResetError("unknown command")

    engine.channel.take_users = ends
    await engine.attach()
    await pushed_users(engine, 1)
    engine.brokers.publish()
    await engine.ended()
    # The same process attaches again: no users before the pause is over.
    engine.channel = FakeChannel()
    await engine.attach()
    await asyncio.sleep(0.01)
    assert engine.channel.users == [], "the first pause is a second"
    assert engine.brokers.connected(1)
    engine.channel.closed = True
    engine.brokers.publish()
    await engine.ended()
    engine.channel = FakeChannel()
    # A new process may have a newer version, so the pause does not apply to it.
    engine.channel.broker_epoch += 1
    await engine.attach()
    assert await pushed_users(engine, 1) == [], "another process gets them at once"


async def test_pushes_of_users_pause_as_long_as_the_last_one_took(
    engine: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of Users that are created one by one are pushed together."""
    # Pause a hundred times as long as the push took, for at most 0.3 s.
    monkeypatch.setattr(user_link, "PAUSES", 100)
    monkeypatch.setattr(user_link, "PAUSE_MOST_S", 0.3)
    await engine.attach()
    await pushed_users(engine, 1)
    engine.channel.gate.clear()
    put_user(engine, "first")
    await pushed_users(engine, 2)
    # This push takes 10 ms, so that the pause is noticeable.
    await asyncio.sleep(0.01)
    engine.channel.gate.set()
    for number in range(20):
        put_user(engine, f"user-{number}")
        await asyncio.sleep(0)
    assert len(engine.channel.users) == 2
    async with asyncio.timeout(5):
        while len(engine.channel.users) < 3:
            engine.channel.requested_event.clear()
            await engine.channel.requested_event.wait()
    assert len(engine.channel.users[-1].users) == 21
