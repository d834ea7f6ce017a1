"""A state machine in a partition of a real log: loading, appends, commits, roles that change."""

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.control_messages import partition_states, topic_state
from tests.unit.replication.replica_nodes import TOPIC, TOPIC_ID, ReplicaNode, row
from tidemark.records.builder import Record, build_batch
from tidemark.wire import control
from tidemark_broker.coordinators.coordinators import Coordinators
from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError, CoordinatorRecordTooLarge
from tidemark_broker.coordinators.log import (
    CoordinatorLog,
    CoordinatorRecord,
    TransactionalProducer,
)
from tidemark_broker.log import appending

# Keys of control records: version 0, and the type of the marker.
COMMIT, ABORT = b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"


class KeyTable:
    """Keys and their values. Transactional values count once they are committed."""

    def __init__(self, log: CoordinatorLog, deadlines: Deadlines[Hashable]) -> None:
        self.log = log
        self.deadlines = deadlines
        self.values: dict[bytes, bytes] = {}
        self.pending: dict[TransactionalProducer, list[CoordinatorRecord]] = {}
        self.is_loaded = self.has_resigned = False
        self.expired_keys: list[Hashable] = []

    def replay(
        self, record: CoordinatorRecord, producer: TransactionalProducer | None, offset: int = -1
    ) -> None:
        if record.key == b"bad":
            raise ValueError("an unknown key")
        if producer is not None:
            self.pending.setdefault(producer, []).append(record)
        elif record.value is None:
            self.values.pop(record.key, None)
        else:
            self.values[record.key] = record.value

    def replay_marker(self, producer: TransactionalProducer, *, committed: bool) -> None:
        for record in self.pending.pop(producer, []):
            if committed:
                self.replay(record, None)

    def put(self, key: bytes, value: bytes | None) -> int:
        record = CoordinatorRecord(key, value)
        end_offset = self.log.append([record])
        self.replay(record, None)
        return end_offset

    def loaded(self, now_s: float) -> None:
        self.is_loaded = True

    def expired(self, key: Hashable, now_s: float) -> None:
        self.expired_keys.append(key)

    def resigned(self) -> None:
        self.has_resigned = True


class CoordinatorBench:
    """One broker, or two with one topic of one partition, and the coordinators of the first."""

    def __init__(self, folder: Path) -> None:
        self.node, self.other = ReplicaNode(1, folder), ReplicaNode(2, folder)
        self.requested_topics: list[str] = []
        self.coordinators = Coordinators(
            TOPIC,
            KeyTable,
            cluster=self.node.context.metadata,
            purgatory=self.node.context.purgatory,
            request_topic=self.requested_topics.append,
            now=lambda: self.node.now_s,
        )
        self.node.context.role_changed.append(self.coordinators.role_changed)

    async def alone(self, epoch: int, leader: int = 1) -> None:
        """Apply a partition with one replica: every append is committed at once."""
        await self.node.receive(
            row(
                leader=leader,
                leader_epoch=epoch,
                partition_epoch=epoch,
                replicas=(1,),
                isr=(1,),
            )
        )

    async def active(self) -> KeyTable:
        """Return the state once the shard is active."""
        for _ in range(200):
            try:
                return self.coordinators.shard_of("anything")
            except CoordinatorError as error:
                if error.error_code is not ErrorCode.coordinator_load_in_progress:
                    raise
            await asyncio.sleep(0.005)
        raise AssertionError("it does not become active")


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[CoordinatorBench]:
    made = CoordinatorBench(folder)
    task = asyncio.create_task(made.coordinators.run())
    try:
        yield made
    finally:
        await made.coordinators.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.node.stop()
        await made.other.stop()


def refusal(coordinators: Coordinators[KeyTable]) -> ErrorCode:
    with pytest.raises(CoordinatorError) as raised:
        coordinators.shard_of("anything")
    return raised.value.error_code


async def test_a_missing_topic_is_requested(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        assert refusal(made.coordinators) is ErrorCode.coordinator_not_available
        assert made.requested_topics == [TOPIC]


async def test_written_records_are_loaded_in_the_next_epoch(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.alone(1)
        table = await made.active()
        table.put(b"a", b"1")
        table.put(b"b", b"2")
        await table.log.committed(table.put(b"a", None))
        await made.alone(2)
        assert table.has_resigned
        assert refusal(made.coordinators) is ErrorCode.coordinator_load_in_progress
        reloaded = await made.active()
        assert reloaded is not table
        assert reloaded.is_loaded
        assert reloaded.values == {b"b": b"2"}
        with pytest.raises(CoordinatorError):  # The log of the former epoch is closed.
            table.put(b"c", b"3")


async def test_repeated_state_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.alone(1)
        table = await made.active()
        await made.alone(1)
        assert await made.active() is table


async def test_a_deposed_coordinator_resigns_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.alone(1)
        table = await made.active()
        await made.alone(2, leader=-1)
        assert table.has_resigned
        assert refusal(made.coordinators) is ErrorCode.not_coordinator


async def test_keys_keep_their_partition_while_others_are_in_doubt(
    tmp_path: Path,
) -> None:
    """A controller that was restored from a backup names one partition of fifty."""
    async with world(tmp_path) as made:
        cluster = made.node.context.metadata
        rows = tuple(row(partition=number, leader=2, replicas=(2,)) for number in range(50))
        cluster.apply(partition_states(topic_state(TOPIC_ID, TOPIC, partitions=rows), full=True))
        numbers = [made.coordinators.partition_of(f"group-{n}") for n in range(200)]
        assert refusal(made.coordinators) is ErrorCode.not_coordinator
        restored = topic_state(TOPIC_ID, TOPIC, partitions=rows[:1], partition_count=50)
        for _ in range(2):  # The second time, the broker knows none of the former rows.
            cluster.apply(partition_states(restored, full=True))
            assert [made.coordinators.partition_of(f"group-{n}") for n in range(200)] == numbers
            assert refusal(made.coordinators) is ErrorCode.coordinator_load_in_progress
            # The broker restarts: a state without the topic removes its rows.
            cluster.apply(partition_states(full=True))


async def test_topic_without_its_resource_is_requested_and_served(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        cluster = made.node.context.metadata
        await made.alone(1)
        table = await made.active()
        unserved_topic = control.UnservedTopic(name=TOPIC, topic_id=TOPIC_ID, is_unmanaged=True)
        cluster.apply(partition_states(full=True, unserved=(unserved_topic,)))
        assert made.coordinators.shard_of("anything") is table
        assert made.requested_topics == [TOPIC]


async def test_append_is_acknowledged_once_committed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.node.receive(row(leader_epoch=1, partition_epoch=1))
        await made.other.receive(row(leader_epoch=1, partition_epoch=1))
        table = await made.active()
        waits = table.log.committed(table.put(b"a", b"1"))
        await asyncio.sleep(0.01)
        assert not waits.done()
        await made.other.catch_up(made.node)
        async with asyncio.timeout(5):
            await waits


async def test_uncommitted_append_fails_when_leadership_is_lost(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.node.receive(row(leader_epoch=1, partition_epoch=1))
        table = await made.active()
        # Broker 2 is in the ISR and never fetches.
        waits = table.log.committed(table.put(b"a", b"1"))
        await made.node.follow(2, epoch=2)
        with pytest.raises(CoordinatorError) as raised:
            await waits
        assert raised.value.error_code is ErrorCode.not_coordinator


async def test_new_leader_loads_once_its_log_is_committed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.node.receive(row(leader_epoch=1, partition_epoch=1))
        await made.other.receive(row(leader_epoch=1, partition_epoch=1))
        table = await made.active()
        table.put(b"a", b"1")
        # The record is not committed when the next epoch starts.
        await made.node.receive(row(leader_epoch=2, partition_epoch=2))
        await asyncio.sleep(0.05)
        assert refusal(made.coordinators) is ErrorCode.coordinator_load_in_progress
        # Broker 2 fetches, which commits the record.
        await made.other.receive(row(leader_epoch=2, partition_epoch=2))
        await made.other.catch_up(made.node)
        assert (await made.active()).values == {b"a": b"1"}


async def test_append_without_enough_replicas_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.node.receive(row(leader_epoch=1, partition_epoch=1, isr=(1,)))
        table = await made.active()
        partition = made.node.partition
        partition.log.config = partition.log.config.__class__(min_insync_replicas=2)
        with pytest.raises(CoordinatorError) as raised:
            table.put(b"a", b"1")
        assert raised.value.error_code is ErrorCode.coordinator_not_available
        assert table.values == {}


async def test_a_record_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.alone(1)
        table = await made.active()
        before = made.node.partition.next_offset
        with pytest.raises(CoordinatorRecordTooLarge, match=r"max\.message\.bytes"):
            table.put(b"a", bytes(2_000_000))
        assert made.node.partition.next_offset == before


def replicated(made: CoordinatorBench, record: Record, **producer: Any) -> None:
    """Append a committed batch, as a follower of its leader does."""
    log = made.node.partition.log
    appending.append_as_follower(
        log,
        build_batch(
            [record], base_offset=log.next_offset, leader_epoch=log.epochs.latest_epoch, **producer
        ),
    )
    log.advance_high_watermark(log.next_offset)


@pytest.mark.parametrize(
    ("marker", "expected"), [(COMMIT, {b"a": b"1"}), (ABORT, {})], ids=["commit", "abort"]
)
async def test_transactional_records_wait_for_their_marker(
    tmp_path: Path, marker: bytes, expected: dict[bytes, bytes]
) -> None:
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 1, "is_transactional": True}
    async with world(tmp_path) as made:
        await made.alone(1)
        await made.active()
        replicated(made, Record(b"a", b"1", timestamp_ms=1), **producer)
        await made.alone(2)
        table = await made.active()
        assert table.values == {}
        assert list(table.pending) == [TransactionalProducer(7, 1)]
        replicated(made, Record(marker, bytes(6)), is_control=True, **producer)
        await made.alone(3)
        assert (await made.active()).values == expected


async def test_transactional_append_needs_verification(
    tmp_path: Path,
) -> None:
    producer, record = TransactionalProducer(7, 1), CoordinatorRecord(b"a", b"1")
    async with world(tmp_path) as made:
        await made.alone(1)
        log = (await made.active()).log
        # The transaction coordinator has not confirmed the transaction yet.
        with pytest.raises(CoordinatorError):
            log.append([record], producer)
        guard = log.begin_verification(producer)
        assert guard is not None
        log.verified(producer, guard)
        log.append([record], producer)
        assert log.begin_verification(producer) is None  # the transaction continues
        log.append([record], producer)
        # The transaction is still open, so that none of its records is stable.
        assert log.partition.log.last_stable_offset == log.loaded_below


async def test_unreadable_log_is_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as made:
        await made.alone(1)
        await made.active()
        replicated(made, Record(b"bad", b"", timestamp_ms=1))
        await made.alone(2)
        await asyncio.sleep(0.1)
        # Loading fails again and again, and clients keep retrying.
        assert refusal(made.coordinators) is ErrorCode.coordinator_load_in_progress
        assert "an unknown key" in caplog.text


async def test_expired_deadlines_are_delivered(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.alone(1)
        table = await made.active()
        table.deadlines.schedule("later", made.node.now_s + 100)
        table.deadlines.schedule("now", made.node.now_s)
        await asyncio.sleep(0.02)
        assert table.expired_keys == ["now"]


async def test_an_abandoned_wait_is_forgotten_although_nothing_is_committed(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as made:
        await made.alone(1)
        log = (await made.active()).log
        # No append has this offset, so that no wait for it completes.
        beyond = log.end_offset + 1
        waiting = log.committed(beyond)
        abandoned: weakref.WeakSet[asyncio.Future[None]] = weakref.WeakSet()
        for _ in range(20_000):  # Clients give up and send their request again.
            future = log.committed(beyond)
            future.cancel()
            abandoned.add(future)
        assert len(abandoned) <= 1000
        log.append([CoordinatorRecord(b"k", b"v")])
        async with asyncio.timeout(5):
            await waiting


async def test_many_expired_deadlines_leave_time_for_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        await made.alone(1)
        table = await made.active()
        done: list[Hashable] = []

        def expired(key: Hashable, now_s: float) -> None:
            # Each of 100 expirations takes 2 ms of the loop's time.
            time.sleep(0.002)
            done.append(key)

        monkeypatch.setattr(table, "expired", expired)
        for number in range(100):
            table.deadlines.schedule(number, made.node.now_s)
        at_once, before = 0, 0
        async with asyncio.timeout(10):
            while len(done) < 100:
                await asyncio.sleep(0)
                at_once, before = max(at_once, len(done) - before), len(done)
        # Other tasks have a turn after 10 ms.
        assert at_once <= 5
        assert sorted(map(str, done)) == sorted(map(str, range(100)))
