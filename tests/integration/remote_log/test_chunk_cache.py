"""A broker's cache of remote chunks on disk, below a cache in memory that holds next to nothing."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.remote_log.tiered_host import TieredHost
from tests.integration.remote_log.watched_store import watch
from tidemark.metrics import tier_table
from tidemark_broker.config_entries import ConfigError

MakeHost = Callable[..., TieredHost]


class SegmentRequests(Counter[str]):
    """Numbers of requests for objects of segments, by call."""

    def __call__(self, call: str, key: str) -> None:
        if key.endswith((".log", ".aux")):
            self[call] += 1


@pytest.fixture
def make_cold(make_host: MakeHost, tmp_path: Path) -> MakeHost:
    def make(**config: Any) -> TieredHost:
        keys: dict[str, Any] = {
            "tidemark_remote_chunk_cache_bytes": 1,
            "remote_log_index_file_cache_total_size_bytes": 1,
            "tidemark_remote_chunk_cache_disk_bytes": 1 << 20,
            "tidemark_remote_chunk_cache_disk_path": str(tmp_path / "chunks"),
        }
        return make_host(**(keys | config))

    return make


async def copied(host: TieredHost) -> int:
    """Produce and copy a few segments; return the offset at which the tier ends."""
    await host.apply()
    await host.produce(300)
    await host.copied()
    return host.partition.log.highest_remote_offset + 1


async def test_second_pass_makes_no_requests(make_cold: MakeHost) -> None:
    host, requests = make_cold(), SegmentRequests()
    end = await copied(host)
    watch(host, requests)
    first = await host.read_tier(0, end)
    segments = len(host.live())
    # A chunk of each segment, which is smaller than a chunk, and its indexes.
    assert requests == {"get_parts": segments, "get": segments}
    requests.clear()
    assert await host.read_tier(0, end) == first
    assert not requests
    assert host.gauge(tier_table.CHUNK_FILE_COUNT) == 2 * segments
    assert host.gauge(tier_table.CHUNK_FILE_MISSES) == 2 * segments
    assert host.gauge(tier_table.CHUNK_FILE_HITS) > 2 * segments
    assert host.gauge(tier_table.CHUNK_FILE_BYTES) > 0


async def test_readers_of_minio_make_one_request_for_each_chunk(
    make_cold: MakeHost, s3: dict[str, Any]
) -> None:
    """Eight consumers at the same time, and then eight more."""
    host, requests = make_cold(), SegmentRequests()
    host.store = {"s3": s3}
    end = await copied(host)
    watch(host, requests)
    segments = len(host.live())
    for _ in range(2):
        # Different sizes, because requests of the same offset and size share one read anyway.
        reads = [host.read_tier(0, end, max_bytes=1000 + size) for size in range(8)]
        assert len({tuple(seen) for seen in await asyncio.gather(*reads)}) == 1
        assert requests == {"get_parts": segments, "get": segments}
    assert host.gauge(tier_table.CHUNK_FILE_ERRORS) == 0


async def test_restarted_broker_serves_from_the_cache(make_cold: MakeHost) -> None:
    host = make_cold()
    end = await copied(host)
    first = await host.read_tier(0, end)
    row = host.row
    await host.close()
    restarted, requests = make_cold(), SegmentRequests()
    restarted.row = row
    await restarted.apply(leader_epoch=2)
    await restarted.until(lambda: bool(restarted.remote.status().store_id))
    watch(restarted, requests)
    assert await restarted.read_tier(0, end) == first
    assert not requests


async def test_lost_directory_costs_only_speed(make_cold: MakeHost, tmp_path: Path) -> None:
    host, requests = make_cold(), SegmentRequests()
    end = await copied(host)
    first = await host.read_tier(0, end)
    shutil.rmtree(tmp_path / "chunks")
    watch(host, requests)
    assert await host.read_tier(0, end) == first
    assert requests
    assert host.gauge(tier_table.CHUNK_FILE_ERRORS) > 0
    assert host.gauge(tier_table.FETCH_ERRORS) == 0


async def test_damaged_file_is_never_served(make_cold: MakeHost, tmp_path: Path) -> None:
    host = make_cold()
    end = await copied(host)
    first = await host.read_tier(0, end)
    for path in (tmp_path / "chunks").rglob("*.0.*"):
        data = bytearray(path.read_bytes())
        data[-5] ^= 0x10
        path.write_bytes(data)
    assert await host.read_tier(0, end) == first
    assert host.gauge(tier_table.CHUNK_FILE_ERRORS) == len(host.live())
    # It was found before the read used it, so no object of the tier is suspected.
    assert host.gauge(tier_table.INTEGRITY_ERRORS) == 0


async def test_deleted_segments_leave_the_cache(make_cold: MakeHost) -> None:
    host = make_cold()
    await host.read_tier(0, await copied(host))
    assert host.gauge(tier_table.CHUNK_FILE_COUNT) > 0
    host.config["retention.bytes"] = "1"
    await host.apply()
    await host.until(lambda: host.gauge(tier_table.CHUNK_FILE_COUNT) == 0)
    assert host.live() == []


async def test_size_without_a_path_is_refused(make_cold: MakeHost) -> None:
    with pytest.raises(ConfigError, match=r"requires tidemark\.remote\.chunk\.cache\.disk\.path"):
        make_cold(tidemark_remote_chunk_cache_disk_path="")


async def test_broker_without_a_size_has_no_cache(make_cold: MakeHost, tmp_path: Path) -> None:
    host = make_cold(tidemark_remote_chunk_cache_disk_bytes=0)
    await host.read_tier(0, await copied(host))
    assert not (tmp_path / "chunks").exists()
    assert host.gauge(tier_table.CHUNK_FILE_MISSES) == 0
