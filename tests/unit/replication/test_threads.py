"""Blocking work runs in thread pools that do not wait for each other."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.unit.replication.replica_nodes import T0, ReplicaNode, row
from tidemark.records.batch import iter_headers, parse_header
from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import FEW_RECORDS
from tidemark_broker.replication.partition import consumer_reads, produce
from tidemark_broker.replication.threads import (
    ThreadPool,
    ThreadsBusy,
    in_lookup_thread,
    in_record_thread,
    in_thread,
)
from tidemark_broker.replication.types import ProduceResult

MANY = 64
#: More records than are decoded on the event loop.
MANY_RECORDS = FEW_RECORDS + 1
ALONE = row(replicas=(1,), isr=(1,))


@asynccontextmanager
async def _occupied(pool: ThreadPool, calls: int) -> AsyncIterator[None]:
    """Let ``calls`` calls of the pool run or wait until the end."""
    over = threading.Event()
    waiting = [asyncio.ensure_future(pool(over.wait)) for _ in range(calls)]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*waiting)


async def test_a_role_change_waits_for_no_upkeep_and_no_lookup(
    node: Callable[[int], ReplicaNode],
) -> None:
    one = node(1)
    await one.lead(0)
    await one.append()
    async with _occupied(in_thread, MANY), _occupied(in_lookup_thread, MANY):
        async with asyncio.timeout(20):
            await one.lead(1)
        assert one.partition.is_leader
        assert one.partition.log.epochs.latest_epoch == 1


async def test_a_lookup_waits_for_no_upkeep(node: Callable[[int], ReplicaNode]) -> None:
    one = node(1)
    await one.receive(ALONE)
    await one.append(3)
    async with _occupied(in_thread, MANY):
        async with asyncio.timeout(20):
            found = await consumer_reads.list_offset(one.partition, T0)
        assert (found.error.name, found.offset) == ("none", 0)


async def test_lookups_beyond_the_limit_time_out_and_can_be_retried(
    node: Callable[[int], ReplicaNode],
) -> None:
    one = node(1)
    await one.receive(ALONE)
    await one.append()
    async with _occupied(in_lookup_thread, 102):
        found = await consumer_reads.list_offset(one.partition, T0)
        assert found.error.name == "request_timed_out"
    assert (await consumer_reads.list_offset(one.partition, T0)).offset == 0


async def test_a_cancelled_caller_waits_for_its_thread() -> None:
    pool = ThreadPool("test", threads=1, pending_max=1)
    begun, over, ended = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        over.wait()
        ended.append(True)

    task = asyncio.ensure_future(pool(work))
    await begun.wait()
    # One call runs and one waits, which is the limit of the pool.
    second = asyncio.ensure_future(pool(over.wait))
    await asyncio.sleep(0)
    with pytest.raises(ThreadsBusy):
        await pool(over.wait)
    # A thread cannot be cancelled. Its caller must not release the log before the thread has
    # ended.
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    over.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    assert await second


async def test_abandoned_lookups_are_not_executed(
    node: Callable[[int], ReplicaNode],
) -> None:
    """A client that repeatedly requests and disconnects must not block other clients."""
    one = node(1)
    await one.receive(ALONE)
    await one.append()
    async with _occupied(in_lookup_thread, 2):
        lookups = [
            asyncio.ensure_future(consumer_reads.list_offset(one.partition, T0)) for _ in range(100)
        ]
        await asyncio.sleep(0)
        # The clients leave before a thread has started their look-ups.
        for item in lookups:
            item.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait(lookups)
        # A new look-up still waits for one of the occupied threads.
        other = asyncio.ensure_future(consumer_reads.list_offset(one.partition, T0))
        await asyncio.sleep(0)
        assert not other.done()
    assert (await other).offset == 0


async def test_batches_that_need_inspection_keep_their_order(
    node: Callable[[int], ReplicaNode],
) -> None:
    one = node(1)
    await one.receive(ALONE)
    # Records without timestamps need an inspection, which runs in a thread. Plain batches do not.
    odd = build_batch([Record(b"odd", b"v", (), -1)] * MANY_RECORDS)
    plain = build_batch([Record(b"plain", b"v", (), T0)])
    sent = [plain, odd, plain, plain, odd, odd, plain]
    appends = [
        asyncio.ensure_future(produce.append(one.partition, data, acks=1, timeout_ms=1000))
        for data in sent
    ]
    results = await asyncio.gather(*appends)
    assert [result.error.name for result in results] == ["none"] * len(sent)
    counts = [parse_header(data).count for data in sent]
    offsets = [0, *itertools.accumulate(counts)]
    assert [result.base_offset for result in results] == offsets[:-1]
    assert [data[61:] for data in sent] == [
        one.bytes()[position + 61 : position + header.size_bytes]
        for position, header in iter_headers(one.bytes())
    ]


async def test_no_client_waits_for_the_batches_of_another(
    node: Callable[[int], ReplicaNode],
) -> None:
    """Any number of one client's batches may need inspection. A client's own batches keep their
    order."""
    one = node(1)
    await one.receive(ALONE)
    odd = build_batch([Record(b"odd", b"v", (), -1)] * MANY_RECORDS)
    plain = build_batch([Record(b"plain", b"v", (), T0)])

    def append(data: bytes, peer: str) -> "asyncio.Future[ProduceResult]":
        return asyncio.ensure_future(
            produce.append(one.partition, data, acks=1, timeout_ms=1000, peer=peer)
        )

    # All inspection threads are busy, so client a's batches wait, even its plain one behind them.
    async with _occupied(in_record_thread, 2):
        waiting = [append(data, "a") for data in (odd, odd, plain)]
        async with asyncio.timeout(20):
            assert (await append(plain, "b")).base_offset == 0
        assert not any(item.done() for item in waiting)
    assert [(await item).base_offset for item in waiting] == [
        1,
        1 + MANY_RECORDS,
        1 + 2 * MANY_RECORDS,
    ]
    assert len(one.partition.append_order) == 0


async def test_an_inspected_batch_is_not_appended_by_a_former_leader(
    node: Callable[[int], ReplicaNode],
) -> None:
    one = node(1)
    await one.receive(ALONE)
    odd = build_batch([Record(b"odd", b"v", (), -1)] * MANY_RECORDS)
    async with _occupied(in_record_thread, 2):
        append = asyncio.ensure_future(produce.append(one.partition, odd, acks=-1, timeout_ms=1000))
        # The broker is deposed while the batch waits for its inspection.
        await one.receive(row(leader=2, leader_epoch=1, partition_epoch=1))
    assert (await append).error.name == "not_leader_or_follower"
    assert one.partition.next_offset == 0
