"""Long operations must not delay short ones: claims and commits beside mass deletion, produces
beside cold reads.
"""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.integration.remote_log.blocking_storage import blocking
from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.tiered_host import TOPIC_ID
from tests.longest_turn import TURN_MS, longest_turn
from tidemark.metrics import tier_table
from tidemark.tier.metadata import queries
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.integrity import BatchLine
from tidemark.tier.segments.remote_storage_manager import RemoteStorageManager
from tidemark_broker.remote_log.remote_log_manager import RemoteLogManager
from tidemark_broker.remote_log.segment_reader import CachedSegmentReader
from tidemark_broker.replication.partition import log_start
from tidemark_broker.replication.remote import RemoteOffsetOutOfRange


async def test_copies_and_claims_continue_while_every_deletion_hangs(make_host: MakeHost) -> None:
    """Deletions of two partitions block both expiration threads; partition 2 is unaffected."""
    host = make_host()
    for number in (1, 2):
        host.rows[number] = host.new_row(number)
    await host.apply()
    for number in (0, 1, 2):
        await host.produce(300, number=number)
        await host.copied(number=number)
    with blocking(host, "deletions") as storage:
        # Partitions 0 and 1 block both threads of the expiration pool in the store.
        for number in (0, 1):
            log_start.delete_records(host.at(number), 200)
        # The third component of an object key is its partition.
        await host.until(lambda: len({entry.key.split("/")[2] for entry in storage.begun}) == 2)
        assert _all_busy(host.remote)

        # Copies of partition 2 have a pool of their own.
        await host.produce(300, number=2)
        await host.copied(number=2)
        # So do claims: a new leader epoch must not wait for a deletion.
        host.rows[2] = replace(host.rows[2], leader_epoch=2, partition_epoch=2)
        await host.apply()
        tier = host.tier()
        await host.until(lambda: tier.manifests.load(host.topic.topic_id, 2).head.leader_epoch == 2)
        assert _all_busy(host.remote)
    # The blocked deletions have been released and complete.
    await host.until(lambda: not host.remote.summary(host.at(0)).remaining_segments)


def _all_busy(remote: RemoteLogManager) -> bool:
    return not remote._shared.pools.expiration.idle_threads


async def test_cold_reads_leave_the_interpreter_to_the_event_loop(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of one record are the most work for each byte. Other threads do all of it, and only
    one of them at a time. Copies by earlier versions have no mark that spares this work.
    """
    parse = RemoteStorageManager.parse_aux

    def unmarked(storage: RemoteStorageManager, *arguments: Any) -> Aux:
        return replace(parse(storage, *arguments), has_sound_batches=False)

    monkeypatch.setattr(RemoteStorageManager, "parse_aux", unmarked)
    host = make_host()
    host.config["segment.bytes"] = str(1 << 20)
    await host.apply()
    await host.produce(12_000, per_batch=1)
    await host.copied()
    await host.upkeep.apply_retention()
    # Record the threads that check batches, and how many of them did at the same time.
    check, threads, at_work, together = BatchLine.check_batches, set(), set(), []

    def recorded(line: BatchLine, *arguments: Any, **named: Any) -> int:
        thread = threading.get_ident()
        threads.add(thread)
        at_work.add(thread)
        together.append(len(at_work))
        try:
            return check(line, *arguments, **named)
        finally:
            at_work.remove(thread)

    monkeypatch.setattr(BatchLine, "check_batches", recorded)
    end = host.partition.log.local_log_start_offset
    deadline_s = asyncio.get_running_loop().time() + 60
    # Each read begins elsewhere, so none shares the work of another.
    starts = range(0, end // 2, end // 40)
    async with longest_turn() as longest:
        found = await asyncio.gather(
            *(host.remote.read(host.partition, start, 1 << 20, deadline_s) for start in starts)
        )
    assert sum(len(read.data) for read in found) > 5_000_000
    assert longest[0] < TURN_MS
    assert len(threads) > 1
    assert len(together) == len(found)
    assert max(together) == 1


async def test_sequential_reads_of_the_page_cache_need_no_thread(make_host: MakeHost) -> None:
    host = make_host(remote_log_reader_threads=1)
    host.config["segment.bytes"] = str(1 << 20)
    await host.apply()
    await host.produce(40_000, per_batch=500)
    await host.copied()
    end = host.head().highest_remote_offset + 1
    # The first pass loads the indexes of all segments. Each of its data is read once.
    first = await host.read_tier(0, end, 300_000)
    reads = host.gauge(tier_table.STORE_READ_BYTES)
    host.remote._fetcher.caches.chunks.forget(lambda _: True)
    # The only thread is busy, as if the store did not answer it.
    release = threading.Event()
    host.remote._shared.pools.fetcher.submit(partial(release.wait, 60))
    try:
        async with longest_turn() as longest:
            assert await host.read_tier(0, end, 300_000) == first
    finally:
        release.set()
    assert host.gauge(tier_table.STORE_READ_BYTES) == 2 * reads
    assert longest[0] < TURN_MS


async def test_reads_of_the_page_cache_load_only_indexes_in_advance(make_host: MakeHost) -> None:
    host = make_host()
    host.config["segment.bytes"] = str(1 << 20)
    await host.apply()
    await host.produce(40_000, per_batch=500)
    await host.copied()
    pages = host.tier().manifests.pages(TOPIC_ID, 0)
    first, second, *_ = queries.live_segments(host.head(), pages)
    await host.read_tier(0, first.end_offset_inclusive + 1, 300_000)
    indexes = host.remote._fetcher.caches.indexes
    await host.until(lambda: second.segment_id.int in indexes)
    assert host.gauge(tier_table.READ_AHEAD_BYTES) == 0


async def test_deleted_records_are_not_read_from_memory(make_host: MakeHost) -> None:
    host = make_host()
    await host.apply()
    await host.produce(3_000)
    await host.copied()
    fetcher, deadline_s = host.remote._fetcher, asyncio.get_running_loop().time() + 60
    await host.read_tier(0, 1_000)
    # The deletion comes while the read waits for its turn.
    async with fetcher._turn:
        reading = asyncio.create_task(host.remote.read(host.partition, 0, 1_000, deadline_s))
        await asyncio.sleep(0)
        log_start.delete_records(host.partition, 500)
        await host.until(lambda: host.partition.log_start_offset == 500)
    with pytest.raises(RemoteOffsetOutOfRange):
        await reading


async def test_records_deleted_during_a_read_are_not_returned(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host()
    await host.apply()
    await host.produce(3_000)
    await host.copied()
    await host.read_tier(0, 1_000)
    loaded, parts = asyncio.Event(), CachedSegmentReader.load_in_parts

    def recorded(reader: CachedSegmentReader, *arguments: Any) -> Iterator[None]:
        yield from parts(reader, *arguments)
        # The data is loaded, and the read continues in a later iteration of the loop.
        loaded.set()
        while host.partition.log_start_offset < 500:
            yield

    monkeypatch.setattr(CachedSegmentReader, "load_in_parts", recorded)
    deadline_s = asyncio.get_running_loop().time() + 60
    reading = asyncio.create_task(host.remote.read(host.partition, 0, 1_000, deadline_s))
    await loaded.wait()
    log_start.delete_records(host.partition, 500)
    with pytest.raises(RemoteOffsetOutOfRange):
        await reading
