"""Objects that are not what was copied: an error that names them, in the status too, and no
data."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.remote_log.fetch_client import Client, offsets_of
from tests.integration.remote_log.tiered_host import NOW_MS, TOPIC_ID, TieredHost
from tidemark.metrics import tier_table
from tidemark.records.batch import iter_headers, restamp
from tidemark.tier import queries
from tidemark.tier.remote_storage_manager import Copied, RemoteStorageManager, SegmentData
from tidemark.tier.segment import SegmentEntry
from tidemark_broker.replication.partition import log_start
from tidemark_broker.replication.remote import RemoteDataCorrupt


def entries_of(host: TieredHost, number: int = 0) -> list[SegmentEntry]:
    tier = host.tier()
    head = tier.manifests.load(TOPIC_ID, number).head
    return list(queries.live_segments(head, tier.manifests.pages(TOPIC_ID, number)))


def log_of(host: TieredHost, segment: int, number: int = 0) -> Path:
    return host.tier_path / entries_of(host, number)[segment].log_key


def errors_counted(host: TieredHost) -> int:
    return host.remote._shared.metrics.values()[tier_table.INTEGRITY_ERRORS]


async def test_another_partitions_segment_under_this_key(client: Client) -> None:
    """Sound batches, of the right offsets and the right leader epoch: only a digest can tell."""
    host = client.host
    ours, others = log_of(host, 1, 0), log_of(host, 1, 1)
    assert [entry.end_offset_inclusive for entry in entries_of(host, 0)] == [
        entry.end_offset_inclusive for entry in entries_of(host, 1)
    ]
    kept = shutil.copy(ours, host.tier_path.with_name("kept"))
    shutil.copy(others, ours)
    entry = entries_of(host)[1]
    (part,) = await client.fetch(entry.start_offset + 3)
    assert (part.error_code, offsets_of(part)) == (ErrorCode.corrupt_message, [])
    summary = host.summary
    assert summary.error_reason == "TierIntegrity"
    for words in (entry.log_key, str(host.tier_path), "restore the object", "RecordDeletion"):
        assert words in summary.error_message
    assert errors_counted(host) == 1
    assert host.gauge(tier_table.PARTITION_ERRORS) == 1

    before, after = await client.fetch(0), await client.fetch(entry.end_offset_inclusive + 1)
    assert (offsets_of(before[0])[0], offsets_of(after[0])[0]) == (
        0,
        entry.end_offset_inclusive + 1,
    )
    assert host.summary.error_reason == "TierIntegrity"

    shutil.copy(kept, ours)
    (part,) = await client.fetch(entry.start_offset + 3)
    assert offsets_of(part)[0] == entry.start_offset
    assert not host.summary.error_reason


async def test_records_that_are_given_up_clear_the_status(client: Client) -> None:
    host = client.host
    entry = entries_of(host)[1]
    log_of(host, 1).write_bytes(b"nothing")
    (part,) = await client.fetch(entry.start_offset)
    assert part.error_code is ErrorCode.corrupt_message
    assert "has 7 bytes, the manifest says" in host.summary.error_message
    log_start.delete_records(host.partition, entry.end_offset_inclusive + 1)
    await host.until(lambda: not host.summary.error_reason)


async def test_a_damaged_index_is_found(client: Client) -> None:
    host = client.host
    entry, other = entries_of(host)[1:3]
    shutil.copy(host.tier_path / other.aux_key, host.tier_path / entry.aux_key)
    (part,) = await client.fetch(entry.start_offset)
    assert (part.error_code, offsets_of(part)) == (ErrorCode.corrupt_message, [])
    assert entry.aux_key in host.summary.error_message
    with pytest.raises(RemoteDataCorrupt, match=entry.aux_key):
        await host.remote.bootstrap(host.partition, entry.end_offset_inclusive + 1)
    assert errors_counted(host) == 2


async def test_a_look_up_by_time_takes_nothing_from_a_damaged_object(client: Client) -> None:
    host = client.host
    entry = entries_of(host)[1]
    shutil.copy(log_of(host, 2), log_of(host, 1))
    with pytest.raises(RemoteDataCorrupt):
        await host.remote.offset_by_timestamp(host.partition, NOW_MS + entry.start_offset + 2)
    assert host.summary.error_reason == "TierIntegrity"


class FirstFormat(RemoteStorageManager):
    """Copies as they were before the manifest had digests."""

    def copy_segment(self, entry: SegmentEntry, data: SegmentData) -> Copied:
        copied = super().copy_segment(entry, data)
        return Copied(copied.custom_metadata, None)  # type: ignore[arg-type]


class TestTheFirstFormat:
    """No digests: batches are checked one by one, and offsets must run on."""

    @pytest.fixture
    async def host(self, make_host) -> TieredHost:  # type: ignore[no-untyped-def]
        host: TieredHost = make_host()
        await host.apply()
        await host.until(lambda: not host.remote.status().error)
        guard = host.remote._shared.guard
        guard._tier = replace(guard.tier(), segments=FirstFormat(guard.tier().segments._buckets))
        await host.produce(300)
        await host.copied()
        assert {entry.digests for entry in entries_of(host)} == {None}
        return host

    async def read(self, host: TieredHost, offset: int, max_bytes: int = 10_000) -> list[int]:
        deadline_s = asyncio.get_running_loop().time() + 10
        found = await host.remote.read(host.partition, offset, max_bytes, deadline_s)
        return [header.base_offset for _, header in iter_headers(found.data)]

    @pytest.mark.parametrize("number", [0, 2, 5])
    async def test_a_batch_with_another_base_offset(self, host: TieredHost, number: int) -> None:
        entry, path = entries_of(host)[1], log_of(host, 1)
        log = bytearray(path.read_bytes())
        places = list(iter_headers(log))
        position, header = places[number]
        restamp(log, position, header.base_offset + 1, header.partition_leader_epoch)
        path.write_bytes(log)
        for asked in (header.base_offset, header.last_offset, header.last_offset + 1):
            if asked > entry.end_offset_inclusive:
                continue
            with pytest.raises(RemoteDataCorrupt, match=entry.log_key):
                await self.read(host, asked)
        if number:
            # What comes before it is read.
            size = places[number][0]
            assert await self.read(host, entry.start_offset, size) == [
                header.base_offset for _, header in places[:number]
            ]
        assert (await self.read(host, entry.end_offset_inclusive + 1))[0] > entry.start_offset

    async def test_a_flipped_bit(self, host: TieredHost) -> None:
        entry, path = entries_of(host)[1], log_of(host, 1)
        log = bytearray(path.read_bytes())
        position, header = list(iter_headers(log))[2]
        log[position + header.size_bytes - 1] ^= 1
        path.write_bytes(log)
        with pytest.raises(
            RemoteDataCorrupt, match=f"CRC of the batch at offset {header.base_offset}"
        ):
            await self.read(host, entry.start_offset)
        assert await self.read(host, header.next_offset)
        log[position + header.size_bytes - 1] ^= 1
        path.write_bytes(log)
        assert (await self.read(host, entry.start_offset))[0] == entry.start_offset
        assert not host.summary.error_reason

    async def test_another_segment_of_this_partition(self, host: TieredHost) -> None:
        entry = entries_of(host)[1]
        shutil.copy(log_of(host, 2), log_of(host, 1))
        for asked in (entry.start_offset, entry.end_offset_inclusive):
            with pytest.raises(RemoteDataCorrupt, match=entry.log_key):
                await self.read(host, asked)
