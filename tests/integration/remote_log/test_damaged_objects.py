"""Damaged objects in the tier: the read fails, and the error and the status name the object."""

import asyncio
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.remote_log.conftest import MakeClient
from tests.integration.remote_log.fetch_client import TierClient, offsets_of
from tests.integration.remote_log.tiered_host import NOW_MS, TOPIC_ID, TieredHost
from tests.integration.remote_log.watched_store import watch
from tidemark.metrics import tier_table
from tidemark.records.batch import iter_headers, restamp
from tidemark.tier.metadata import queries
from tidemark.tier.metadata.layout import IDENTITY_KEY
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.segments import auxiliary
from tidemark.tier.segments.remote_storage_manager import Copied, RemoteStorageManager, SegmentData
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


async def test_segment_of_another_partition_under_this_key_is_corrupt(client: TierClient) -> None:
    """Batches, offsets and leader epoch of the other segment are valid: only the digest differs."""
    host = client.host
    own_path, other_path = log_of(host, 1, 0), log_of(host, 1, 1)
    assert [entry.end_offset_inclusive for entry in entries_of(host, 0)] == [
        entry.end_offset_inclusive
        for entry in entries_of(host, 1)
        # Same offsets in both partitions, otherwise the offset check would already fail.
    ]
    kept = shutil.copy(own_path, host.tier_path.with_name("kept"))
    shutil.copy(other_path, own_path)
    entry = entries_of(host)[1]
    (part,) = await client.fetch(entry.start_offset + 3)
    # CORRUPT_MESSAGE, as Kafka answers for a batch with a wrong checksum; no byte of it is sent.
    assert (part.error_code, offsets_of(part)) == (ErrorCode.corrupt_message, [])
    summary = host.summary
    assert summary.error_reason == "TierIntegrity"
    # The message names the object, the store and both remedies: restore it, or give its records up.
    for expected in (entry.log_key, str(host.tier_path), "restore the object", "RecordDeletion"):
        assert expected in summary.error_message
    assert errors_counted(host) == 1
    assert host.gauge(tier_table.PARTITION_ERRORS) == 1

    # The damage is limited to one segment: the segments before and after it are readable.
    before, after = await client.fetch(0), await client.fetch(entry.end_offset_inclusive + 1)
    assert (offsets_of(before[0])[0], offsets_of(after[0])[0]) == (
        0,
        entry.end_offset_inclusive + 1,
    )
    # Successful reads of other segments do not clear the error.
    assert host.summary.error_reason == "TierIntegrity"

    # Restoring the object is the first remedy; a successful read of it clears the status.
    shutil.copy(kept, own_path)
    assert offsets_of(await client.repaired(entry.start_offset + 3))[0] == entry.start_offset
    assert not host.summary.error_reason


async def test_deleting_damaged_records_clears_the_status(
    client: TierClient,
) -> None:
    host = client.host
    entry = entries_of(host)[1]
    log_of(host, 1).write_bytes(b"nothing")
    (part,) = await client.fetch(entry.start_offset)
    assert part.error_code is ErrorCode.corrupt_message
    assert "has 7 bytes, the manifest says" in host.summary.error_message
    # The second remedy: records of the damaged segment are deleted.
    log_start.delete_records(host.partition, entry.end_offset_inclusive + 1)
    await host.until(lambda: not host.summary.error_reason)


async def test_index_of_another_segment_is_corrupt(client: TierClient) -> None:
    host = client.host
    entry, other = entries_of(host)[1:3]
    # The auxiliary object has the index; that of another segment would lead to wrong positions.
    shutil.copy(host.tier_path / other.aux_key, host.tier_path / entry.aux_key)
    (part,) = await client.fetch(entry.start_offset)
    assert (part.error_code, offsets_of(part)) == (ErrorCode.corrupt_message, [])
    assert entry.aux_key in host.summary.error_message
    # A follower that bootstraps reads the same object, for leader epochs and producers.
    with pytest.raises(RemoteDataCorrupt, match=entry.aux_key):
        await host.remote.bootstrap(host.partition, entry.end_offset_inclusive + 1)
    assert errors_counted(host) == 2


async def test_timestamp_lookup_rejects_a_damaged_segment(client: TierClient) -> None:
    host = client.host
    entry = entries_of(host)[1]
    shutil.copy(log_of(host, 2), log_of(host, 1))
    with pytest.raises(RemoteDataCorrupt):
        # The wanted timestamp is in the damaged segment.
        await host.remote.offset_by_timestamp(host.partition, NOW_MS + entry.start_offset + 2)
    assert host.summary.error_reason == "TierIntegrity"


async def test_object_of_a_newer_version_is_reported_until_the_upgrade(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(auxiliary, "_VERSION", 5)
        client = await make_client()
    host = client.host
    # Nothing is damaged, so consumers retry, and the advice is not to give up the records.
    (part,) = await client.fetch(0)
    assert (part.error_code, offsets_of(part)) == (ErrorCode.kafka_storage_error, [])
    summary = host.summary
    assert summary.error_reason == "ObjectVersionUnsupported"
    assert "reads versions up to 4. Upgrade" in summary.error_message
    assert errors_counted(host) == 0
    monkeypatch.setattr(auxiliary, "_VERSION", 5)
    assert offsets_of(await client.repaired(0))[0] == 0
    assert not host.summary.error_reason


@pytest.mark.parametrize("problem", ["damaged log", "damaged index", "missing", "newer version"])
async def test_unreadable_segment_is_requested_again_after_a_pause_only(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    """Consumers repeat a failed Fetch at once, and each request to the store has its price."""
    # A pause that does not end during the test.
    client = await make_client(
        remote_log_manager_task_retry_backoff_ms=60_000,
        remote_log_manager_task_retry_backoff_max_ms=60_000,
    )
    host = client.host
    entry, requests = entries_of(host)[1], Counter[str]()
    path = host.tier_path / (entry.log_key if problem == "damaged log" else entry.aux_key)
    intact = path.read_bytes()
    if problem == "newer version":
        monkeypatch.setattr(auxiliary, "_VERSION", 3)
    elif problem == "missing":
        path.unlink()
    else:
        path.write_bytes(b"nothing")
    # The store's identity is read again after a failure.
    watch(host, lambda call, key: requests.update([call] if key != IDENTITY_KEY else ()))
    retries = problem in ("missing", "newer version")
    expected = ErrorCode.kafka_storage_error if retries else ErrorCode.corrupt_message
    (part,) = await client.fetch(entry.start_offset)
    assert (part.error_code, offsets_of(part)) == (expected, [])
    first = requests.copy()
    assert first["get"] + first["get_parts"] > 0
    for attempt in range(20):
        # The size of a request depends on the other partitions of the consumer. Another consumer
        # needs the same object.
        offset = entry.start_offset + (0 if problem == "damaged log" else attempt)
        (part,) = await client.fetch(offset, max_bytes=1000 + attempt)
        assert (part.error_code, offsets_of(part)) == (expected, [])
    assert requests == first
    if problem == "missing":
        path.write_bytes(intact)


class FirstFormat(RemoteStorageManager):
    """Copies as they were before manifests had digests."""

    def copy_segment(self, entry: SegmentEntry, data: SegmentData) -> Copied:
        copied = super().copy_segment(entry, data)
        return Copied(copied.custom_metadata, None)  # type: ignore[arg-type]


class TestTheFirstFormat:
    """Manifests without digests: each batch is verified, and offsets must be contiguous."""

    @pytest.fixture
    async def host(self, make_host) -> TieredHost:  # type: ignore[no-untyped-def]
        host: TieredHost = make_host()
        await host.apply()
        await host.until(lambda: not host.remote.status().error)
        # Wait for the store's verification, because it would replace the plugin again.
        guard = host.remote._shared.guard
        guard._tier = replace(guard.tier(), segments=FirstFormat(guard.tier().segments._buckets))
        await host.produce(300)
        await host.copied()
        # Precondition: these segments have no digests, so every check below is one of the batches.
        assert {entry.digests for entry in entries_of(host)} == {None}
        return host

    async def read(self, host: TieredHost, offset: int, max_bytes: int = 10_000) -> list[int]:
        deadline_s = asyncio.get_running_loop().time() + 10
        found = await host.remote.read(host.partition, offset, max_bytes, deadline_s)
        return [header.base_offset for _, header in iter_headers(bytes(found.data))]

    @pytest.mark.parametrize("number", [0, 2, 5])
    async def test_batch_with_a_wrong_base_offset_is_corrupt(
        self, host: TieredHost, number: int
    ) -> None:
        entry, path = entries_of(host)[1], log_of(host, 1)
        log = bytearray(path.read_bytes())
        places = list(iter_headers(log))
        position, header = places[number]
        # A valid batch (its checksum does not cover the base offset) at a wrong place.
        restamp(log, position, header.base_offset + 1, header.partition_leader_epoch)
        path.write_bytes(log)
        for offset in (header.base_offset, header.last_offset, header.last_offset + 1):
            if offset > entry.end_offset_inclusive:
                continue
            with pytest.raises(RemoteDataCorrupt, match=entry.log_key):
                await self.read(host, offset)
        # For the first batch nothing of the segment is valid; for later ones a prefix is.
        if number:
            # Batches before the damaged one are readable.
            size = places[number][0]
            assert await self.read(host, entry.start_offset, size) == [
                header.base_offset for _, header in places[:number]
            ]
        # The next segment is intact.
        assert (await self.read(host, entry.end_offset_inclusive + 1))[0] > entry.start_offset

    async def test_flipped_bit_fails_the_crc(self, host: TieredHost) -> None:
        entry, path = entries_of(host)[1], log_of(host, 1)
        log = bytearray(path.read_bytes())
        position, header = list(iter_headers(log))[2]
        # The last byte of a batch is in its last record: only the CRC can detect it.
        log[position + header.size_bytes - 1] ^= 1
        path.write_bytes(log)
        with pytest.raises(
            RemoteDataCorrupt, match=f"CRC of the batch at offset {header.base_offset}"
        ):
            await self.read(host, entry.start_offset)
        # Batches behind the damaged one are valid, and are served.
        assert await self.read(host, header.next_offset)
        # Flip it back: a read error of this format leaves no error in the status.
        log[position + header.size_bytes - 1] ^= 1
        path.write_bytes(log)
        # Until the pause after the failed read is over, its error is raised again.
        found: list[int] = []
        async with asyncio.timeout(10):
            while not found:
                with suppress(RemoteDataCorrupt):
                    found = await self.read(host, entry.start_offset)
                await asyncio.sleep(0.02)
        assert found[0] == entry.start_offset
        assert not host.summary.error_reason

    async def test_another_segment_of_this_partition_is_corrupt(self, host: TieredHost) -> None:
        entry = entries_of(host)[1]
        # All batches are valid and contiguous, but their offsets are not those of the manifest's
        # entry.
        shutil.copy(log_of(host, 2), log_of(host, 1))
        for offset in (entry.start_offset, entry.end_offset_inclusive):
            with pytest.raises(RemoteDataCorrupt, match=entry.log_key):
                await self.read(host, offset)
