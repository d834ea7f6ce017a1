"""Read-ahead for sequential readers of the tier: what it loads, and what it must not delay."""

import asyncio

import pytest

from tests.integration.remote_log.blocking_storage import blocking
from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.tiered_host import TOPIC_ID, TieredHost
from tidemark.metrics import tier_table
from tidemark.tier.metadata import queries
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.stores.directory import DirectoryStore
from tidemark_broker.remote_log.segment_reader import SegmentReader

READ_BYTES = 512 * 1024


@pytest.fixture(autouse=True)
def network_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the directory be one of a network file system, which does not tell what is cached."""
    monkeypatch.setattr(DirectoryStore, "has_page_cache", False)


async def filled(make_host: MakeHost, **config: int) -> TieredHost:
    """Return a host with some segments of 1 MiB, of four chunks each, in the tier."""
    host = make_host(**config)
    host.config["segment.bytes"] = str(1 << 20)
    await host.apply()
    await host.produce(40_000, per_batch=500)
    await host.copied()
    return host


def live(host: TieredHost) -> list[SegmentEntry]:
    pages = host.tier().manifests.pages(TOPIC_ID, 0)
    return list(queries.live_segments(host.head(), pages))


def cache_segment(host: TieredHost, entry: SegmentEntry) -> None:
    """Load a whole segment into the cache."""
    reader = SegmentReader(host.tier(), host.remote._fetcher.caches, entry)
    reader.load_in_advance(0, entry.size_bytes)


async def read_segment(host: TieredHost, entry: SegmentEntry) -> None:
    await host.read_tier(entry.start_offset, entry.end_offset_inclusive + 1, READ_BYTES)


async def loaded(host: TieredHost) -> None:
    """Wait until nothing is being loaded in advance any more."""
    await host.until(lambda: not host.remote._fetcher._loads_in_advance)


async def test_next_segment_of_a_sequential_reader_is_loaded_in_advance(
    make_host: MakeHost,
) -> None:
    host = await filled(make_host, remote_log_reader_threads=4)
    first, second, *_ = live(host)
    await read_segment(host, first)
    await loaded(host)
    assert host.gauge(tier_table.READ_AHEAD_BYTES) > 0
    indexes = host.remote._fetcher.caches.indexes
    assert second.segment_id.int in indexes
    # Without the store the reader still continues in the next segment.
    with blocking(host, "reads"):
        found = await host.remote.read(
            host.partition, second.start_offset, 100_000, asyncio.get_running_loop().time() + 5
        )
        assert found.next_offset > second.start_offset


async def test_chunk_of_the_next_read_is_kept_before_the_loop_has_the_result(
    make_host: MakeHost,
) -> None:
    # One thread loads nothing in advance, so only the chunks of the reads are in the cache.
    host = await filled(make_host, remote_log_reader_threads=1)
    fetcher, (entry, *_), offset = host.remote._fetcher, live(host), 0
    read_bytes, deadline_s = 200_000, asyncio.get_running_loop().time() + 10
    for _ in range(2):
        found = await host.remote.read(host.partition, offset, read_bytes, deadline_s)
        offset = found.next_offset
    reading = asyncio.create_task(host.remote.read(host.partition, offset, read_bytes, deadline_s))
    # The task submits its job in its first step. Wait in the loop's thread, as if it were busy.
    await asyncio.sleep(0)
    (job,) = fetcher._jobs._jobs.values()
    _, end = job.future.result(10)
    chunk = entry.segment_id.int, end.position // fetcher.caches.chunk_bytes
    assert chunk in fetcher.caches.chunks._unused
    await reading


async def test_no_byte_is_requested_twice_from_the_store(make_host: MakeHost) -> None:
    """Several readers and their read-ahead overlap in the same segments."""
    host = await filled(make_host, remote_log_reader_threads=6)
    segments = live(host)
    end = segments[-1].end_offset_inclusive + 1
    # Readers at different positions, with reads of different sizes.
    await asyncio.gather(
        *(
            host.read_tier(offset, end, size)
            for offset, size in ((0, READ_BYTES), (0, READ_BYTES), (0, 300_000), (7_000, 150_000))
        )
    )
    await loaded(host)
    size = sum(entry.size_bytes for entry in segments)
    assert host.gauge(tier_table.STORE_READ_BYTES) == size
    assert 0 < host.gauge(tier_table.READ_AHEAD_BYTES) <= size
    # Fewer requests than chunks: adjacent ones are read together, and one is for the indexes.
    chunks = sum(-(-entry.size_bytes // 262_144) for entry in segments)
    assert host.gauge(tier_table.STORE_READS) < chunks + len(segments)
    assert host.gauge(tier_table.READ_AHEAD_UNUSED_BYTES) == 0


@pytest.mark.parametrize(("threads", "taken"), [(1, 0), (2, 1), (4, 2), (5, 2)])
async def test_read_ahead_leaves_threads_to_requests(
    make_host: MakeHost, threads: int, taken: int
) -> None:
    host = await filled(make_host, remote_log_reader_threads=threads)
    first, *_ = live(host)
    cache_segment(host, first)
    fetcher = host.remote._fetcher
    with blocking(host, "reads") as storage:
        await read_segment(host, first)
        # Half of the threads at most wait for the store.
        assert fetcher._loads_in_advance <= taken
        await host.until(lambda: (len(storage.begun) > 0) == (taken > 0))
        # A request still finds a thread, and its data in the cache.
        await read_segment(host, first)
        assert fetcher._loads_in_advance <= taken


async def test_limit_of_zero_bytes_disables_read_ahead(make_host: MakeHost) -> None:
    host = await filled(make_host, tidemark_remote_read_ahead_max_bytes=0)
    for entry in live(host):
        await read_segment(host, entry)
    assert host.gauge(tier_table.READ_AHEAD_BYTES) == 0
    assert len(live(host)) > 2


async def test_failed_read_ahead_does_not_fail_the_read(make_host: MakeHost) -> None:
    host = await filled(make_host, remote_log_reader_threads=4)
    first, second, *_ = live(host)
    cache_segment(host, first)
    # The next segment's data is missing while it is loaded in advance.
    path = host.tier_path / second.log_key
    away = path.rename(path.with_suffix(".away"))
    await read_segment(host, first)
    await loaded(host)
    away.rename(path)
    await read_segment(host, second)
    assert host.gauge(tier_table.FETCH_ERRORS) == 0
