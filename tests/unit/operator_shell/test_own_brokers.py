"""Our own brokers behind the engine's interface: snapshots, changes, and questions with answers."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.controller.controller_world import World, broker, numbered_uuid, row, topic
from tidemark.tiering import DisablePolicy
from tidemark.wire import control, deletions
from tidemark.wire.users import UserStatesRequest, UserStatesResponse
from tidemark_operator.controller.broker_calls import Disablement, TierDeletion
from tidemark_operator.controller.commit import apply, plan
from tidemark_operator.controller.deletion_values import (
    DeleteCommand,
    DeletionPoint,
    DeletionPointQuery,
    PartitionDeletion,
    PartitionDeletionResult,
)
from tidemark_operator.controller.model import LogEnd
from tidemark_operator.controller.users import UserInfo
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.own import link as link_module
from tidemark_operator.engines.own import user_link
from tidemark_operator.engines.own.own_brokers import OwnBrokers

ID = numbered_uuid(1)
STATES = control.PartitionStatesRequest
DISABLEMENT = Disablement(topic_id=ID, tiered_epoch=3, policy=DisablePolicy.DELETE, partitions=(0,))


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
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(self, request: Any, response_type: type, timeout_s: float) -> Any:
        (self.users if isinstance(request, UserStatesRequest) else self.sent).append(request)
        self.asked.set()
        await self.gate.wait()
        if self.closed:
            raise ConnectionResetError("gone")
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


class Heard:
    """Calls of the links' listener."""

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


class Engine:
    """The engine, one partition of one topic, and a command connection of broker 1."""

    def __init__(self) -> None:
        self.world = World(
            brokers=[broker(1), broker(2)],
            topics=[topic(partitions_placed=4, partitions=4)],
            rows=[row((1, 2), partition=number) for number in range(4)],
        )
        self.heard = Heard()
        self.brokers = OwnBrokers(self.world.state, self.heard)
        self.channel = FakeChannel()

    async def attach(self) -> None:
        self.brokers.attach(self.channel)  # type: ignore[arg-type]
        await self.told(1)

    async def told(self, number: int) -> Any:
        """Return the last request once there are ``number`` of them."""
        async with asyncio.timeout(5):
            while len(self.channel.sent) < number:
                self.channel.asked.clear()
                await self.channel.asked.wait()
        await asyncio.sleep(0.001)
        return self.channel.sent[-1]

    async def ended(self) -> None:
        async with asyncio.timeout(5):
            await asyncio.gather(*self.brokers._tasks)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    yield made
    await made.brokers.close()


# ---------------------------------------------------------------- states


async def test_a_full_snapshot_is_sent_first_and_requests_wait_for_it(
    engine: Engine,
) -> None:
    engine.channel.gate.clear()
    engine.brokers.attach(engine.channel)  # type: ignore[arg-type]
    await asyncio.sleep(0.001)
    assert not engine.brokers.connected(1)
    with pytest.raises(EngineUnavailable):
        await engine.brokers.disable_tiering(1, DISABLEMENT)
    engine.channel.gate.set()
    snapshot = await engine.told(1)
    assert snapshot.full
    assert len(snapshot.topics[0].partitions) == 4
    assert len(snapshot.brokers) == 2
    assert engine.brokers.connected(1)
    assert engine.heard.applied == [True]


async def test_what_changes_while_one_is_under_way_goes_together_as_it_then_is(
    engine: Engine,
) -> None:
    await engine.attach()
    engine.channel.gate.clear()
    engine.brokers.publish(rows=[(ID, 0)])
    await asyncio.sleep(0.001)
    engine.brokers.publish(rows=[(ID, 1)])
    engine.brokers.publish(rows=[(ID, 2)])
    engine.channel.gate.set()
    change = await engine.told(3)
    assert not change.full
    assert [part.partition for part in change.topics[0].partitions] == [1, 2]
    assert change.brokers == (), "they have not changed since the snapshot"


async def test_a_changed_topic_is_pushed_with_all_its_partitions(engine: Engine) -> None:
    await engine.attach()
    engine.brokers.publish(topics=["ns/topic-1", "ns/unknown"])
    change = await engine.told(2)
    assert [part.partition for part in change.topics[0].partitions] == [0, 1, 2, 3]


async def test_a_changed_list_of_brokers_is_pushed_again(engine: Engine) -> None:
    await engine.attach()
    engine.world.state.put_broker(broker(3))
    engine.brokers.publish()
    assert len((await engine.told(2)).brokers) == 3


async def test_the_stores_credentials_are_pushed_once_and_after_each_change(
    engine: Engine,
) -> None:
    state = engine.world.state

    def store(text: str) -> None:
        state.cluster = dataclasses.replace(state.cluster, remote_storage=text, store_id="s")

    store("with a secret")
    await engine.attach()
    assert engine.channel.sent[-1].remote_storage == "with a secret"
    engine.brokers.publish()
    known = await engine.told(2)
    assert (known.remote_storage, known.storage_as_before) == ("", True)
    store("with another secret")
    engine.brokers.publish()
    changed = await engine.told(3)
    assert (changed.remote_storage, changed.store_id) == ("with another secret", "s")
    assert not changed.storage_as_before
    store("")
    engine.brokers.publish()
    assert not (await engine.told(4)).storage_as_before


async def test_committed_changes_are_pushed_at_the_flush_and_removals_to_the_brokers_concerned(
    engine: Engine,
) -> None:
    await engine.attach()
    state, draft = engine.world.state, engine.world.draft()
    draft.put_row(row((2,), partition=0, partition_epoch=1))
    for write in plan(draft).writes:
        engine.brokers.landing(state, write)
        apply(state, write)
    await asyncio.sleep(0.005)
    assert len(engine.channel.sent) == 1, "not before the whole group is stored"
    engine.brokers.flush()
    change = await engine.told(2)
    assert [part.replicas for part in change.topics[0].partitions] == [(2,)]
    assert [removal.partition for removal in change.removals] == [0]


async def test_a_large_change_is_sent_in_parts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "DELTA_ROWS_MAX", 3)
    await engine.attach()
    engine.brokers.publish(topics=["ns/topic-1"])
    await engine.told(3)
    parts = [len(request.topics[0].partitions) for request in engine.channel.sent[1:]]
    assert parts == [3, 1]


async def test_a_state_that_a_broker_cannot_serve_is_pushed_again_after_a_while(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "REPEAT_S", 0.01)
    error = control.PartitionError(topic_id=ID, partition=2, error_code=56, message="disk")
    engine.channel.states = lambda request: applied(request, error)
    await engine.attach()
    again = await engine.told(3)
    assert [part.partition for part in again.topics[0].partitions] == [2]


async def test_a_failed_state_of_a_deleted_topic_is_forgotten(
    engine: Engine,
) -> None:
    """Otherwise it would be requested every few seconds, for ever."""
    await engine.attach()
    link = engine.brokers._links[1]
    topic_id = numbered_uuid(1)
    error = control.PartitionError(
        topic_id=topic_id, partition=0, error_code=56, message="the disk"
    )
    link.errors[topic_id, 0] = error
    link.errors[numbered_uuid(2), 0] = error
    whole = control.Removal(topic_id=topic_id, partition=-1, partition_epoch=-1)
    link.add(removals=[whole])
    await engine.told(2)
    assert set(link.errors) == {(numbered_uuid(2), 0)}


async def test_a_broker_under_a_higher_epoch_is_reported_and_its_connection_ends(
    engine: Engine,
) -> None:
    stale = int(ErrorCode.stale_controller_epoch)
    engine.channel.states = lambda _: control.PartitionStatesResponse(
        error_code=stale, broker_epoch=101, errors=()
    )
    engine.brokers.attach(engine.channel)  # type: ignore[arg-type]
    await engine.ended()
    assert engine.heard.stale == [1]
    assert engine.channel.closed
    assert not engine.brokers.connected(1)


async def test_a_broker_that_attaches_again_gets_everything_again(engine: Engine) -> None:
    await engine.attach()
    engine.channel.closed = True
    engine.brokers.publish()
    await engine.ended()
    engine.channel = FakeChannel()
    await engine.attach()
    assert engine.channel.sent[0].full
    assert engine.brokers.connected(1)


# ---------------------------------------------------------------- questions


async def test_a_disablement_goes_out_under_our_epoch_and_comes_back_in_the_cores_words(
    engine: Engine,
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
    asked = engine.channel.sent[-1]
    assert (asked.controller_epoch, asked.tiered_epoch, asked.disable_policy) == (7, 3, 1)
    assert (answer.broker_epoch, answer.tiered_epoch) == (101, 3)
    (part,) = answer.replicas
    assert (part.partition, part.leader_epoch, part.is_leader) == (0, 5, True)


async def test_an_answer_with_a_top_level_error_has_no_entries(engine: Engine) -> None:
    await engine.attach()
    engine.channel.answer = lambda _: control.DisableRemoteTopicResponse(
        error_code=11, broker_epoch=101, tiered_epoch=3, results=()
    )
    with pytest.raises(EngineUnavailable, match="error 11"):
        await engine.brokers.disable_tiering(1, DISABLEMENT)
    engine.channel.answer = lambda _: control.ReplicaLogInfoResponse(
        error_code=11, broker_epoch=101, logs=()
    )
    with pytest.raises(EngineUnavailable, match="error 11"):
        await engine.brokers.replica_logs(1, [(ID, 0)])


async def test_how_far_emptying_the_tier_got_is_an_answer_also_when_it_failed(
    engine: Engine,
) -> None:
    await engine.attach()
    engine.channel.answer = lambda _: control.DeleteRemoteTopicResponse(
        error_code=56, remaining_segments=2, message="no such bucket"
    )
    wanted = TierDeletion(topic_id=ID, name="t", tiered_epoch=0, partitions=4)
    answer = await engine.brokers.empty_tier(1, wanted)
    assert (answer.error_code, answer.message) == (56, "no such bucket")
    assert engine.channel.sent[-1].controller_epoch == 7


async def test_ends_of_logs_are_requested_by_topic_and_returned_by_partition(
    engine: Engine,
) -> None:
    await engine.attach()
    log = control.ReplicaLog(
        topic_id=ID,
        partition=1,
        error_code=0,
        last_epoch=4,
        next_offset=80,
        leader_epoch=5,
        lost_start_offset=80,
        lost_end_offset=90,
    )
    engine.channel.answer = lambda _: control.ReplicaLogInfoResponse(
        error_code=0, broker_epoch=101, logs=(log,)
    )
    answer = await engine.brokers.replica_logs(1, [(ID, 1), (ID, 0)])
    (asked,) = engine.channel.sent[-1].topics
    assert (asked.topic_id, asked.partitions) == (ID, (0, 1))
    (found,) = answer.logs
    assert (found.key, found.end, list(found.lost)) == ((ID, 1), LogEnd(4, 80), list(range(80, 90)))


COMMAND = DeleteCommand(
    node_id=1,
    topic_id=ID,
    points={0: PartitionDeletion(offset=7, leader_epoch=4, last_epoch=3)},
)


async def test_what_deletes_records_names_the_topic_by_its_id_and_the_leader_epoch(
    engine: Engine,
) -> None:
    """A name may be reused, and a leader may have missed later changes."""
    await engine.attach()
    meant = deletions.WireDeletionPoint(
        partition=0,
        error_code=0,
        log_start_offset=1,
        high_watermark=42,
        offset=7,
        last_epoch=3,
        size_bytes=-1,
    )
    engine.channel.answer = lambda _: deletions.DeletionPointsResponse(
        error_code=0, points=(meant,)
    )
    queries = [
        DeletionPointQuery(partition=0, node_id=1, leader_epoch=4, before_offset=7),
        DeletionPointQuery(partition=1, node_id=1, leader_epoch=5, before_time_ms=99),
    ]
    assert await engine.brokers.deletion_points(1, ID, queries) == {
        0: DeletionPoint(
            error_code=0,
            log_start_offset=1,
            high_watermark=42,
            offset=7,
            last_epoch=3,
            size_bytes=-1,
        )
    }
    assert engine.channel.sent[-1] == deletions.DeletionPointsRequest(
        controller_epoch=7,
        topic_id=ID,
        partitions=(
            deletions.WireDeletionPointQuery(
                partition=0, leader_epoch=4, before_offset=7, before_time_ms=-1
            ),
            deletions.WireDeletionPointQuery(
                partition=1, leader_epoch=5, before_offset=-1, before_time_ms=99
            ),
        ),
    )
    gone = deletions.WirePartitionDeletionResult(
        partition=0, error_code=1, low_watermark=-1, lost_from_offset=5
    )
    engine.channel.answer = lambda _: deletions.DeleteTopicRecordsResponse(
        error_code=0, results=(gone,)
    )
    assert await engine.brokers.delete_records(COMMAND, 1000) == {
        0: PartitionDeletionResult(error_code=1, low_watermark=-1, lost_from=5)
    }
    below = deletions.WirePartitionDeletion(partition=0, leader_epoch=4, offset=7, last_epoch=3)
    assert engine.channel.sent[-1] == deletions.DeleteTopicRecordsRequest(
        controller_epoch=7, topic_id=ID, timeout_ms=1000, partitions=(below,)
    )


async def test_a_broker_that_has_obeyed_another_controller_deletes_nothing(engine: Engine) -> None:
    await engine.attach()
    engine.channel.answer = lambda _: deletions.DeleteTopicRecordsResponse(
        error_code=11, results=()
    )
    with pytest.raises(EngineUnavailable, match="error 11"):
        await engine.brokers.delete_records(COMMAND, 1000)
    engine.channel.answer = lambda _: deletions.DeletionPointsResponse(error_code=11, points=())
    with pytest.raises(EngineUnavailable, match="error 11"):
        await engine.brokers.deletion_points(1, ID, [])


async def test_a_broker_of_an_earlier_version_is_not_sent_what_would_end_its_connection(
    engine: Engine,
) -> None:
    engine.channel.last_command = 0
    await engine.attach()
    sent = len(engine.channel.sent)
    with pytest.raises(EngineUnavailable, match="has an earlier version"):
        await engine.brokers.deletion_points(1, ID, [])
    with pytest.raises(EngineUnavailable, match="has an earlier version"):
        await engine.brokers.delete_records(COMMAND, 1000)
    assert len(engine.channel.sent) == sent


async def test_a_broker_that_is_away_or_too_slow_is_unavailable(engine: Engine) -> None:
    with pytest.raises(EngineUnavailable, match="no command connection"):
        await engine.brokers.replica_logs(2, [])
    await engine.attach()

    def late(_: Any) -> None:
        raise TimeoutError

    engine.channel.answer = late
    with pytest.raises(EngineUnavailable, match="no answer in"):
        await engine.brokers.replica_logs(1, [])
    engine.channel.closed = True
    with pytest.raises(EngineUnavailable, match="gone"):
        await engine.brokers.replica_logs(1, [])


# ---------------------------------------------------------------- users


def put_user(engine: Engine, name: str) -> None:
    info = UserInfo(key=f"ns/{name}", uid=name, username=name, generation=1)
    engine.world.state.users.put(info, info.state(()))
    engine.brokers.publish_users()


async def users_told(engine: Engine, number: int) -> Any:
    """Return the names in the last command with users once there are ``number`` of them."""
    async with asyncio.timeout(5):
        while len(engine.channel.users) < number:
            engine.channel.asked.clear()
            await engine.channel.asked.wait()
    await asyncio.sleep(0.005)
    assert len(engine.channel.users) == number
    return [user.name for user in engine.channel.users[-1].users]


async def test_users_are_pushed_once_the_snapshot_is_applied(engine: Engine) -> None:
    put_user(engine, "alice")
    engine.channel.gate.clear()
    engine.brokers.attach(engine.channel)  # type: ignore[arg-type]
    await asyncio.sleep(0.005)
    assert engine.channel.users == []
    engine.channel.gate.set()
    assert await users_told(engine, 1) == ["alice"]
    assert engine.channel.users[0].controller_epoch == 7
    assert engine.heard.users == [1]


async def test_an_empty_list_of_users_is_pushed_too(engine: Engine) -> None:
    """A former controller may have pushed users."""
    await engine.attach()
    assert await users_told(engine, 1) == []


async def test_unknown_users_are_not_pushed(engine: Engine) -> None:
    users = engine.world.state.users
    users.expect("ns/alice")
    await engine.attach()
    engine.brokers.publish_users()
    await asyncio.sleep(0.005)
    assert engine.channel.users == []
    assert engine.brokers.users_behind(users.version) == [1]
    put_user(engine, "alice")
    assert await users_told(engine, 1) == ["alice"]
    assert engine.brokers.users_behind(users.version) == []


async def test_a_change_during_a_push_of_users_is_pushed_once_and_completely(
    engine: Engine,
) -> None:
    await engine.attach()
    await users_told(engine, 1)
    engine.channel.gate.clear()
    put_user(engine, "alice")
    assert await users_told(engine, 2) == ["alice"]
    put_user(engine, "bob")
    put_user(engine, "carol")
    engine.world.state.users.drop("ns/alice")
    await asyncio.sleep(0.005)
    assert len(engine.channel.users) == 2, "at most one is under way"
    engine.channel.gate.set()
    assert await users_told(engine, 3) == ["bob", "carol"]


async def test_known_states_are_not_pushed_again(engine: Engine) -> None:
    await engine.attach()
    await users_told(engine, 1)
    put_user(engine, "alice")
    await users_told(engine, 2)
    engine.brokers.publish_users()
    engine.brokers.publish()
    await asyncio.sleep(0.02)
    assert await users_told(engine, 2) == ["alice"]


async def test_unacknowledged_users_are_pushed_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_link, "REPEAT_S", 0.01)
    failures: list[Any] = [TimeoutError(), known(error_code=56)]

    def take(_: Any) -> UserStatesResponse:
        failure = failures.pop(0) if failures else known()
        if isinstance(failure, TimeoutError):
            raise failure
        return failure

    engine.channel.take_users = take
    put_user(engine, "alice")
    await engine.attach()
    assert await users_told(engine, 3) == ["alice"]
    assert engine.brokers.users_behind(engine.world.state.users.version) == []
    assert engine.brokers.connected(1), "pushes of partition states continue meanwhile"


async def test_a_broker_that_has_seen_a_higher_epoch_says_so_to_users_too(engine: Engine) -> None:
    engine.channel.take_users = lambda _: known(int(ErrorCode.stale_controller_epoch))
    await engine.attach()
    await users_told(engine, 1)
    assert engine.heard.stale == [1]
    assert engine.brokers.users_behind(1) == [1]


async def test_partitions_states_do_not_wait_for_users(engine: Engine) -> None:
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
    assert not (await engine.told(2)).full
    assert engine.brokers.users_behind(1) == [1]


async def test_a_broker_that_ends_its_connection_over_users_is_left_in_peace_for_a_while(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has an earlier version knows no such command; it serves on."""

    def ends(_: Any) -> Any:
        engine.channel.closed = True
        raise ConnectionResetError("what is that?")

    engine.channel.take_users = ends
    await engine.attach()
    await users_told(engine, 1)
    engine.brokers.publish()
    await engine.ended()
    engine.channel = FakeChannel()
    await engine.attach()
    await asyncio.sleep(0.01)
    assert engine.channel.users == [], "the first pause is a second"
    assert engine.brokers.connected(1)
    engine.channel.closed = True
    engine.brokers.publish()
    await engine.ended()
    engine.channel = FakeChannel()
    engine.channel.broker_epoch += 1
    await engine.attach()
    assert await users_told(engine, 1) == [], "another process gets them at once"


async def test_pushes_of_users_pause_as_long_as_the_last_one_took(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of Users that are created one by one are pushed together."""
    monkeypatch.setattr(user_link, "PAUSES", 100)
    monkeypatch.setattr(user_link, "PAUSE_MOST_S", 0.3)
    await engine.attach()
    await users_told(engine, 1)
    engine.channel.gate.clear()
    put_user(engine, "first")
    await users_told(engine, 2)
    await asyncio.sleep(0.01)
    engine.channel.gate.set()
    for number in range(20):
        put_user(engine, f"user-{number}")
        await asyncio.sleep(0)
    assert len(engine.channel.users) == 2
    async with asyncio.timeout(5):
        while len(engine.channel.users) < 3:
            engine.channel.asked.clear()
            await engine.channel.asked.wait()
    assert len(engine.channel.users[-1].users) == 21
