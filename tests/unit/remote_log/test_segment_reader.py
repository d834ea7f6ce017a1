"""Ranged reads of one copied segment: few requests to the store, and no damaged data."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tidemark.logfiles.offset_index import OffsetIndex
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import HEADER_BYTES, Buffer, iter_headers, set_max_timestamp
from tidemark.records.builder import Record, build_batch
from tidemark.records.decode import UnpackLimits
from tidemark.tier.maintenance.rewrap import rewrap
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.segments.auxiliary import AbortedRanges, Aux
from tidemark.tier.segments.frames import Frames
from tidemark.tier.segments.integrity import PIECE_BYTES, ObjectDamaged
from tidemark.tier.segments.remote_storage_manager import RemoteStorageManager, SegmentData
from tidemark.tier.stores.config import FilesystemConfig
from tidemark.tier.stores.key_ring import NO_KEYS, KeyRing
from tidemark.tier.stores.objects import NotInMemory
from tidemark_broker.log import unpack_limits
from tidemark_broker.remote_log.chunk_files import ChunkFiles, ChunkKey
from tidemark_broker.remote_log.segment_reader import CachedSegmentReader, Caches, SegmentReader
from tidemark_broker.remote_log.settings import RemoteSettings
from tidemark_broker.replication.remote import RemoteOffset

FIRST, BATCHES, RECORDS = 1000, 20, 5
VALUE = bytes(15_000)
KEYS = KeyRing.parse(f"k1: {'A' * 43}=")
ABORTED = (
    AbortedTxn(7, FIRST + 2, FIRST + 9, FIRST + 5),
    AbortedTxn(8, FIRST + 5, FIRST + 900, FIRST + 901),
)


class CountingStorage(RemoteStorageManager):
    """Storage that records (first chunk, number of chunks) of each ranged read in ``reads``."""

    reads: list[tuple[int, int]]

    def fetch_stored(
        self, entry: SegmentEntry, bounds: Sequence[tuple[int, int]], frames: Frames | None
    ) -> Sequence[Buffer]:
        self.reads.append((bounds[0][0] // PIECE_BYTES, len(bounds)))
        return super().fetch_stored(entry, bounds, frames)


@dataclass
class CopiedSegment:
    """Segment of about 1.5 MB in six chunks of one piece each. Every fourth
    batch is in the index."""

    folder: Path
    compress: bool = False
    keys: KeyRing = NO_KEYS
    entry: SegmentEntry = field(init=False)
    positions: Sequence[int] = field(init=False)
    tier: Tier = field(init=False)
    caches: Caches = field(init=False)
    reads: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # 20 batches of 5 records with timestamps that equal their offsets.
        log = b"".join(self._batch(number) for number in range(BATCHES))
        index = OffsetIndex(FIRST)
        found = list(iter_headers(log))
        self.positions = [position for position, _ in found]
        for position, header in found[3::4]:
            index.append(header.last_offset, position)
        (self.folder / "log").write_bytes(log)
        (self.folder / "tier").mkdir()
        self.tier = open_tier(FilesystemConfig(self.folder / "tier", key_ring=self.keys))
        entry = new_segment(
            topic="t",
            topic_id=uuid.UUID(int=1),
            partition=0,
            segment_id=uuid.UUID(int=2),
            start_offset=FIRST,
            end_offset_inclusive=FIRST + BATCHES * RECORDS - 1,
            max_timestamp_ms=FIRST + BATCHES * RECORDS - 1,
            size_bytes=len(log),
            broker_id=1,
            event_time_ms=0,
            leader_epochs=((3, FIRST),),
            leader_epoch=3,
            tiered_epoch=0,
        )
        # A chunk is one piece of the digests, so a damaged byte spoils one chunk only.
        aux = Aux(
            offset_index=index.to_bytes(),
            time_index=b"",
            leader_epochs=b"",
            producer_snapshot=b"",
            aborted=AbortedRanges(ABORTED),
        )
        data = SegmentData(self.folder / "log", len(log), aux, compress=self.compress)
        copied = self.tier.segments.copy_segment(entry, data)
        self.entry = replace(entry, custom_metadata=copied.custom_metadata, digests=copied.digests)
        storage = CountingStorage(self.tier.segments.stores, self.keys)
        storage.reads = self.reads
        self.tier = replace(self.tier, segments=storage)
        self.caches = Caches(RemoteSettings(chunk_bytes=1))
        assert self.caches.chunk_bytes == PIECE_BYTES
        assert 5 * PIECE_BYTES < len(log) < 6 * PIECE_BYTES

    def _batch(self, number: int) -> bytes:
        base = FIRST + number * RECORDS
        records = [Record(None, VALUE, (), base + delta) for delta in range(RECORDS)]
        return build_batch(records, base_offset=base, leader_epoch=3)

    def read(self, offset: int, max_bytes: int, position: int | None = None) -> list[int]:
        """Return the base offsets of the batches read."""
        data, next_offset, _ = SegmentReader(self.tier, self.caches, self.entry).read(
            offset, max_bytes, position
        )
        headers = [header for _, header in iter_headers(bytes(data))]
        assert headers[-1].next_offset == next_offset
        return [header.base_offset for header in headers]

    def set_largest_timestamp(self, largest_ms: int, *, readable: bool = True) -> None:
        """Name this largest timestamp in each batch's header. ``readable`` False also damages the
        records."""
        path = self.folder / "log"
        log = bytearray(path.read_bytes())
        for position, header in iter_headers(bytes(log)):
            if not readable:
                log[position + HEADER_BYTES] = 0
            set_max_timestamp(log, position, header, largest_ms)
        path.write_bytes(log)
        data = SegmentData(path, len(log), self.tier.segments.fetch_aux(self.entry))
        copied = self.tier.segments.copy_segment(self.entry, data)
        self.entry = replace(self.entry, digests=copied.digests, max_timestamp_ms=largest_ms)

    def damage(self, position: int) -> None:
        path = self.folder / "tier" / self.entry.log_key
        log = bytearray(path.read_bytes())
        log[position] ^= 1
        path.write_bytes(log)


@pytest.fixture
def segment(tmp_path: Path) -> CopiedSegment:
    return CopiedSegment(tmp_path)


@pytest.fixture(params=["as it is", "compressed", "encrypted", "compressed and encrypted"])
def any_segment(request: pytest.FixtureRequest, tmp_path: Path) -> CopiedSegment:
    """Segment in each form of storage."""
    keys = KEYS if "encrypted" in request.param else NO_KEYS
    return CopiedSegment(tmp_path, compress="compressed" in request.param, keys=keys)


def test_adjacent_chunks_are_read_in_one_request(any_segment: CopiedSegment) -> None:
    segment = any_segment
    size = segment.entry.size_bytes
    assert segment.read(FIRST, size) == list(range(FIRST, FIRST + 100, RECORDS))
    assert segment.reads == [(0, 6)]
    assert segment.read(FIRST + 50, size)[0] == FIRST + 50
    # The second read finds all chunks in the cache.
    assert segment.reads == [(0, 6)]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (FIRST, FIRST + 2, []),
        (FIRST, FIRST + 3, [7]),
        (FIRST + 9, FIRST + 11, [7, 8]),
        (FIRST + 10, FIRST + 90, [8]),
    ],
)
def test_aborted_transactions_are_returned_for_the_records_read(
    segment: CopiedSegment, start: int, end: int, found: list[int]
) -> None:
    reader = SegmentReader(segment.tier, segment.caches, segment.entry)
    assert [item.producer_id for item in reader.aborted(start, end)] == found


def test_only_missing_chunks_are_requested(any_segment: CopiedSegment) -> None:
    segment = any_segment
    # A batch in the middle: its chunks are cached and split the missing ones into two ranges.
    middle = FIRST + (2 * PIECE_BYTES // (segment.entry.size_bytes // BATCHES) + 1) * RECORDS
    segment.read(middle, 1)
    before = len(segment.reads)
    segment.read(FIRST, segment.entry.size_bytes)
    chunks = {
        number for first, count in segment.reads[:before] for number in range(first, first + count)
    }
    requested = [
        number for first, count in segment.reads[before:] for number in range(first, first + count)
    ]
    assert sorted([*chunks, *requested]) == list(range(6))


def test_read_from_a_known_position_loads_no_chunk_before_it(segment: CopiedSegment) -> None:
    position = segment.positions[14]
    first_chunk = position // PIECE_BYTES
    assert segment.read(FIRST + 70, 80_000, position) == [FIRST + 70]
    assert segment.reads == [(first_chunk, 1)]
    # Without the position the walk begins at the last indexed batch, which is in another chunk.
    segment.caches.forget(segment.entry.segment_id)
    segment.reads.clear()
    assert segment.read(FIRST + 70, 80_000) == [FIRST + 70]
    assert segment.reads[0][0] < first_chunk
    # A wrong position is not served as if it were the offset's.
    with pytest.raises(ObjectDamaged):
        segment.read(FIRST + 70, 80_000, segment.positions[13])


def test_end_of_a_segment_takes_no_room_from_data_loaded_in_advance(
    segment: CopiedSegment,
) -> None:
    unused: list[float] = []
    # Half of the cache is for data that is loaded in advance: one chunk.
    settings = RemoteSettings(chunk_bytes=1, chunk_cache_bytes=2 * PIECE_BYTES)
    segment.caches = Caches(settings, count=lambda metric, size: unused.append(size))
    segment.read(FIRST, segment.entry.size_bytes)
    unused.clear()
    segment.caches.protect(segment.entry, 4 * PIECE_BYTES)
    # The next read begins in another segment.
    segment.caches.protect(segment.entry, segment.entry.size_bytes)
    assert not unused


def test_bytes_of_a_batch_that_does_not_fit_are_not_loaded(segment: CopiedSegment) -> None:
    # Byte 800,000 is in chunk 3, and the last indexed batch before it begins in chunk 2.
    limit = 800_000
    last = max(position for position in segment.positions[3::4] if position < limit)
    assert last // PIECE_BYTES < limit // PIECE_BYTES
    offsets = segment.read(FIRST, limit, 0)
    assert segment.reads == [(0, last // PIECE_BYTES + 1)]
    # All batches that are loaded are returned, also those behind the indexed one.
    loaded_end = (last // PIECE_BYTES + 1) * PIECE_BYTES
    count = sum(position <= loaded_end for position in segment.positions) - 1
    assert offsets == [FIRST + number * RECORDS for number in range(count)]
    # A reader at the end of the segment loads all of it.
    assert segment.read(FIRST + 50, 10**9, segment.positions[10])[-1] == FIRST + 95


class ComputingStorage(CountingStorage):
    """Storage that fails if bytes are decoded while all cores but one are not in use."""

    caches: Caches

    def decode(
        self, entry: SegmentEntry, stored: Buffer, start: int, end: int, frames: Frames | None
    ) -> bytes:
        assert not self.caches.computing.acquire(blocking=False)
        return super().decode(entry, stored, start, end, frames)


def test_a_core_is_left_to_the_event_loop(
    any_segment: CopiedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One thread of two cores decodes, what comes from the store as well as what was cached.
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    any_segment.caches = caches_on_disk(any_segment)
    storage = ComputingStorage(any_segment.tier.segments.stores, any_segment.keys)
    storage.reads, storage.caches = any_segment.reads, any_segment.caches
    any_segment.tier = replace(any_segment.tier, segments=storage)
    for _ in range(2):
        assert any_segment.read(FIRST, 10**9)[-1] == FIRST + 95
    assert len(any_segment.reads) == 1
    # The thread does not keep the core.
    assert any_segment.caches.computing.acquire(blocking=False)


def test_crcs_that_the_copier_has_checked_are_not_checked_again(segment: CopiedSegment) -> None:
    # The digests are those of the damaged log, as after a copy by an earlier version.
    log = bytearray((segment.folder / "log").read_bytes())
    log[-1] ^= 1
    aux = segment.tier.segments.fetch_aux(segment.entry)
    for is_checked in (False, True):
        checked = replace(aux, has_sound_batches=is_checked)
        copied = segment.tier.segments.store_segment(
            segment.entry, [bytes(log)], lambda aux=checked: aux
        )
        segment.caches.forget(segment.entry.segment_id)
        segment.entry = replace(segment.entry, digests=copied.digests)
        if is_checked:
            assert segment.read(FIRST, 10**9)[-1] == FIRST + 95
        else:
            with pytest.raises(ObjectDamaged, match="CRC of the batch at offset 1095"):
                segment.read(FIRST, 10**9)


def marked(segment: CopiedSegment, **changes: Any) -> None:
    """Store the segment again, with the mark that its batches were checked."""
    stored = segment.tier.segments.fetch_aux(segment.entry)
    aux = replace(stored, has_sound_batches=True, **changes)
    copied = segment.tier.segments.store_segment(
        segment.entry, [(segment.folder / "log").read_bytes()], lambda: aux
    )
    segment.caches.forget(segment.entry.segment_id)
    segment.entry = replace(segment.entry, digests=copied.digests)


def test_batches_that_the_copier_has_checked_need_no_walk(segment: CopiedSegment) -> None:
    # Limits around the ends of batches, with and without room for another header.
    ends = [segment.positions[number] for number in (1, 2, 3, 4, 9)]
    beside = (-1, 0, 1, HEADER_BYTES - 1, HEADER_BYTES)
    sizes = [1, 10**9, *(end + shift for end in ends for shift in beside)]

    def all_reads() -> list[list[int]]:
        return [
            segment.read(FIRST + number * RECORDS, size, position)
            for number in range(BATCHES)
            for size in sizes
            for position in (None, segment.positions[number])
        ]

    walked = all_reads()
    marked(segment)
    assert all_reads() == walked


def test_a_wrong_index_of_checked_batches_is_detected(segment: CopiedSegment) -> None:
    index = OffsetIndex(FIRST)
    index.append(FIRST + 24, segment.positions[3])
    marked(segment, offset_index=index.to_bytes())
    with pytest.raises(ObjectDamaged, match="its index says 1024"):
        segment.read(FIRST, 10**9, 0)


def cached_read(segment: CopiedSegment, number: int, size: int = 200_000) -> list[int]:
    """Read as the event loop does, from the batch of this number."""
    reader = CachedSegmentReader(segment.tier, segment.caches, segment.entry)
    data, *_ = reader.read(FIRST + number * RECORDS, size, segment.positions[number])
    return [header.base_offset for _, header in iter_headers(bytes(data))]


def test_event_loop_reads_only_what_is_in_memory(any_segment: CopiedSegment) -> None:
    segment = any_segment
    # Without the mark, or without the indexes, the loop would have to compute or to wait.
    segment.read(FIRST, 200_000, 0)
    with pytest.raises(NotInMemory):
        cached_read(segment, 0)
    marked(segment)
    with pytest.raises(NotInMemory):
        cached_read(segment, 0)
    found = segment.read(FIRST, 200_000, 0)
    assert cached_read(segment, 0) == found
    # The rest is in no cache, or in one that only a thread may read.
    segment.tier = replace(segment.tier, segments=WaitingStorage(segment.tier.segments.stores))
    with pytest.raises(NotInMemory):
        cached_read(segment, 10)


class WaitingStorage(RemoteStorageManager):
    """Storage that has nothing in the page cache."""

    def fetch_cached(
        self, entry: SegmentEntry, bounds: Sequence[tuple[int, int]]
    ) -> Sequence[bytes]:
        raise NotInMemory


def test_event_loop_reads_a_log_in_the_page_cache(segment: CopiedSegment) -> None:
    marked(segment)
    found = segment.read(FIRST, 10**9, 0)
    segment.caches.chunks.forget(lambda _: True)
    assert cached_read(segment, 0, 10**9) == found
    # What it has read is in the cache, and damage is found.
    segment.damage(segment.positions[3])
    assert cached_read(segment, 3, 200_000) == found[3:5]
    segment.caches.chunks.forget(lambda _: True)
    with pytest.raises(ObjectDamaged):
        cached_read(segment, 3, 200_000)


def test_event_loop_leaves_long_reads_to_threads(segment: CopiedSegment) -> None:
    marked(segment)
    segment.read(FIRST, 10**9, 0)
    # Two chunks, or one that is configured to be large.
    for size, last in ((1 << 22, 1), (1 << 26, 0)):
        segment.caches.chunk_bytes = size
        with pytest.raises(NotInMemory):
            CachedSegmentReader(segment.tier, segment.caches, segment.entry)._load(0, last)


@pytest.mark.parametrize("from_offset", [FIRST + 20, FIRST + 22])
def test_a_trimmed_segment_is_read_from_its_first_valid_offset(
    segment: CopiedSegment, from_offset: int
) -> None:
    """Its log starts below that offset, and is verified from its own start."""
    segment.entry = replace(segment.entry, from_offset=from_offset)
    assert segment.read(from_offset, 100_000) == [FIRST + 20]
    assert segment.read(FIRST + 99, 1) == [FIRST + 95]


def test_undamaged_pieces_of_a_segment_stay_readable(segment: CopiedSegment) -> None:
    segment.damage(segment.positions[10] + 100)
    damaged_chunk = (segment.positions[10] + 100) // PIECE_BYTES
    with pytest.raises(ObjectDamaged, match=f"differs at byte {damaged_chunk * PIECE_BYTES}\\."):
        segment.read(FIRST + 50, 1)
    assert segment.read(FIRST, 1) == [FIRST]
    assert segment.read(FIRST + 95, 1) == [FIRST + 95]


def test_a_damaged_piece_is_not_cached(segment: CopiedSegment) -> None:
    segment.damage(100)
    with pytest.raises(ObjectDamaged):
        segment.read(FIRST, 1)
    assert len(segment.caches.chunks) == 0
    # The same flip again restores the byte: the reader must fetch it from the store.
    segment.damage(100)
    assert segment.read(FIRST, 1) == [FIRST]


def test_an_index_of_another_log_is_detected(segment: CopiedSegment) -> None:
    """The manifest of the first format has no digest of the index."""
    other = OffsetIndex(FIRST)
    other.append(FIRST + 11, segment.positions[2])
    aux = Aux(
        offset_index=other.to_bytes(), time_index=b"", leader_epochs=b"", producer_snapshot=b""
    )
    data = SegmentData(segment.folder / "log", segment.entry.size_bytes, aux)
    segment.tier.segments.copy_segment(segment.entry, data)
    segment.entry = replace(segment.entry, digests=None)
    # A read that does not use the wrong entry succeeds.
    assert segment.read(FIRST, 1) == [FIRST]
    with pytest.raises(ObjectDamaged, match=f"ends with offset {FIRST + 14}, its index says"):
        segment.read(FIRST + 30, 1)


def test_a_lookup_by_time_keeps_few_chunks_in_memory(segment: CopiedSegment) -> None:
    """The header of the first batch claims newer records. There are none up to the end."""
    segment.set_largest_timestamp(FIRST + BATCHES * RECORDS)
    reader = SegmentReader(segment.tier, segment.caches, segment.entry)
    assert reader.first_at_or_after(FIRST + BATCHES * RECORDS, FIRST, unpack_limits()) is None
    assert len(reader._chunks) <= 2


def test_a_lookup_by_time_has_the_limits_of_local_lookups(segment: CopiedSegment) -> None:
    # Two batches of 75,000 bytes exceed the limit of bytes: the answer is the next batch's first
    # offset.
    limits = UnpackLimits(bytes_left=100_000, records_left=1000)
    segment.set_largest_timestamp(FIRST + BATCHES * RECORDS)
    reader = SegmentReader(segment.tier, segment.caches, segment.entry)
    found = reader.first_at_or_after(FIRST + BATCHES * RECORDS, FIRST, limits)
    assert found == RemoteOffset(FIRST + 2 * RECORDS, FIRST + BATCHES * RECORDS, 3)
    # Three batches and four records are within the limit of records.
    limits = UnpackLimits(bytes_left=10**9, records_left=3 * RECORDS + 4)
    found = reader.first_at_or_after(FIRST + BATCHES * RECORDS, FIRST, limits)
    assert found == RemoteOffset(FIRST + 3 * RECORDS, FIRST + BATCHES * RECORDS, 3)


def test_unreadable_records_of_a_client_are_not_damage(segment: CopiedSegment) -> None:
    segment.set_largest_timestamp(FIRST + BATCHES * RECORDS, readable=False)
    reader = SegmentReader(segment.tier, segment.caches, segment.entry)
    found = reader.first_at_or_after(FIRST + BATCHES * RECORDS, FIRST + 1, unpack_limits())
    assert found == RemoteOffset(FIRST + 1, FIRST + BATCHES * RECORDS, 3)


# ------------------------------------------------------------ the cache on disk


def caches_on_disk(segment: CopiedSegment) -> Caches:
    """Return caches that hold nothing in memory, with files below them."""
    files = ChunkFiles(
        segment.folder / "chunks",
        limit_bytes=10**8,
        chunk_bytes=PIECE_BYTES,
        count=lambda _, __: None,
    )
    files.load()
    settings = RemoteSettings(chunk_bytes=1, chunk_cache_bytes=1, index_cache_bytes=1)
    return Caches(settings, files)


def test_files_have_what_the_store_has(any_segment: CopiedSegment) -> None:
    segment, size = any_segment, any_segment.entry.size_bytes
    segment.caches = caches_on_disk(segment)
    expected = segment.read(FIRST, size)
    segment.reads.clear()
    # Even without the objects, every read is served from the files.
    for path in (segment.folder / "tier" / "data").rglob("*.*"):
        path.unlink()
    assert segment.read(FIRST, size) == expected
    assert segment.read(FIRST + 50, 1) == [FIRST + 50]
    assert segment.reads == []
    # A log that is compressed and encrypted takes little space, and is not readable there.
    kept = [path.read_bytes() for path in (segment.folder / "chunks").rglob("*.*")]
    assert (sum(map(len, kept)) < size / 2) is segment.compress
    is_plain = not segment.compress and segment.keys is NO_KEYS
    assert any(VALUE[:1000] in data for data in kept) is is_plain


def test_damaged_file_of_a_chunk_is_read_from_the_store(any_segment: CopiedSegment) -> None:
    """A file with a valid checksum, and other bytes than the store's, has no bad effect."""
    segment = any_segment
    segment.caches = caches_on_disk(segment)
    expected = segment.read(FIRST, segment.entry.size_bytes)
    files = segment.caches.files
    assert files is not None
    key = ChunkKey(segment.entry.segment_id, 0)
    stored = files.get(key)
    assert stored is not None
    files.forget({segment.entry.segment_id})
    files.put(key, bytes([stored[0] ^ 1]) + stored[1:])
    with pytest.raises(ObjectDamaged):
        segment.read(FIRST, segment.entry.size_bytes)
    # The fetcher's second attempt starts without the files.
    segment.caches.forget(segment.entry.segment_id)
    assert segment.read(FIRST, segment.entry.size_bytes) == expected


def test_file_of_a_rotated_key_is_replaced(tmp_path: Path) -> None:
    """The store has the new header, and the broker has only the new key."""
    segment = CopiedSegment(tmp_path, keys=KEYS)
    segment.caches = caches_on_disk(segment)
    expected = segment.read(FIRST, 1)
    new = KeyRing.parse(f"k2: {'B' * 42}A=")
    both = replace(
        segment.tier,
        segments=RemoteStorageManager(segment.tier.segments.stores, KeyRing(new.keys + KEYS.keys)),
    )
    assert rewrap(both).rewrapped == 1
    storage = CountingStorage(segment.tier.segments.stores, new)
    storage.reads = segment.reads
    segment.tier = replace(segment.tier, segments=storage)
    segment.reads.clear()
    assert segment.read(FIRST, 1) == expected
    assert segment.reads == []
