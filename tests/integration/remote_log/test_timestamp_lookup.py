"""Lookups by time while segments move to the tier: no record is missed in between."""

import asyncio
import threading

import pytest

from tests.integration.remote_log.tiered_host import NOW_MS, TieredHost
from tests.integration.remote_log.watched_store import watched_leader
from tidemark_broker.replication.partition import consumer_reads, log_start


async def test_lookup_finds_records_that_move_to_the_tier(host: TieredHost) -> None:
    """The tier is searched with its former contents; by the time it answers, the local part starts
    later.

    A RecordDeletion would freeze the wrong offset and delete too much.
    """
    may_read, may_upload = threading.Event(), threading.Event()
    may_upload.set()
    reading: list[str] = []

    # Two gates: readers of segments wait for one, uploads for the other.
    def before(name: str, key: str) -> None:
        if name == "get_parts" and key.endswith(".log"):
            reading.append(key)
            assert may_read.wait(20)
        if name in ("put_stream", "put") and key.startswith("data/"):
            assert may_upload.wait(20)

    await watched_leader(host, before)
    await host.produce(200)
    await host.copied()
    await host.upkeep.apply_retention()
    partition, log = host.partition, host.partition.log
    assert log.local_log_start_offset > 100
    # New segments stay local until the upload gate opens.
    may_upload.clear()
    await host.produce(300)
    deadline_s = asyncio.get_running_loop().time() + 15
    consumers = [  # they keep the threads that read busy
        asyncio.create_task(host.remote.read(partition, offset, 3000, deadline_s))
        for offset in (0, 60)
    ]
    await host.until(lambda: len(reading) >= 2)
    # Offset 230 is in the local log when the lookup begins, but its tier part waits for a thread.
    lookup = asyncio.create_task(consumer_reads.list_offset(partition, NOW_MS + 230))
    await asyncio.sleep(0.1)
    assert not lookup.done()
    # Meanwhile the segments move: copied, then deleted locally.
    may_upload.set()
    await host.copied()
    await host.upkeep.apply_retention()
    assert log.local_log_start_offset > 230
    # The tier's part was decided on old contents, so the lookup has to notice the move.
    may_read.set()
    found = await lookup
    await asyncio.gather(*consumers)
    assert (int(found.error), found.offset) == (0, 230)


FUTURE_MS = NOW_MS + 10_000_000


async def newest(host: TieredHost) -> tuple[int, int, int]:
    """Return offset, timestamp and leader epoch of the answer to the largest timestamp."""
    found = await consumer_reads.list_offset(host.partition, consumer_reads.MAX_TIMESTAMP)
    assert int(found.error) == 0
    return found.offset, found.timestamp_ms, found.leader_epoch


async def all_in_the_tier(host: TieredHost) -> None:
    """Delete all local segments, so that only the tier has records."""
    await host.copied()
    host.config |= {"local.retention.ms": "0", "local.retention.bytes": "0"}
    await host.apply()
    # Three rounds: close the active segment, copy it, delete it.
    for _ in range(3):
        await host.partition.context.states.written()
        await host.upkeep.apply_retention()
        await host.copied()
    assert host.partition.log.size_bytes == 0


@pytest.mark.parametrize("at", [0, 50, 199])
async def test_largest_timestamp_is_found_in_the_tier(host: TieredHost, at: int) -> None:
    await host.apply()
    await host.produce(at)
    # The largest timestamp at the begin, in the middle and at the end of the log.
    await host.produce(1, timestamp_ms=FUTURE_MS)
    await host.produce(199 - at)
    await all_in_the_tier(host)
    # ListOffsets with -3 (KIP-734): offset, timestamp and leader epoch.
    assert await newest(host) == (at, FUTURE_MS + at, 1)


async def test_largest_timestamp_is_compared_across_tier_and_local_log(host: TieredHost) -> None:
    await host.apply()
    await host.produce(50)
    await host.produce(1, timestamp_ms=FUTURE_MS)
    await host.produce(149)
    await host.copied()
    await host.upkeep.apply_retention()
    assert host.partition.log.local_log_start_offset > 100
    assert await newest(host) == (50, FUTURE_MS + 50, 1)
    await host.produce(20)
    assert await newest(host) == (50, FUTURE_MS + 50, 1)
    # Equal: the first one. Larger: that of the local log.
    await host.produce(1, timestamp_ms=FUTURE_MS + 50 - 220)
    assert await newest(host) == (50, FUTURE_MS + 50, 1)
    await host.produce(1, timestamp_ms=FUTURE_MS)
    assert await newest(host) == (221, FUTURE_MS + 221, 1)


# The same answer from the local log and from the tier.
@pytest.mark.parametrize("tiered", [False, True])
async def test_largest_timestamp_ignores_deleted_records(host: TieredHost, tiered: bool) -> None:
    """The log start lies within the segment, behind its largest timestamp."""
    await host.apply()
    await host.produce(10)
    # Offset 10 has the largest timestamp, 11 the next; both are deleted below.
    await host.produce(1, timestamp_ms=FUTURE_MS)
    await host.produce(1, timestamp_ms=FUTURE_MS - 1000)
    await host.produce(5)
    await host.produce(1, timestamp_ms=FUTURE_MS - 5_000)
    if tiered:
        await host.produce(100)
        await all_in_the_tier(host)
    log_start.delete_records(host.partition, 13)
    await host.until(lambda: host.partition.log_start_offset == 13)
    # Only offset 17 is left with a future timestamp.
    assert await newest(host) == (17, FUTURE_MS - 5_000 + 17, 1)


async def test_empty_log_has_no_largest_timestamp(host: TieredHost) -> None:
    await host.apply()
    assert (await newest(host))[:2] == (-1, -1)
