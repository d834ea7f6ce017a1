"""Blocking work runs in pools that do not wait for each other."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.unit.replication.replica_nodes import T0, Node, row
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
#: More than are read on the loop.
MANY_RECORDS = FEW_RECORDS + 1
ALONE = row(replicas=(1,), isr=(1,))


@asynccontextmanager
async def _occupied(pool: ThreadPool, calls: int) -> AsyncIterator[None]:
    """``calls`` of that pool are under way or wait, until the end."""
    over = threading.Event()
    waiting = [asyncio.ensure_future(pool(over.wait)) for _ in range(calls)]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*waiting)


async def test_a_role_change_waits_for_no_upkeep_and_no_look_up(
    node: Callable[[int], Node],
) -> None:
    one = node(1)
    await one.lead(0)
    await one.append()
    async with _occupied(in_thread, MANY), _occupied(in_lookup_thread, MANY):
        async with asyncio.timeout(20):
            await one.lead(1)
        assert one.partition.is_leader
        assert one.partition.log.epochs.latest_epoch == 1


async def test_a_look_up_waits_for_no_upkeep(node: Callable[[int], Node]) -> None:
    one = node(1)
    await one.told(ALONE)
    await one.append(3)
    async with _occupied(in_thread, MANY):
        async with asyncio.timeout(20):
            found = await consumer_reads.list_offset(one.partition, T0)
        assert (found.error.name, found.offset) == ("none", 0)


async def test_look_ups_beyond_the_limit_are_refused_and_may_be_tried_again(
    node: Callable[[int], Node],
) -> None:
    one = node(1)
    await one.told(ALONE)
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
    second = asyncio.ensure_future(pool(over.wait))
    await asyncio.sleep(0)
    with pytest.raises(ThreadsBusy):
        await pool(over.wait)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    over.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    assert await second


async def test_abandoned_look_ups_are_not_made(
    node: Callable[[int], Node],
) -> None:
    """A client that requests, disconnects, reconnects and requests again does not block others."""
    one = node(1)
    await one.told(ALONE)
    await one.append()
    async with _occupied(in_lookup_thread, 2):
        asked = [
            asyncio.ensure_future(consumer_reads.list_offset(one.partition, T0)) for _ in range(100)
        ]
        await asyncio.sleep(0)
        # The clients leave before a thread has started their look-ups.
        for item in asked:
            item.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait(asked)
        # A new look-up still waits for one of the occupied threads.
        other = asyncio.ensure_future(consumer_reads.list_offset(one.partition, T0))
        await asyncio.sleep(0)
        assert not other.done()
    assert (await other).offset == 0


async def test_batches_that_are_looked_into_first_keep_their_place(
    node: Callable[[int], Node],
) -> None:
    one = node(1)
    await one.told(ALONE)
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


async def test_no_client_waits_for_the_batches_of_another(node: Callable[[int], Node]) -> None:
    """However many of one client are looked into first; a client's own keep their order."""
    one = node(1)
    await one.told(ALONE)
    odd = build_batch([Record(b"odd", b"v", (), -1)] * MANY_RECORDS)
    plain = build_batch([Record(b"plain", b"v", (), T0)])

    def append(data: bytes, peer: str) -> "asyncio.Future[ProduceResult]":
        return asyncio.ensure_future(
            produce.append(one.partition, data, acks=1, timeout_ms=1000, peer=peer)
        )

    async with _occupied(in_record_thread, 2):
        held = [append(data, "a") for data in (odd, odd, plain)]
        async with asyncio.timeout(20):
            assert (await append(plain, "b")).base_offset == 0
        assert not any(item.done() for item in held)
    assert [(await item).base_offset for item in held] == [
        1,
        1 + MANY_RECORDS,
        1 + 2 * MANY_RECORDS,
    ]
    assert len(one.partition.turns) == 0


async def test_a_batch_that_was_looked_into_is_not_appended_by_a_leader_that_was(
    node: Callable[[int], Node],
) -> None:
    one = node(1)
    await one.told(ALONE)
    odd = build_batch([Record(b"odd", b"v", (), -1)] * MANY_RECORDS)
    async with _occupied(in_record_thread, 2):
        append = asyncio.ensure_future(produce.append(one.partition, odd, acks=-1, timeout_ms=1000))
        await one.told(row(leader=2, leader_epoch=1, partition_epoch=1))
    assert (await append).error.name == "not_leader_or_follower"
    assert one.partition.next_offset == 0
