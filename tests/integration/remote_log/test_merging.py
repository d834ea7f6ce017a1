"""Small segments of the tier are merged, and no reader, deletion or crash notices it."""

import asyncio
import collections
import itertools
import threading
import time

import pytest

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.orphans import no_orphans, swept_clean
from tests.integration.remote_log.test_transactions import abort, aborted_in_the_tier, batch, send
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import NOW_MS, TieredHost
from tests.integration.remote_log.watched_store import BlockedCall, ready, watch
from tidemark.configuration.broker_keys import MERGE_MAX_BYTES
from tidemark.configuration.topic_keys import COPY_PAUSED, REMOTE_COMPRESSION
from tidemark.configuration.values import INT64_MAX
from tidemark.metrics import tier_table
from tidemark.tier.segments.remote_storage_manager import decode_custom_metadata
from tidemark.tier.stores.objects import StoreUnavailable
from tidemark.tiering import DisablePolicy, TieringState
from tidemark_broker.log import appending
from tidemark_broker.replication.partition import log_start

#: Segments of at most 128 KiB are merged. None is ever full in these tests.
SMALL = {"segment.bytes": str(1 << 20), "remote.storage.enable": "true"}
RETAIN = DisablePolicy.RETAIN


async def small_segments(host: TieredHost, count: int, *, merges: bool = False) -> TieredHost:
    """Copy segments of 20 records each. They are merged at once, or once :func:`merge` runs."""
    host.config |= SMALL
    if not merges:
        host.cluster_config[MERGE_MAX_BYTES] = "0"
    await host.apply()
    for _ in range(count):
        await host.produce(20)
        appending.roll(host.partition.log, host.context.wall_ms())
    await host.copied()
    return host


async def merge(host: TieredHost) -> None:
    """Allow merges from now on."""
    host.cluster_config.pop(MERGE_MAX_BYTES, None)
    await host.apply()


async def all_records(host: TieredHost, end: int) -> None:
    """Verify that every batch of five records is read once from the tier."""
    assert await host.read_tier(0, end) == list(range(4, end, 5))


async def test_small_segments_become_one(host: TieredHost) -> None:
    await small_segments(host, 10)
    size_bytes = host.gauge(tier_table.SIZE_BYTES)
    assert len(host.live()) == 10
    await merge(host)
    await host.until(lambda: host.live() == [(0, 199)])
    await all_records(host, 200)
    assert host.gauge(tier_table.MERGED_SEGMENTS) == 10
    assert host.gauge(tier_table.MERGED_BYTES) == size_bytes == host.gauge(tier_table.SIZE_BYTES)
    # The old objects are deleted, and the size is no other.
    await host.until(lambda: len(host.objects()) == 2)
    # Each record is found by its time, as before.
    for offset in (0, 57, 199):
        found = await host.remote.offset_by_timestamp(host.partition, NOW_MS + offset)
        assert found is not None
        assert found.offset == offset
    newest = await host.remote.newest_offset(host.partition)
    assert newest is not None
    assert newest.offset == 199


async def test_later_segments_are_merged_with_others_of_their_size(host: TieredHost) -> None:
    await small_segments(host, 70, merges=True)
    # 64 segments became eight, and these one, whatever the order in which they were noticed.
    await host.until(lambda: len(host.live()) <= 14)
    await all_records(host, 1400)
    assert host.gauge(tier_table.MERGED_BYTES) <= 4 * host.gauge(tier_table.SIZE_BYTES)
    await no_orphans(host)


async def test_compressed_segments_are_merged_into_a_compressed_one(host: TieredHost) -> None:
    host.config[REMOTE_COMPRESSION] = "zstd"
    await small_segments(host, 10)
    await merge(host)
    await host.until(lambda: host.live() == [(0, 199)])
    (entry,) = host.head().finished_entries
    assert entry.custom_metadata is not None
    assert decode_custom_metadata(entry.custom_metadata).size_bytes < entry.size_bytes // 2
    await all_records(host, 200)


async def test_requests_of_a_merge_are_those_of_the_cost_model(host: TieredHost) -> None:
    await small_segments(host, 8)
    await ready(host)
    calls: collections.Counter[str] = collections.Counter()
    watch(host, lambda name, key: calls.update([name if key.startswith("data/") else "head"]))
    await merge(host)
    await host.until(lambda: host.live() == [(0, 159)] and len(host.objects()) == 2)
    await host.until(lambda: len(host.head().entries) == 1)
    # Each part is read with two requests, and written with two for all of them.
    assert (calls["get"], calls["get_parts"]) == (8, 8)
    assert (calls["put_stream"], calls["put"]) == (1, 1)
    # COPY_STARTED, COPY_FINISHED, and the end of the deletion. Reads of the head are few.
    assert host.head().version - 2 * 8 <= 6


async def test_a_merge_takes_at_most_a_second_of_the_copy_quota(make_host: MakeHost) -> None:
    size_bytes = 20_000
    host = make_host(remote_log_manager_copy_max_bytes_per_second=size_bytes)
    await small_segments(host, 12)
    await merge(host)
    # Parts of about 2.6 kB are too large to be an eighth of that.
    await asyncio.sleep(0.5)
    assert len(host.live()) == 12


async def test_pause_of_copying_stops_merges(host: TieredHost) -> None:
    await small_segments(host, 10)
    host.config[COPY_PAUSED] = "true"
    await merge(host)
    await asyncio.sleep(0.4)
    assert len(host.live()) == 10
    del host.config[COPY_PAUSED]
    await host.apply()
    await host.until(lambda: len(host.live()) == 1)


@pytest.mark.parametrize("failing", range(12))
async def test_merge_fails_at_any_call_and_is_repeated(host: TieredHost, failing: int) -> None:
    """Each call of a merge to the store fails once, before or after its effect on the store."""
    await small_segments(host, 10)
    await ready(host)
    calls = itertools.count()
    lock = threading.Lock()

    def fail_once(name: str, key: str) -> None:
        with lock:
            number = next(calls)
        if number == failing:
            raise StoreUnavailable(f"{name} of {key} fails", reason="Test", retriable=True)

    watch(host, fail_once)
    await merge(host)
    await host.until(lambda: host.live() == [(0, 199)])
    await all_records(host, 200)
    await no_orphans(host)
    assert host.summary.error_reason == ""


async def merge_in_progress(host: TieredHost, segments: int = 10) -> BlockedCall:
    """Return the blocked upload of a merged segment."""
    await small_segments(host, segments)
    await ready(host)
    upload = BlockedCall("put_stream", "data/")
    watch(host, upload)
    await merge(host)
    await host.until(upload.begun.is_set)
    assert host.head().merging is not None
    return upload


async def test_next_leader_gives_up_the_merge_of_its_predecessor(host: TieredHost) -> None:
    upload = await merge_in_progress(host)
    first = host.head().merging
    assert first is not None
    await host.apply(leader_epoch=2)
    await host.until(lambda: host.head().leader_epoch == 2)
    assert await host.read_tier(0, 200) == list(range(4, 200, 5))
    await upload.release()
    await host.until(lambda: host.live() == [(0, 199)])
    assert first.segment_id not in {entry.segment_id for entry in host.head().finished_entries}
    await all_records(host, 200)
    await no_orphans(host)


async def test_killed_leader_leaves_nothing_that_a_sweep_does_not_find(
    make_host: MakeHost, host: TieredHost
) -> None:
    upload = await merge_in_progress(host)
    row = host.row
    closing = asyncio.create_task(host.close())
    await upload.release()
    await closing
    restarted = make_host()
    restarted.config |= SMALL
    restarted.row = row
    await restarted.apply(leader_epoch=2)
    await restarted.until(lambda: restarted.live() == [(0, 199)])
    # The merge may have been complete before the restart, and the store must be verified again.
    await restarted.until(lambda: not restarted.remote.status().error)
    await all_records(restarted, 200)
    swept_clean(restarted)


async def test_deleted_records_are_not_copied_into_a_merged_segment(host: TieredHost) -> None:
    upload = await merge_in_progress(host, 12)
    log_start.raise_to(host.partition, 25)
    await host.until(lambda: host.head().log_start_offset == 25)
    await upload.release()
    # The second segment has the log start, and stays as it is.
    await host.until(lambda: host.live() == [(20, 39), (40, 239)])
    assert await host.read_tier(25, 240) == list(range(29, 240, 5))
    # The old objects are deleted, those of deleted records included.
    starts = {20, 40}
    await host.until(lambda: {int(key.rsplit("/", 1)[1][:20]) for key in host.objects()} == starts)
    await no_orphans(host)


async def test_disablement_ends_a_merge(host: TieredHost) -> None:
    upload = await merge_in_progress(host)
    await host.apply(
        tiering_state=int(TieringState.DISABLING), tiered_epoch=1, disable_policy=int(RETAIN)
    )
    await host.acknowledged(1, RETAIN)
    await upload.release()
    # Retained records stay readable from the segments that they are in.
    await no_orphans(host)
    assert len(host.live()) == 10
    await all_records(host, 200)


async def test_copies_continue_during_a_merge(host: TieredHost) -> None:
    upload = await merge_in_progress(host)
    # Only the merge's own upload waits.
    upload._prefix = "none"
    await host.produce(20)
    appending.roll(host.partition.log, host.context.wall_ms())
    await host.copied()
    assert len(host.live()) == 11
    upload._prefix = "data/"
    await upload.release()
    await host.until(lambda: host.live() == [(0, 199), (200, 219)])


async def test_aborted_transactions_and_producers_of_merged_segments(
    cluster: TieredCluster,
) -> None:
    leader = cluster.hosts[1]
    # The marker has the present time, and the records have timestamps of years ago.
    cluster.config |= {**SMALL, "segment.ms": str(INT64_MAX)}
    leader.cluster_config[MERGE_MAX_BYTES] = "0"
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    # Producer 1's transaction begins in the first segment and is aborted some segments later.
    await send(leader, batch(1, 0, transactional=True))
    await send(leader, batch(2, 0, transactional=False))
    markers = []
    for number in range(10):
        await leader.produce(20)
        if number == 5:
            markers.append(await abort(leader, 1))
        appending.roll(leader.partition.log, leader.context.wall_ms())
    await leader.copied()
    leader.cluster_config.clear()
    await cluster.push(1)
    await leader.until(lambda: len(leader.live()) == 1)
    assert await aborted_in_the_tier(leader, 0) == [(1, 0)]
    found = await leader.remote.read(
        leader.partition, markers[0] + 1, 1 << 20, time.monotonic() + 10
    )
    assert found.aborted == []
    # A follower that starts from the tier receives the producers of the merged segment.
    await leader.upkeep.apply_retention()
    await cluster.start(3)
    await cluster.apply(1, 3, replicas=(1, 3))
    await cluster.until_in_sync(1, 3)
    new = cluster.hosts[3].partition
    assert sorted(new.log.active_producers()) == sorted(leader.partition.log.active_producers())
