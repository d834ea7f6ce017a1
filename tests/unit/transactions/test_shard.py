"""Transactions in a partition of a real log: commits, markers, time-outs and failovers."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from kio.schema.errors import ErrorCode

from tests.control_messages import partition_states, topic_state
from tests.unit.replication.replica_nodes import TOPIC, ReplicaNode, dialer_of, row
from tests.unit.transactions.transaction_worlds import T0, T1, TIMEOUT_MS
from tidemark.wire import control
from tidemark_broker.admission.fair_share import requesting_client
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.producer_ids import ProducerIds
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions import coordinator as module
from tidemark_broker.transactions.coordinator import TransactionCoordinator
from tidemark_broker.transactions.core.metadata import Producer, TransactionState
from tidemark_broker.transactions.shard import TransactionLimits, TransactionShard
from tidemark_broker.transactions.wire import QueryCoordinatorRequest, WireInquiry, WireMarker

R = TypeVar("R")
#: It hashes to partition 0 of 2.
ID = "copier"
COMMITTED, ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT


class ShardBench:
    """One broker, whose only topic serves as ``__transaction_state``.

    Markers are added to ``written`` while ``marker_error`` is none.
    """

    def __init__(self, folder: Path, bytes_max: int = 10_000_000) -> None:
        self.node = ReplicaNode(1, folder)
        self.wall_ms = 1_000_000
        self.node.context.wall_ms = lambda: self.wall_ms
        self.node.context.monotonic = time.monotonic
        self.written: list[WireMarker] = []
        self.marker_error = ErrorCode.none
        self.producer_ids = ProducerIds()
        self.coordinator = TransactionCoordinator(
            self.node.context,
            limits=TransactionLimits(
                timeout_max_ms=900_000, expiration_ms=10_000, bytes_max=bytes_max
            ),
            dialer_of=dialer_of,
            request_topic=lambda name: None,
            producer_ids=self.producer_ids,
            write_markers=self.write_markers,
        )

    async def write_markers(self, markers: list[WireMarker]) -> list[ErrorCode]:
        if self.marker_error is ErrorCode.none:
            self.written += markers
        return [self.marker_error] * len(markers)

    async def leads(self, epoch: int, isr: tuple[int, ...] = (1,), leader: int = 1) -> None:
        """Apply the leadership of partition 0. Partition 1 only receives markers."""
        first = row(
            leader=leader, leader_epoch=epoch, partition_epoch=epoch, replicas=(1, 2), isr=isr
        )
        await self.node.receive(first, row(partition=1, leader=1, leader_epoch=0, replicas=(2,)))

    async def shard(self) -> TransactionShard:
        """Return the shard once it is active."""
        return await until(self._shard)

    def _shard(self) -> TransactionShard | None:
        try:
            return self.coordinator.coordinators.shard_of(ID)
        except CoordinatorError as error:
            if error.error_code is not ErrorCode.coordinator_load_in_progress:
                raise
            return None


async def until(look: Callable[[], R | None]) -> R:
    for _ in range(400):
        found = look()
        if found:
            return found
        await asyncio.sleep(0.005)
    raise AssertionError("the condition does not become true within 2 s")


@asynccontextmanager
async def world(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **given: int
) -> AsyncIterator[ShardBench]:
    monkeypatch.setattr(module, "TRANSACTION_STATE_TOPIC", TOPIC)
    made = ShardBench(folder, **given)
    await made.producer_ids.add(1, 1000)
    task = asyncio.create_task(made.coordinator.run())
    try:
        yield made
    finally:
        await made.coordinator.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.node.stop()


async def begun(shard: TransactionShard) -> Producer:
    decision = await shard.init_producer_id(ID, expected=None, timeout_ms=TIMEOUT_MS)
    assert decision.error is ErrorCode.none
    assert decision.producer is not None
    return decision.producer


async def opened(shard: TransactionShard) -> Producer:
    producer = await begun(shard)
    added = await shard.add_partitions(ID, producer=producer, partitions={T0, T1}, version=2)
    assert added is ErrorCode.none
    return producer


def state(shard: TransactionShard) -> TransactionState | None:
    known = shard.table.get(ID)
    return None if known is None else known.state


async def refused(request: Awaitable[object]) -> ErrorCode:
    with pytest.raises(CoordinatorError) as raised:
        await request
    return raised.value.error_code


async def test_a_transaction_from_beginning_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        producer = await opened(shard)
        assert producer == Producer(1, 0)
        ended = await shard.end(ID, producer=producer, commit=True, version=2)
        assert ended.producer == Producer(1, 1)
        await until(lambda: state(shard) is COMMITTED)
        assert {item.partition for item in made.written} == {0, 1}
        assert made.written[0] == WireMarker(
            topic=TOPIC,
            partition=made.written[0].partition,
            producer_id=1,
            producer_epoch=1,
            coordinator_epoch=3,
            commit=True,
            version=2,
        )


async def test_next_coordinator_completes_prepared_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next coordinator completes a prepared transaction in all partitions; an open one
    stays open.
    """
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        # No marker can be written, so that the transaction stays prepared.
        made.marker_error = ErrorCode.not_leader_or_follower
        producer = await opened(shard)
        await shard.end(ID, producer=producer, commit=True, version=2)
        assert state(shard) is TransactionState.PREPARE_COMMIT
        await made.leads(4)
        assert await refused(shard.end(ID, producer=producer, commit=True, version=2)) is (
            ErrorCode.not_coordinator
        )
        made.marker_error = ErrorCode.none
        successor = await made.shard()
        assert successor is not shard
        await until(lambda: state(successor) is COMMITTED)
        written = {(item.partition, item.coordinator_epoch, item.commit) for item in made.written}
        assert written == {(0, 4, True), (1, 4, True)}
        repeated = await successor.end(ID, producer=producer, commit=True, version=2)
        assert (repeated.error, repeated.producer) == (ErrorCode.none, Producer(1, 1))


async def test_uncommitted_decisions_are_never_announced_nor_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 2 is in the ISR and does not fetch: nothing is committed until it has left."""
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        producer = await opened(shard)
        await made.leads(4, isr=(1, 2))
        # The shard does not load before its log is committed in the new epoch.
        with pytest.raises(CoordinatorError):
            made.coordinator.coordinators.shard_of(ID)
        await made.node.receive(
            row(leader=1, leader_epoch=4, partition_epoch=5, replicas=(1, 2), isr=(1,))
        )
        shard = await made.shard()
        # The shard has loaded, and broker 2 joins the ISR again.
        await made.node.receive(
            row(leader=1, leader_epoch=4, partition_epoch=6, replicas=(1, 2), isr=(1, 2))
        )
        ending = asyncio.create_task(shard.end(ID, producer=producer, commit=True, version=2))
        await asyncio.sleep(0.02)
        assert not ending.done()
        assert state(shard) is TransactionState.ONGOING
        other = await shard.end(ID, producer=producer, commit=False, version=2)
        assert other.error is ErrorCode.concurrent_transactions
        ending.cancel()  # The client has disconnected.
        await asyncio.gather(ending, return_exceptions=True)
        # The decision is committed without the client.
        await made.node.receive(
            row(leader=1, leader_epoch=4, partition_epoch=7, replicas=(1, 2), isr=(1,))
        )
        await until(lambda: state(shard) is COMMITTED)


async def test_reloaded_coordinator_writes_no_second_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator returns to an id whose markers were written meanwhile: the completion is
    recorded but not committed yet. In the old protocol another marker could end the next
    transaction.
    """
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        producer = await opened(shard)
        made.marker_error = ErrorCode.not_leader_or_follower
        await shard.end(ID, producer=producer, commit=True, version=0)
        with_follower = row(
            leader=1, leader_epoch=3, partition_epoch=4, replicas=(1, 2), isr=(1, 2)
        )
        await made.node.receive(with_follower)  # broker 2 does not fetch
        made.marker_error = ErrorCode.none
        await until(lambda: not made.coordinator.markers.queue.unfinished)
        assert len(made.written) == 2
        # The coordinator loads the prepared transaction again, because its completion is not
        # committed.
        shard.loaded(made.node.context.monotonic())
        await asyncio.sleep(0.05)
        await made.node.receive(replace(with_follower, partition_epoch=5, isr=(1,)))
        await until(lambda: state(shard) is COMMITTED)
        assert len(made.written) == 2


async def test_markers_written_during_a_stall_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop hung for longer than the session, and no other coordinator was elected
    meanwhile: otherwise the transaction would never be complete.
    """
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        producer = await opened(shard)
        made.marker_error = ErrorCode.not_leader_or_follower
        await shard.end(ID, producer=producer, commit=True, version=2)
        stall = made.node.context.stall
        # 10 s without a turn of the loop exceed the session of 1 s.
        since_s = time.monotonic() - 10.0
        stall.limit(registered_s=since_s, lease_s=1.0, loop_max_s=1.0)
        stall.turned(since_s)
        assert stall.must_be_silent(time.monotonic())
        made.marker_error = ErrorCode.none
        await until(lambda: not made.coordinator.markers.queue.unfinished)
        await asyncio.sleep(0.02)
        # The markers are written, and their completion waits for the session.
        assert state(shard) is TransactionState.PREPARE_COMMIT
        stall.turned(time.monotonic())
        assert stall.confirmed(time.monotonic())
        await until(lambda: state(shard) is COMMITTED)


async def test_open_transaction_is_aborted_after_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        decision = await shard.init_producer_id(ID, expected=None, timeout_ms=30)
        assert decision.producer is not None
        await shard.add_partitions(ID, producer=decision.producer, partitions={T0}, version=2)
        made.wall_ms += 31
        await until(lambda: state(shard) is ABORTED)
        assert [(item.commit, item.producer_epoch) for item in made.written] == [(False, 1)]
        # The client's end comes after the abort, which has raised the epoch.
        late = await shard.end(ID, producer=decision.producer, commit=True, version=2)
        assert late.error is ErrorCode.invalid_txn_state


async def test_next_coordinator_aborts_timed_out_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        await opened(await made.shard())
        # The timeout expires between the two coordinators.
        made.wall_ms += TIMEOUT_MS + 1
        await made.leads(4)
        shard = await made.shard()
        await until(lambda: state(shard) is ABORTED)


async def test_new_producer_aborts_the_open_transaction_of_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        old = await opened(shard)
        first = await shard.init_producer_id(ID, expected=None, timeout_ms=TIMEOUT_MS)
        assert first.error is ErrorCode.concurrent_transactions
        await until(lambda: state(shard) is ABORTED)
        # The abort was in epoch 1, so that the new producer has epoch 2.
        assert await begun(shard) == Producer(1, 2)
        late = await shard.end(ID, producer=old, commit=True, version=2)
        assert late.error is ErrorCode.producer_fenced


async def test_the_next_transaction_waits_for_the_markers_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        producer = await opened(shard)
        ended = await shard.end(ID, producer=producer, commit=True, version=2)
        assert ended.producer is not None
        added = await shard.add_partitions(ID, producer=ended.producer, partitions={T0}, version=2)
        assert added is ErrorCode.none
        assert state(shard) is TransactionState.ONGOING


async def test_inquiries_of_leaders_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inquiry(partition: int, epoch: int, *, adds: bool, topic: str = TOPIC) -> WireInquiry:
        return WireInquiry(
            transactional_id=ID,
            producer_id=1,
            producer_epoch=epoch,
            adds=adds,
            topics=(topic,),
            partitions=(partition,),
        )

    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        # Topic u has partitions 7 and 8, but not 9.
        more = tuple(row(partition=number, leader=2, replicas=(2,)) for number in (7, 8))
        await made.node.manager.apply(
            partition_states(topic_state(uuid.UUID(int=0x78), "u", partitions=more))
        )
        await opened(await made.shard())
        request = QueryCoordinatorRequest(
            inquiries=(
                inquiry(0, 0, adds=False),
                inquiry(7, 0, adds=False),
                inquiry(0, 1, adds=False),
                inquiry(7, 0, adds=True, topic="u"),
                inquiry(8, 1, adds=True, topic="u"),
                inquiry(9, 0, adds=True, topic="u"),
                inquiry(7, 0, adds=True, topic="not pushed yet"),
            )
        )
        verdicts = await made.coordinator.answer(request.inquiries)
        assert verdicts == [
            [ErrorCode.none],
            [ErrorCode.transaction_abortable],
            [ErrorCode.producer_fenced],
            [ErrorCode.none],
            [ErrorCode.producer_fenced],
            [ErrorCode.unknown_topic_or_partition],
            [ErrorCode.unknown_topic_or_partition],
        ]
        here = await made.coordinator.inquiries.query(ID, Producer(1, 0), [T0], adds=False)
        assert here == {T0: ErrorCode.none}


async def test_timeouts_and_memory_of_ids_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, bytes_max=1000) as made:
        await made.leads(3)
        shard = await made.shard()
        # The limit of a transaction's timeout is 900 s.
        for timeout_ms in (0, -1, 900_001):
            decision = await shard.init_producer_id(ID, expected=None, timeout_ms=timeout_ms)
            assert decision.error is ErrorCode.invalid_transaction_timeout
        producer = await opened(shard)
        # 1,000 bytes are enough for two ids.
        more = await shard.init_producer_id("other", expected=None, timeout_ms=TIMEOUT_MS)
        assert more.error is ErrorCode.none
        refused_id = await shard.init_producer_id("third", expected=None, timeout_ms=TIMEOUT_MS)
        assert refused_id.error is ErrorCode.policy_violation
        ended = await shard.end(ID, producer=producer, commit=True, version=2)
        assert ended.error is ErrorCode.none  # An existing transaction can always end.


async def test_one_client_that_makes_up_ids_leaves_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, bytes_max=6000) as made:
        await made.leads(3)
        shard = await made.shard()

        async def begin(who: str, transactional_id: str) -> ErrorCode:
            requesting_client.set(who)
            decision = await shard.init_producer_id(
                transactional_id, expected=None, timeout_ms=TIMEOUT_MS
            )
            return decision.error

        async def begin_in_task(who: str, transactional_id: str) -> ErrorCode:
            # The client is a context variable, so that each request needs a task of its own.
            return await asyncio.create_task(begin(who, transactional_id))

        errors = [await begin_in_task("ann", f"id{number}") for number in range(10)]
        # An id counts 600 bytes. One client may use half of the 6,000 bytes.
        assert errors.count(ErrorCode.none) == 5
        assert set(errors[5:]) == {ErrorCode.policy_violation}
        assert await begin_in_task("bob", "bob's") is ErrorCode.none
        assert await begin_in_task("ann", "id0") is ErrorCode.none, "existing ids continue"
        # After loading, the memory is counted from the ids themselves.
        await made.leads(4)
        await made.shard()
        assert made.coordinator.shared.room.used_bytes == 6 * 600 + len("id0") * 5 + len("bob's")


async def test_a_marker_is_sent_to_the_current_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 2, which leads t-1 at first, cannot be reached."""
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        unreachable = row(partition=1, leader=2, leader_epoch=1, partition_epoch=1, replicas=(2,))
        await made.node.receive(unreachable)
        producer = await opened(shard)
        await shard.end(ID, producer=producer, commit=True, version=2)
        await until(lambda: made.written)
        # In this time the marker of t-1 is retried several times.
        await asyncio.sleep(0.05)
        assert {item.partition for item in made.written} == {0}
        assert state(shard) is TransactionState.PREPARE_COMMIT
        remaining = made.coordinator.describe(ID)
        assert remaining is not None
        assert remaining.partitions == {T1}
        await made.node.receive(replace(unreachable, leader=1, leader_epoch=2, partition_epoch=2))
        await until(lambda: state(shard) is COMMITTED)
        assert [item.partition for item in made.written] == [0, 1]


async def test_topic_deleted_during_a_transaction_does_not_block_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is deleted before the transaction ends, or while its markers are written."""

    def named(name: str) -> control.TopicState:
        away = row(leader=-1, replicas=(2,), isr=(2,))
        return topic_state(uuid.uuid5(uuid.NAMESPACE_URL, name), name, partitions=(away,))

    def deleted(name: str) -> control.Removal:
        return control.Removal(topic_id=named(name).topic_id, partition=-1, partition_epoch=0)

    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        await made.node.manager.apply(partition_states(named("before"), named("after")))
        shard = await made.shard()
        producer = await opened(shard)
        more = {TopicPartition("before", 0), TopicPartition("after", 0)}
        await shard.add_partitions(ID, producer=producer, partitions=more, version=2)
        await made.node.manager.apply(partition_states(removals=(deleted("before"),)))
        await shard.end(ID, producer=producer, commit=True, version=2)
        # Both partitions of the existing topic have their markers. The other topic is not deleted
        # yet.
        await until(lambda: len(made.written) == 2)
        assert state(shard) is TransactionState.PREPARE_COMMIT
        await made.node.manager.apply(partition_states(removals=(deleted("after"),)))
        await until(lambda: state(shard) is COMMITTED)


async def test_unused_ids_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        await begun(shard)
        # One millisecond is missing to the expiration of 10 s.
        made.wall_ms += 9_999
        await shard._forget_unused()
        assert len(shard.table) == 1
        made.wall_ms += 1
        await shard._forget_unused()
        await until(lambda: not len(shard.table))
        # The deletion is recorded: the next coordinator does not load the id.
        await made.leads(4)
        assert len((await made.shard()).table) == 0


async def test_failed_markers_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, monkeypatch) as made:
        await made.leads(3)
        shard = await made.shard()
        made.marker_error = ErrorCode.request_timed_out
        producer = await opened(shard)
        await shard.end(ID, producer=producer, commit=False, version=2)
        # In this time the markers fail several times.
        await asyncio.sleep(0.1)
        assert state(shard) is TransactionState.PREPARE_ABORT
        assert made.coordinator.markers.queue.unfinished == 1
        made.marker_error = ErrorCode.none
        await until(lambda: state(shard) is ABORTED)
        assert made.coordinator.markers.queue.unfinished == 0
