"""A real log is copied to the tier, deleted locally, and read back."""

import asyncio
import itertools
import json

import pytest

from tests.integration.remote_log.tiered_host import CLUSTER, NOW_MS, TOPIC_ID, TieredHost
from tidemark.records.batch import iter_headers
from tidemark.tier.metadata import queries
from tidemark_broker.remote_log.segment_reader import Caches, SegmentReader
from tidemark_broker.remote_log.settings import RemoteSettings
from tidemark_broker.replication.partition import consumer_reads
from tidemark_broker.replication.remote import RemoteOffsetOutOfRange, RemoteUnavailable


async def test_closed_segments_are_copied_and_read_back(host: TieredHost) -> None:
    partition = await host.apply()
    await host.produce(500)
    await host.copied()
    closed = [s for s in partition.log.segment_infos() if not s.is_active]
    assert host.live() == [(s.base_offset, s.next_base_offset - 1) for s in closed]
    await host.upkeep.apply_retention()
    assert partition.log.local_log_start_offset == closed[-1].next_base_offset
    assert partition.log_start_offset == 0

    # Batches have five records, so the last offset of each batch is 4, 9, 14 ...
    end = partition.log.local_log_start_offset
    # A fetch in the middle of a batch returns the whole batch, as in Kafka; clients skip its
    # beginning.
    assert await host.read_tier(0, end) == list(range(4, end, 5))
    assert await host.read_tier(123, end) == list(range(124, end, 5))
    # Offset 17 is below the local log start: the local read refers to the tier instead of failing.
    result = consumer_reads.fetch(partition, 17, max_bytes=1000, min_one=True)
    assert result.remote is not None
    summary = host.remote.summary(partition)
    assert (summary.segments, summary.highest_remote_offset) == (len(closed), end - 1)
    assert (summary.error_reason, summary.size_bytes) == ("", sum(s.size_bytes for s in closed))
    # The tier has the topic's name, and the row of the controller records that a manifest exists.
    assert host.tier().topics.get(TOPIC_ID).name == "flights"
    assert partition.row is not None
    assert partition.row.manifest


async def test_sequential_reader_downloads_each_chunk_once(host: TieredHost) -> None:
    await host.apply()
    await host.produce(300)
    await host.copied()
    end = host.partition.log.highest_remote_offset + 1
    # A read of 600 bytes returns about one batch, so each segment is read in many steps.
    await host.read_tier(0, end, max_bytes=600)
    chunks = host.remote._fetcher.caches.chunks
    # One miss for each segment: every other read was served from the chunk cache.
    assert chunks.misses == len(host.live())


async def test_read_keeps_its_chunk_while_the_cache_evicts_it(host: TieredHost) -> None:
    """A cache of one byte evicts every chunk at once, like a cache that is full."""
    await host.apply()
    await host.produce(300)
    await host.copied()
    # With one byte nothing stays in the cache after its use.
    caches = Caches(RemoteSettings(chunk_cache_bytes=1))
    entry = next(queries.live_segments(host.head(), {}))
    data, next_offset, _ = SegmentReader(host.tier(), caches, entry).read(0, 3000)
    # Several batches from one chunk: the read itself holds on to it.
    assert len(list(iter_headers(bytes(data)))) == next_offset / 5 > 1
    assert caches.chunks.misses == 1


async def test_batch_larger_than_the_request_is_returned_whole(host: TieredHost) -> None:
    await host.apply()
    # Twenty records per batch, so offset 33 is in the batch 20 to 39, which is larger than ten
    # bytes.
    await host.produce(300, per_batch=20)
    await host.copied()
    found = await host.remote.read(host.partition, 33, 10, asyncio.get_running_loop().time() + 5)
    # min_one: a batch above the limit is returned whole, otherwise the consumer would make no
    # progress (KIP-74).
    assert found.next_offset == 40


async def test_offset_beyond_the_tier_is_out_of_range(host: TieredHost) -> None:
    await host.apply()
    await host.produce(300)
    await host.copied()
    end = host.partition.log.highest_remote_offset + 1
    with pytest.raises(RemoteOffsetOutOfRange):
        await host.remote.read(host.partition, end, 10, asyncio.get_running_loop().time() + 5)


@pytest.mark.parametrize("offset", [0, 7, 133])
async def test_offsets_by_timestamp(host: TieredHost, offset: int) -> None:
    await host.apply()
    await host.produce(300)
    await host.copied()
    found = await host.remote.offset_by_timestamp(host.partition, NOW_MS + offset)
    assert found is not None
    assert (found.offset, found.timestamp_ms, found.leader_epoch) == (offset, NOW_MS + offset, 1)
    # Later than the newest record: the lookup finds nothing, as Kafka's offsetForTimes.
    assert await host.remote.offset_by_timestamp(host.partition, NOW_MS + 10_000) is None


async def test_restart_continues_where_the_tier_ends(make_host, host: TieredHost) -> None:  # type: ignore[no-untyped-def]
    await host.apply()
    await host.produce(250)
    await host.copied()
    await host.upkeep.apply_retention()
    row = host.row
    await host.close()

    # Another process on the same disk and the same tier, as leader of the next epoch.
    restarted = make_host()
    restarted.row = row
    await restarted.apply(leader_epoch=2)
    await restarted.produce(250)
    await restarted.copied()
    ranges = restarted.live()
    # Neither gap nor overlap between the segments of the two terms.
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(ranges))
    end = restarted.partition.log.local_log_start_offset
    assert await restarted.read_tier(0, end) == list(range(4, end, 5))


async def test_first_broker_writes_the_store_identity(host: TieredHost) -> None:
    await host.apply()
    # The broker that finds an empty store writes the identity that later brokers verify.
    await host.until(lambda: host.remote.status().store_id != "")
    fields = json.loads((host.tier_path / "tidemark.json").read_text())
    assert (fields["storeId"], fields["clusterId"]) == (host.remote.status().store_id, CLUSTER)


async def test_full_reader_queue_rejects_reads_at_once(make_host) -> None:  # type: ignore[no-untyped-def]
    # One thread and one queued task, so most of the twenty reads find the queue full.
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
    # Refused at once, not after the deadline of five seconds.
    assert not any(isinstance(result, TimeoutError) for result in results)
