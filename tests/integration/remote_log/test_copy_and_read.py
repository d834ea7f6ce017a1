"""A real log is copied, let go of locally, and read back from the tier."""

import asyncio
import itertools
import json

import pytest

from tests.integration.remote_log.tiered_host import CLUSTER, NOW_MS, TOPIC_ID, TieredHost
from tidemark.records.batch import iter_headers
from tidemark.tier import queries
from tidemark_broker.remote_log.segment_reader import Caches, SegmentReader
from tidemark_broker.remote_log.settings import RemoteSettings
from tidemark_broker.replication.partition import consumer_reads
from tidemark_broker.replication.remote import RemoteOffsetOutOfRange, RemoteUnavailable


async def test_closed_segments_are_copied_and_read_back(host: TieredHost) -> None:
    partition = await host.apply()
    await host.produce(500)
    await host.copied()
    closed = [s for s in partition.log.segments() if not s.is_active]
    assert host.live() == [(s.base_offset, s.next_base_offset - 1) for s in closed]
    await host.upkeep.apply_retention()
    assert partition.log.local_log_start_offset == closed[-1].next_base_offset
    assert partition.log_start_offset == 0

    end = partition.log.local_log_start_offset
    assert await host.read_tier(0, end) == list(range(4, end, 5))
    assert await host.read_tier(123, end) == list(range(124, end, 5))
    result = consumer_reads.fetch(partition, 17, max_bytes=1000, min_one=True)
    assert result.remote is not None
    summary = host.remote.summary(partition)
    assert (summary.segments, summary.highest_remote_offset) == (len(closed), end - 1)
    assert (summary.error_reason, summary.size_bytes) == ("", sum(s.size_bytes for s in closed))
    assert host.tier().topics.get(TOPIC_ID).name == "flights"
    assert partition.row is not None
    assert partition.row.manifest


async def test_a_sequential_reader_gets_each_range_once(host: TieredHost) -> None:
    await host.apply()
    await host.produce(300)
    await host.copied()
    end = host.partition.log.highest_remote_offset + 1
    await host.read_tier(0, end, max_bytes=600)
    chunks = host.remote._fetcher.caches.chunks
    assert chunks.misses == len(host.live())


async def test_a_read_keeps_what_it_uses_until_it_is_done(host: TieredHost) -> None:
    """Also with a cache that keeps nothing, as one does whose chunks others push out at once."""
    await host.apply()
    await host.produce(300)
    await host.copied()
    caches = Caches(RemoteSettings(chunk_cache_bytes=1))
    entry = next(queries.live_segments(host.head(), {}))
    data, next_offset, _ = SegmentReader(host.tier(), caches, entry).read(0, 3000)
    assert len(list(iter_headers(data))) == next_offset / 5 > 1
    assert caches.chunks.misses == 1


async def test_batch_larger_than_the_request_is_returned_whole(host: TieredHost) -> None:
    await host.apply()
    await host.produce(300, per_batch=20)
    await host.copied()
    found = await host.remote.read(host.partition, 33, 10, asyncio.get_running_loop().time() + 5)
    assert found.next_offset == 40


async def test_an_offset_behind_the_tier_is_out_of_range(host: TieredHost) -> None:
    await host.apply()
    await host.produce(300)
    await host.copied()
    end = host.partition.log.highest_remote_offset + 1
    with pytest.raises(RemoteOffsetOutOfRange):
        await host.remote.read(host.partition, end, 10, asyncio.get_running_loop().time() + 5)


@pytest.mark.parametrize("asked", [0, 7, 133])
async def test_offsets_by_timestamp(host: TieredHost, asked: int) -> None:
    await host.apply()
    await host.produce(300)
    await host.copied()
    found = await host.remote.offset_by_timestamp(host.partition, NOW_MS + asked)
    assert found is not None
    assert (found.offset, found.timestamp_ms, found.leader_epoch) == (asked, NOW_MS + asked, 1)
    assert await host.remote.offset_by_timestamp(host.partition, NOW_MS + 10_000) is None


async def test_restart_continues_where_the_tier_ends(make_host, host: TieredHost) -> None:  # type: ignore[no-untyped-def]
    await host.apply()
    await host.produce(250)
    await host.copied()
    await host.upkeep.apply_retention()
    row = host.row
    await host.close()

    again = make_host()
    again.row = row
    await again.apply(leader_epoch=2)
    await again.produce(250)
    await again.copied()
    ranges = again.live()
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(ranges))
    end = again.partition.log.local_log_start_offset
    assert await again.read_tier(0, end) == list(range(4, end, 5))


async def test_the_first_broker_makes_the_identity(host: TieredHost) -> None:
    await host.apply()
    await host.until(lambda: host.remote.status().store_id != "")
    fields = json.loads((host.tier_path / "tidemark.json").read_text())
    assert (fields["storeId"], fields["clusterId"]) == (host.remote.status().store_id, CLUSTER)


async def test_a_full_queue_refuses(make_host) -> None:  # type: ignore[no-untyped-def]
    host = make_host(remote_log_reader_threads=1, remote_log_reader_max_pending_tasks=1)
    await host.apply()
    await host.produce(300)
    await host.copied()
    consumer_reads = [
        host.remote.read(host.partition, n, 100, asyncio.get_running_loop().time() + 5)
        for n in range(0, 100, 5)
    ]
    results = await asyncio.gather(*consumer_reads, return_exceptions=True)
    assert any(isinstance(result, RemoteUnavailable) for result in results)
    assert not any(isinstance(result, TimeoutError) for result in results)
