"""Operations whose cost may grow with size: real parts in this process, filled to a given size,
with one operation each.

``make bench-scale`` measures their CPU time; a test counts their calls and limits the growth.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.answers import room
from tests.integration.remote_log.tiered_host import TieredHost
from tests.services import services
from tests.unit.replication.replica_nodes import (
    TOPIC,
    TOPIC_ID,
    ReplicaNode,
    batch,
    dialer_of,
    newer,
    row,
    states,
)
from tidemark.tls.identity import TlsIdentity
from tidemark.wire import control
from tidemark.wire.framing import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tidemark_broker.api.client import Client
from tidemark_broker.api.fetch_session import PartitionRequest
from tidemark_broker.api.records import fetch
from tidemark_broker.api.table import Call
from tidemark_broker.control.status import StatusReporter
from tidemark_broker.log import LogConfig, LogManager, PartitionLog, appending, flushing
from tidemark_broker.purgatory import PartitionChange, Purgatory
from tidemark_broker.replication.following.fetcher import (
    FetcherContext,
    FetchLimits,
    ReplicaFetcher,
)
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.partition import Partition, log_start, produce

NOW_MS = 1_700_000_000_000
Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class ScaleOperation:
    """``ready(folder, n)`` makes everything and gives what is then measured; each call of that is
    one unit."""

    name: str
    grows: str
    ready: Callable[[Path, int], AbstractAsyncContextManager[Work]]


# ---------------------------------------------------------------- replicas


@asynccontextmanager
async def _pair(folder: Path, count: int) -> AsyncIterator[tuple[ReplicaNode, ReplicaNode]]:
    """Broker 1 leads, broker 2 follows, in one topic."""
    one, two = ReplicaNode(1, folder), ReplicaNode(2, folder)
    try:
        for item in (one, two):
            await item.receive(*(row(partition=number) for number in range(count)), full=True)
        yield one, two
    finally:
        await one.stop()
        await two.stop()


class Line:
    """A connection without a socket: everything is encoded and decoded as on one."""

    def __init__(self, leader: ReplicaNode) -> None:
        self._leader = leader

    async def request(self, request: Any, response_type: type[Any], _: float) -> Any:
        # Encoding and decoding are part of the cost and are done as on a socket.
        frame = encode_request(request, 1, "follower")[4:]
        asked = decode_request(type(request), frame)
        given = await self._leader.service.handle(asked, TlsIdentity("c", asked.replica_id), room())
        answer = encode_response(given, 1)[4:]
        return decode_response(response_type, answer)[1]


def _fetcher(two: ReplicaNode) -> ReplicaFetcher:
    fetcher = ReplicaFetcher(
        1, FetcherContext(two.context, FetchLimits(wait_max_ms=0), dialer_of, lambda: 2)
    )
    for partition in two.manager.partitions:
        fetcher.add(partition)
    return fetcher


@asynccontextmanager
async def _idle_fetch(folder: Path, count: int) -> AsyncIterator[Work]:
    async with _pair(folder, count) as (one, two):
        fetcher, line = _fetcher(two), Line(one)
        # A few rounds until the leader knows that the follower has everything.
        for _ in range(3):
            await fetcher._round(line)  # type: ignore[arg-type]
        yield lambda: fetcher._round(line)  # type: ignore[arg-type]


@asynccontextmanager
async def _busy_fetch(folder: Path, count: int) -> AsyncIterator[Work]:
    async with _pair(folder, count) as (one, two):
        fetcher, line = _fetcher(two), Line(one)
        # One partition in the middle of the others, so that its place in a list does not matter.
        busy = _hosted(one, count // 2)

        async def work() -> None:
            await produce.append(busy, batch(), acks=1, timeout_ms=0)
            for _ in range(2):  # the records; that the follower has them
                await fetcher._round(line)  # type: ignore[arg-type]

        await work()
        yield work


@asynccontextmanager
async def _changed_row(folder: Path, count: int) -> AsyncIterator[Work]:
    async with _pair(folder, count) as (one, _):
        rows = [row(partition=count // 2)]

        async def work() -> None:
            rows.append(newer(rows[-1]))
            await one.receive(rows[-1])

        yield work


@asynccontextmanager
async def _changed_metadata(_: Path, count: int) -> AsyncIterator[Work]:
    cache = MetadataCache("c")
    cache.apply(states(*(row(partition=number) for number in range(count)), full=True))
    rows = [row(partition=count // 2)]

    async def work() -> None:
        rows.append(newer(rows[-1]))
        cache.apply(states(rows[-1]))

    yield work


@asynccontextmanager
async def _removal(folder: Path, count: int) -> AsyncIterator[Work]:
    """Tombstone of an absent topic, among ``count`` topics that exist."""
    async with _pair(folder, count) as (one, _):
        # An unknown topic id: whether it exists must not need a scan.
        gone = control.Removal(topic_id=uuid.uuid4(), partition=-1, partition_epoch=-1)

        async def work() -> None:
            await one.manager.apply(states(removals=(gone,)))

        yield work


@asynccontextmanager
async def _idle_status(folder: Path, count: int) -> AsyncIterator[Work]:
    async with _pair(folder, count) as (one, _):
        reporter = StatusReporter(one.manager, str)
        # The first report has everything. From then on nothing has changed.
        for _ in range(2):
            changed = reporter._changed()
            reporter._acknowledged.update({(e.topic_id, e.partition): e for e in changed})

        async def work() -> None:
            assert not reporter._changed()

        yield work


@asynccontextmanager
async def _raised_log_start(folder: Path, count: int) -> AsyncIterator[Work]:
    async with _pair(folder, count) as (one, _):
        partition = _hosted(one, count // 2)
        # The checkpoint is written by a task of its own, as in the broker.
        writing = asyncio.create_task(one.log_directory.run_log_start_checkpoints())

        async def work() -> None:
            await produce.append(partition, batch(), acks=1, timeout_ms=0)
            partition.log.advance_high_watermark(partition.next_offset)
            durable = log_start.raise_to(partition, partition.next_offset)
            assert durable is not None
            await durable

        yield work
        writing.cancel()


def _hosted(node: ReplicaNode, number: int) -> Partition:
    found = node.manager.get(TOPIC, number)
    assert found is not None
    return found


# ---------------------------------------------------------------- who waits


@asynccontextmanager
async def _waiting_fetch(folder: Path, count: int) -> AsyncIterator[Work]:
    """A waiting Fetch of ``count`` partitions, one of which advances."""
    async with _pair(folder, count) as (one, _):
        purgatory = one.context.purgatory
        shared = services(one.context.metadata, replicas=one.manager, purgatory=purgatory)
        # Every partition is in the request, and none has a record yet.
        asked = [
            PartitionRequest(topic=TOPIC, partition=n, offset=0, max_bytes=1 << 20)
            for n in range(count)
        ]
        # A minimum of 1 GiB is never reached, so the Fetch waits throughout.
        waiting = asyncio.create_task(
            fetch.read_until_enough(
                asked,
                Call(shared, 12, Client("", ""), room()),
                fetch.FetchParams(max_bytes=1 << 30, min_bytes=1 << 30, max_wait_s=600.0),
            )
        )
        while not purgatory.size:  # noqa: ASYNC110 - until it waits
            await asyncio.sleep(0)
        log = _hosted(one, count // 2).log

        # One partition advances. What is measured is how much of the request is looked at again.
        async def work() -> None:
            appending.append_as_leader(log, batch(), leader_epoch=0, now_ms=NOW_MS)
            log.advance_high_watermark(log.next_offset)
            purgatory.notify((PartitionChange.HIGH_WATERMARK, (TOPIC, count // 2)))
            await asyncio.sleep(0)

        yield work
        waiting.cancel()


@asynccontextmanager
async def _other_waiters(_: Path, count: int) -> AsyncIterator[Work]:
    """``count`` waiting operations, each with its own key; one of the keys is notified."""
    purgatory = Purgatory()
    # None of the operations ever completes: the notification finds one of them.
    waiting = [
        asyncio.create_task(
            purgatory.wait([(PartitionChange.HIGH_WATERMARK, number)], lambda: False, 600.0)
        )
        for number in range(count)
    ]
    while purgatory.size < count:  # noqa: ASYNC110 - until all of them wait
        await asyncio.sleep(0)

    async def work() -> None:
        purgatory.notify((PartitionChange.HIGH_WATERMARK, count // 2))
        await asyncio.sleep(0)

    yield work
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


# ---------------------------------------------------------------- a log and its segments


def _log(folder: Path, segments: int, batches: int = 1) -> tuple[LogManager, PartitionLog]:
    """Return a log with closed segments and batches, an index entry for each batch."""
    manager = LogManager.open(folder / "log", node_id=1, cluster_id="c")
    log = manager.create(
        topic=TOPIC,
        topic_id=TOPIC_ID,
        partition=0,
        config=LogConfig.of({"index.interval.bytes": "1"}),
    )
    for _ in range(segments):
        for _ in range(batches):
            appending.append_as_leader(log, batch(), leader_epoch=0, now_ms=NOW_MS)
        appending.roll(log, NOW_MS)
    flushing.flush(log)
    return manager, log


@asynccontextmanager
async def _size(folder: Path, count: int) -> AsyncIterator[Work]:
    manager, log = _log(folder, count)

    async def work() -> None:
        assert log.size_bytes

    yield work
    await manager.close()


@asynccontextmanager
async def _copied_segment(folder: Path, count: int) -> AsyncIterator[Work]:
    """One more closed segment goes to the tier (a directory); those before are still here, too."""
    (folder / "tier").mkdir()
    host = TieredHost(folder, folder / "tier")
    await host.apply()
    log = host.partition.log

    async def work() -> None:
        await host.produce(1)
        appending.roll(log, NOW_MS)
        host.context.purgatory.notify((PartitionChange.SEGMENT_ROLLED, host.partition.tp))
        await host.until(lambda: log.highest_remote_offset + 1 >= log.next_offset)

    # All segments before the measured one are already in the tier.
    for _ in range(count):
        await host.produce(1)
        appending.roll(log, NOW_MS)
    await host.until(lambda: log.highest_remote_offset + 1 >= log.next_offset, 300.0)
    yield work
    await host.close()


@asynccontextmanager
async def _opening(folder: Path, count: int) -> AsyncIterator[Work]:
    """After a clean stop; every segment has an index of 100 entries."""
    manager, _ = _log(folder, count, batches=100)
    await manager.close(1)

    async def work() -> None:
        again = LogManager.open(folder / "log", node_id=1, cluster_id="c")
        failures = again.open_all(lambda _: LogConfig.of({}))
        assert not failures
        await again.close(1)

    yield work


OPERATIONS = (
    ScaleOperation("replica fetch, nothing new", "partitions", _idle_fetch),
    ScaleOperation("replica fetch, one partition has news", "partitions", _busy_fetch),
    ScaleOperation("one changed row applied", "partitions", _changed_row),
    ScaleOperation("one changed row in the metadata", "partitions", _changed_metadata),
    ScaleOperation("another topic's removal", "partitions", _removal),
    ScaleOperation("status report, nothing new", "partitions", _idle_status),
    ScaleOperation("a notify, one of many waits for it", "waiters", _other_waiters),
    ScaleOperation("a notify to a Fetch of many partitions", "partitions", _waiting_fetch),
    ScaleOperation("a raised log start made durable", "partitions", _raised_log_start),
    ScaleOperation("a copied segment", "segments", _copied_segment),
    ScaleOperation("log.size_bytes", "segments", _size),
    ScaleOperation("opening a log at start", "segments", _opening),
)
