"""Reads of whole batches from one remote segment, by ranged requests through a cache of chunks.

Chunks are cached in memory and, if the broker has such a cache, on disk below it (``chunk_files``).
The offset index (cached) gives the position to walk from; batch headers give the rest. A chunk is
checked against the digests of its pieces when it arrives from the store. Each returned batch is
checked if the copier has not done so (``tidemark.tier.segments.integrity``). Data that differs from
what was copied raises :class:`ObjectDamaged`. Calls block and run in the fetcher's pool, except
those of a :class:`CachedSegmentReader`.

The cache on disk has what the store has: of a compressed or encrypted segment its frames and its
auxiliary object, so no record of an encrypted segment is written in the clear. The caches in memory
have the log itself.
"""

import os
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import BoundedSemaphore

from tidemark.logfiles.offset_index import IndexFormatError, OffsetIndex
from tidemark.logfiles.time_index import TimeIndex
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.metrics import tier_table
from tidemark.metrics.metric import Metric
from tidemark.records.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    Buffer,
    CorruptBatch,
    TimestampType,
    parse_header,
)
from tidemark.records.decode import UnpackLimits, decode_timestamps
from tidemark.records.split_bytes import SplitBytes
from tidemark.tier.metadata.cache import ByteCache
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.open import Tier
from tidemark.tier.segments.frames import Frames
from tidemark.tier.segments.integrity import (
    PIECE_BYTES,
    BatchLine,
    ObjectDamaged,
    damaged,
    wrong_piece,
)
from tidemark.tier.stores.key_ring import EncryptionKeyMissing
from tidemark.tier.stores.objects import NotInMemory
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.remote_log.chunk_files import AUX, ChunkFiles, ChunkKey
from tidemark_broker.remote_log.read_ahead import Source
from tidemark_broker.remote_log.settings import RemoteSettings
from tidemark_broker.replication.remote import RemoteOffset

#: base offset, length, magic, last offset delta, max timestamp
_GLANCE = struct.Struct(">qi4xb6xi8xq")
#: Batches behind the last indexed one that a read includes. With the default of
#: ``index.interval.bytes`` there are fewer.
_WALKED_MAX = 100
#: Limits of what the event loop reads at all, and without a pause for other requests. A part is
#: what consumers request of a partition by default (1 MiB), with the rest of its last chunk.
_CACHED_BYTES_MAX, _PART_BYTES = 2 << 20, 1280 * 1024
#: Aborted transactions of a segment above which the event loop does not search them.
_ABORTED_MAX = 1000


@dataclass(frozen=True, slots=True)
class Indexes:
    """Indexes of a segment, the digests of its log's pieces, the aborted transactions with records
    in it, and the frames of its log. ``has_sound_batches``: the digests also prove the batches.
    """

    offsets: OffsetIndex
    times: TimeIndex
    pieces: tuple[bytes, ...]
    aborted: tuple[AbortedTxn, ...] = ()
    has_sound_batches: bool = False
    frames: Frames | None = None

    @property
    def size_bytes(self) -> int:
        """Approximate memory in bytes."""
        indexes = 8 * len(self.offsets) + 12 * len(self.times) + 200
        frames = 0 if self.frames is None else self.frames.memory_bytes
        return indexes + 80 * len(self.pieces) + 200 * len(self.aborted) + frames


@dataclass(frozen=True, slots=True)
class _BatchPosition:
    """Position of a batch in the segment's log."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int

    @property
    def end(self) -> int:
        return self.position + self.size_bytes


class Caches:
    """Chunks and indexes of all segments of a broker, each with a limit in bytes.

    A segment id never refers to other bytes, so no entry is ever outdated. Keys have it as a
    number, because a UUID is hashed and compared in Python code.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        files: ChunkFiles | None = None,
        count: Callable[[Metric, float], object] = lambda _, __: None,
    ) -> None:
        """Create empty caches in memory.

        ``files``: the cache on disk, None for none. ``count`` increases a counter of the tier.
        """
        self.files = files
        self.count = count
        #: Held by the thread that goes through the batches of a read. It is Python code, so more
        #: threads would not be faster, and the event loop would wait for each of them in turn.
        #: Nothing is loaded meanwhile.
        self.walking = ordered_lock(LockRank.LEAF)
        #: Held by each thread that computes: it checks or decodes bytes. One core is left to the
        #: event loop, which would otherwise wait for a core behind these threads.
        self.computing = BoundedSemaphore(max(1, (os.cpu_count() or 1) - 1))
        #: A whole number of pieces, so that a chunk can be checked by itself.
        self.chunk_bytes = -(-settings.chunk_bytes // PIECE_BYTES) * PIECE_BYTES
        self.chunks: ByteCache[tuple[int, int], bytes] = ByteCache(
            settings.chunk_cache_bytes,
            len,
            advance_bytes=settings.read_ahead_total_bytes,
            on_unused=partial(count, tier_table.READ_AHEAD_UNUSED_BYTES),
        )
        self.indexes: ByteCache[int, Indexes] = ByteCache(
            settings.index_cache_bytes, lambda indexes: indexes.size_bytes
        )

    @property
    def size_bytes(self) -> int:
        """Bytes in the caches in memory."""
        return self.chunks.size_bytes + self.indexes.size_bytes

    def protect(self, entry: SegmentEntry, position: int) -> None:
        """Keep the chunk with this byte of the segment as if it were loaded in advance."""
        # Behind a segment's end the next read begins in another one.
        if position < entry.size_bytes:
            self.chunks.protect((entry.segment_id.int, position // self.chunk_bytes))

    def forget(self, segment_id: uuid.UUID) -> None:
        """Drop a segment's entries that were damaged, so that the store is read again."""
        if self.files is not None:
            self.files.forget({segment_id})
        self.chunks.forget(lambda key: key[0] == segment_id.int)
        self.indexes.forget(lambda key: key == segment_id.int)


class SegmentReader:
    """Reader of one segment, for a single read.

    It holds what it has used, so that other readers cannot evict it in between.
    """

    def __init__(self, tier: Tier, caches: Caches, entry: SegmentEntry) -> None:
        self._tier = tier
        self._caches = caches
        self._entry = entry
        self._chunks: dict[int, bytes] = {}
        self._held: Indexes | None = None

    def read(
        self, offset: int, max_bytes: int, position: int | None = None
    ) -> tuple[bytes | SplitBytes, int, int]:
        """Return whole batches from the one that contains ``offset``, in about ``max_bytes``.

        ``position``: byte at which the batch that begins with ``offset`` starts, None if it is not
        known. The tuple has the bytes, the offset after the last batch, and the byte position after
        it in the segment. The first batch is complete, however large. Raises ObjectDamaged if the
        data differs from what was copied.
        """
        # One request for the whole range, instead of one for each chunk.
        loaded_end = self._load_about(offset, max_bytes, position)
        # ``line`` checks that each batch continues the offsets and bytes of the one before it.
        line, first = self._find(offset) if position is None else self._start_at(offset, position)
        # A batch that is not loaded yet is left to the next read, for which it is a whole request.
        end = max(first.end, min(loaded_end, first.position + max_bytes))
        data = self._split(first.position, end)
        # The copier has checked all batches, and the digests prove that these are the same.
        if self._indexes().has_sound_batches:
            behind, next_offset = self._end_of_batches(first, end)
            return data.first(behind - first.position), next_offset, behind
        with self._caches.walking, self._caches.computing:
            size = line.check_batches(data, first.position)
        return data.first(size), line.expected, first.position + size

    def _end_of_batches(self, first: _BatchPosition, end: int) -> tuple[int, int]:
        """Return position and offset behind the last whole batch before byte ``end``.

        ``first``: a batch that ends there or before. Only the batches behind the last indexed one
        are examined.
        """
        last_offset, position = self._indexes().offsets.entry_at(end - HEADER_BYTES)
        batch = first
        if position > first.position:
            batch = self._batch_at(position)
            self._check_indexed(batch, last_offset)
            if batch.end > end:
                return position, batch.base_offset
        # Headers come from clients: a walk without a limit could be made arbitrarily long.
        for _ in range(_WALKED_MAX):
            if end - batch.end < HEADER_BYTES:
                break
            following = self._batch_at(batch.end)
            if following.end > end:
                break
            batch = following
        return batch.end, batch.last_offset + 1

    def aborted(self, start: int, end: int) -> Sequence[AbortedTxn]:
        """Return this segment's aborted transactions with records in [start, end)."""
        found = self._indexes().aborted
        return [item for item in found if item.last_offset >= start and item.first_offset < end]

    def first_at_or_after(
        self, timestamp_ms: int, start_offset: int, limits: UnpackLimits
    ) -> RemoteOffset | None:
        """Return the first record from ``start_offset`` that is not older than ``timestamp_ms``.

        None if the segment has no such record. ``limits`` bounds how much is unpacked. When it is
        exhausted the result is the start of the current batch, which is not after the requested
        record, as in a local segment (``log.reading``).
        """
        # Entries strictly below: an equal one need not be the first record of that time.
        indexed = self._indexes().times.lookup(timestamp_ms - 1).offset
        line, batch = self._walk_from(max(indexed, start_offset))
        while True:
            limits.records_left -= 1
            if limits.records_left < 0:
                return self._begin_of(batch, start_offset)
            if batch.max_timestamp_ms >= timestamp_ms and batch.last_offset >= start_offset:
                found = self._first_in_batch(line, batch, timestamp_ms, start_offset, limits)
                if found is not None:
                    return found
            if batch.end >= self._entry.size_bytes:
                return None
            batch = self._passed(line, batch)

    def _begin_of(self, batch: _BatchPosition, start_offset: int) -> RemoteOffset:
        """Return the start of a batch: the requested record is not before it."""
        offset = max(batch.base_offset, start_offset)
        return RemoteOffset(offset, batch.max_timestamp_ms, self._entry.epoch_at(offset))

    def load_in_advance(self, start: int, end: int) -> None:
        """Load the chunks with bytes ``start`` to ``end`` of the log, and the indexes.

        Chunks that are cached or being loaded are left out.
        """
        size, segment_id = self._caches.chunk_bytes, self._entry.segment_id.int
        self._indexes()
        self._caches.chunks.load_in_advance(
            [(segment_id, number) for number in range(start // size, -(-end // size))],
            self._fetch_in_advance,
        )

    def load_indexes(self) -> None:
        """Load the indexes into the cache."""
        self._indexes()

    def _fetch_in_advance(self, keys: Sequence[tuple[int, int]]) -> list[bytes]:
        found = self._fetch([number for _, number in keys])
        self._caches.count(tier_table.READ_AHEAD_BYTES, sum(map(len, found)))
        return found

    def _load(self, first: int, last: int) -> None:
        """Load these chunks. Missing ones are read from the store, adjacent ones in one request."""
        # Chunks in use are held here, so the shared cache may evict them.
        missing = [number for number in range(first, last + 1) if number not in self._chunks]
        if not missing:
            return
        segment_id = self._entry.segment_id.int
        found = self._caches.chunks.get_many(
            [(segment_id, number) for number in missing],
            lambda keys: self._fetch([number for _, number in keys]),
        )
        self._chunks.update(zip(missing, found, strict=True))

    def _fetch(self, numbers: Sequence[int]) -> list[bytes]:
        """Read chunks of ascending numbers from the cache on disk, and the others from the store.

        Adjacent chunks of the store are read in one request. The store's chunks are then cached.
        """
        size, files = self._caches.chunk_bytes, self._caches.files
        frames = self._indexes().frames
        chunks: dict[int, bytes] = {}
        # Requests to an object store cost more than bytes, so adjacent chunks are combined.
        runs: list[list[int]] = []
        for number in numbers:
            start, end = self._bounds(number)
            key = ChunkKey(self._entry.segment_id, start)
            cached = None if files is None else files.get(key, _stored_bytes(frames, start, end))
            if cached is not None:
                with self._caches.computing:
                    chunk = self._tier.segments.decode(self._entry, cached, start, end, frames)
                chunks[number] = chunk
            elif runs and number == runs[-1][-1] + 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        for run in runs:
            for number, (chunk, stored) in zip(run, self._fetch_run(run), strict=True):
                chunks[number] = chunk
                if files is not None:
                    files.put(ChunkKey(self._entry.segment_id, number * size), stored)
        return [chunks[number] for number in numbers]

    def _bounds(self, number: int) -> tuple[int, int]:
        """Return the start and the end of a chunk in the log."""
        size = self._caches.chunk_bytes
        return number * size, min((number + 1) * size, self._entry.size_bytes)

    def _fetch_run(self, run: Sequence[int]) -> list[tuple[bytes, bytes]]:
        """Read adjacent chunks in one request, and check them.

        Return each chunk and its stored form, in order. Raises ObjectDamaged if the object's length
        or a digest differs from the manifest.
        """
        segments, indexes = self._tier.segments, self._indexes()
        frames, bounds = indexes.frames, [self._bounds(number) for number in run]
        parts = segments.fetch_stored(self._entry, bounds, frames)
        self._count_fetched(parts)
        found = []
        with self._caches.computing:
            for (start, end), stored in zip(bounds, parts, strict=True):
                # Frames are verified by their own digests when they are decoded.
                if frames is None:
                    self._check_pieces(start, end, stored, indexes.pieces)
                part = bytes(stored)
                found.append((segments.decode(self._entry, part, start, end, frames), part))
        return found

    def _count_fetched(self, parts: Sequence[Buffer]) -> None:
        self._caches.count(tier_table.STORE_READS, 1)
        self._caches.count(tier_table.STORE_READ_BYTES, sum(map(len, parts)))

    def _check_pieces(self, start: int, end: int, data: Buffer, pieces: Sequence[bytes]) -> None:
        """Check bytes of the log that are stored as they are. Raises ObjectDamaged."""
        # The object's length differs from the manifest's.
        if len(data) != end - start:
            raise self._damaged(
                f"it has {start + len(data)} bytes, the manifest says {self._entry.size_bytes}"
            )
        # Segments copied by earlier versions have no digests of pieces.
        digests = self._entry.digests
        if digests is not None:
            wrong = wrong_piece(data, start, pieces, digests.algorithm)
            if wrong is not None:
                raise self._damaged(f"its digest differs at byte {wrong}")

    def _load_about(self, offset: int, max_bytes: int, position: int | None) -> int:
        """Load what a read will need in one request, which the index shows except for a large
        batch.

        Return the position up to which the log is read. See :meth:`read` for the parameters.
        """
        size = self._caches.chunk_bytes
        first_chunk, last_chunk = self._chunks_about(offset, max_bytes, position)
        self._load(first_chunk, last_chunk)
        # Batches behind the last indexed one may be whole, too.
        return min((last_chunk + 1) * size, self._entry.size_bytes)

    def _chunks_about(self, offset: int, max_bytes: int, position: int | None) -> tuple[int, int]:
        """Return the numbers of the first and the last chunk that a read will need."""
        index, size = self._indexes().offsets, self._caches.chunk_bytes
        begin = index.entry_for(offset)[1] if position is None else position
        end = min(begin + max_bytes, self._entry.size_bytes)
        # The last batch that begins in the range usually ends behind it, and is not returned. Its
        # bytes would be evicted before the next read if there are many readers.
        if position is not None and end < self._entry.size_bytes:
            last = index.floor_position(end, self._entry.end_offset_inclusive + 1)
            end = last if last > begin else end
        return begin // size, max(begin, end - 1) // size

    def _first_in_batch(
        self,
        line: BatchLine,
        batch: _BatchPosition,
        timestamp_ms: int,
        start_offset: int,
        limits: UnpackLimits,
    ) -> RemoteOffset | None:
        """Return the batch's first record from ``start_offset`` not older than ``timestamp_ms``.

        None if the batch has no such record. If its records cannot be unpacked, or all have the
        timestamp of their append, the result is the start of the batch.
        """
        data = self._bytes(batch.position, batch.end)
        line.check_batch(data)
        header = parse_header(data)
        epoch = header.partition_leader_epoch
        # All records of the batch have the same timestamp: its first one matches.
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return self._begin_of(batch, start_offset)
        try:
            for offset, record_ms in decode_timestamps(data, limits):
                if offset >= start_offset and record_ms >= timestamp_ms:
                    return RemoteOffset(offset, record_ms, epoch)
        # The CRC is correct, so the producer sent such a batch, or it exceeds ``limits``.
        except CorruptBatch:
            return self._begin_of(batch, start_offset)
        return None

    def _find(self, offset: int) -> tuple[BatchLine, _BatchPosition]:
        line, batch = self._walk_from(offset)
        while batch.last_offset < offset:
            if batch.end >= self._entry.size_bytes:
                raise self._damaged(f"it has no batch with offset {offset}")
            batch = self._passed(line, batch)
        return line, batch

    def _start_at(self, offset: int, position: int) -> tuple[BatchLine, _BatchPosition]:
        """Return a checker of consecutive batches, and the batch that begins with ``offset``."""
        line = BatchLine(self._entry, self._tier.segments.describe(self._entry), offset)
        batch = self._batch_at(position)
        self._follow(line, batch)
        return line, batch

    def _passed(self, line: BatchLine, batch: _BatchPosition) -> _BatchPosition:
        """Move to the next batch and drop the chunks before it."""
        following = self._batch_at(batch.end)
        self._follow(line, following)
        first = following.position // self._caches.chunk_bytes
        for number in [number for number in self._chunks if number < first]:
            del self._chunks[number]
        return following

    def _walk_from(self, offset: int) -> tuple[BatchLine, _BatchPosition]:
        """Return a checker of consecutive batches, and the batch from which to walk to ``offset``.

        The offset index gives the last batch known to be at or before ``offset``. The checker
        expects the base offset of that batch, or the segment's first offset at position 0.
        """
        last_offset, position = self._indexes().offsets.entry_for(offset)
        batch = self._batch_at(position)
        if position:
            self._check_indexed(batch, last_offset)
        expected = batch.base_offset if position else self._entry.start_offset
        line = BatchLine(self._entry, self._tier.segments.describe(self._entry), expected)
        self._follow(line, batch)
        return line, batch

    def _check_indexed(self, batch: _BatchPosition, last_offset: int) -> None:
        # A wrong index would lead to valid batches with wrong offsets.
        if batch.last_offset != last_offset:
            raise self._damaged(
                f"the batch at byte {batch.position} ends with offset {batch.last_offset}, its "
                f"index says {last_offset}"
            )

    def _follow(self, line: BatchLine, batch: _BatchPosition) -> None:
        line.follow(batch.base_offset, batch.last_offset, batch.position, batch.size_bytes)

    def _batch_at(self, position: int) -> _BatchPosition:
        header = self._bytes(position, min(position + HEADER_BYTES, self._entry.size_bytes))
        if len(header) < HEADER_BYTES:
            raise self._damaged(f"it ends within a batch at byte {position}")
        base, length, magic, last_delta, max_timestamp = _GLANCE.unpack_from(header)
        size = length + LENGTH_OVERHEAD
        fits = HEADER_BYTES <= size <= self._entry.size_bytes - position
        if magic != MAGIC or not fits or last_delta < 0:
            raise self._damaged(f"no record batch starts at byte {position}")
        return _BatchPosition(position, size, base, base + last_delta, max_timestamp)

    def _bytes(self, start: int, end: int) -> bytes:
        return bytes(self._split(start, end))

    def _split(self, start: int, end: int) -> SplitBytes:
        """Return bytes of the log without copying them from the chunks."""
        size = self._caches.chunk_bytes
        first, last = start // size, max(start, end - 1) // size
        self._load(first, last)
        chunks = [self._chunks[number] for number in range(first, last + 1)]
        return SplitBytes(chunks, start - first * size, end - first * size)

    def _indexes(self) -> Indexes:
        if self._held is None:
            self._held = self._caches.indexes.get(self._entry.segment_id.int, self._load_indexes)
        return self._held

    def _load_indexes(self) -> Indexes:
        """Read the segment's indexes from its aux object.

        Raises ObjectDamaged, SegmentUnreadable.
        """
        segments, files = self._tier.segments, self._caches.files
        key, base = ChunkKey(self._entry.segment_id, AUX), self._entry.start_offset
        # The manifest has the digest of the object, so a copy is checked like the object itself.
        data = None if files is None else files.get(key)
        is_cached = data is not None
        if data is None:
            data = segments.fetch_aux_bytes(self._entry)
            self._caches.count(tier_table.STORE_READS, 1)
        try:
            aux = segments.parse_aux(self._entry, data)
        except EncryptionKeyMissing:
            # Since it was cached, the store's object may have got the header of another key.
            if not is_cached:
                raise
            data, is_cached = segments.fetch_aux_bytes(self._entry), False
            self._caches.count(tier_table.STORE_READS, 1)
            aux = segments.parse_aux(self._entry, data)
        if files is not None and not is_cached:
            files.put(key, data)
        try:
            return Indexes(
                OffsetIndex.from_bytes(base, aux.offset_index),
                TimeIndex.from_bytes(base, aux.time_index),
                aux.pieces,
                aux.aborted.transactions,
                # Without digests, nothing proves that the bytes are those of the copy.
                aux.has_sound_batches and self._entry.digests is not None,
                aux.frames,
            )
        except IndexFormatError as error:
            store = self._tier.segments.describe(self._entry)
            raise damaged(self._entry, self._entry.aux_key, store, str(error)) from error

    def _damaged(self, problem: str) -> ObjectDamaged:
        store = self._tier.segments.describe(self._entry)
        return damaged(self._entry, self._entry.log_key, store, problem)


class CachedSegmentReader(SegmentReader):
    """Reader for the event loop: its reads wait for no disk, no network and no other thread.

    A read needs chunks in the cache in memory, or a log in the page cache. It raises NotInMemory
    for anything else, above all for work that takes long: decoding, or checking CRCs.
    """

    #: Where the read has found its data.
    source = Source.MEMORY

    def read(
        self, offset: int, max_bytes: int, position: int | None = None
    ) -> tuple[bytes | SplitBytes, int, int]:
        """Return what :meth:`SegmentReader.read` does, or raise NotInMemory."""
        self._check_short(position)
        return super().read(offset, max_bytes, position)

    def load_in_parts(self, offset: int, max_bytes: int, position: int | None) -> Iterator[None]:
        """Load what :meth:`read` needs, and yield after each part (about 0.6 ms)."""
        self._check_short(position)
        first, last = self._chunks_about(offset, max_bytes, position)
        self._check_chunks(first, last)
        step = max(1, _PART_BYTES // self._caches.chunk_bytes)
        for begin in range(first, last + 1, step):
            self._load(begin, min(begin + step - 1, last))
            yield

    def _check_short(self, position: int | None) -> None:
        """Raise NotInMemory for a read that takes long, such as one that searches its position."""
        indexes = self._indexes()
        if position is None or not indexes.has_sound_batches or len(indexes.aborted) > _ABORTED_MAX:
            raise NotInMemory

    def _check_chunks(self, first: int, last: int) -> None:
        size = self._caches.chunk_bytes
        # The size of chunks is configured.
        if size > _CACHED_BYTES_MAX or (last - first) * size > _CACHED_BYTES_MAX:
            raise NotInMemory

    def _load(self, first: int, last: int) -> None:
        self._check_chunks(first, last)
        missing = [number for number in range(first, last + 1) if number not in self._chunks]
        if missing:
            segment_id = self._entry.segment_id.int
            keys = [(segment_id, number) for number in missing]
            found = self._caches.chunks.get_many_cached(keys, self._fetch_cached)
            self._chunks.update(zip(missing, found, strict=True))

    def _fetch_cached(self, keys: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read adjacent chunks from the page cache, and check them."""
        numbers, indexes = [number for _, number in keys], self._indexes()
        adjacent = numbers[-1] - numbers[0] == len(numbers) - 1
        if not adjacent or indexes.frames is not None or self._caches.files is not None:
            raise NotInMemory
        bounds = [self._bounds(number) for number in numbers]
        parts = self._tier.segments.fetch_cached(self._entry, bounds)
        self.source = Source.PAGE_CACHE
        self._count_fetched(parts)
        for (start, end), part in zip(bounds, parts, strict=True):
            self._check_pieces(start, end, part, indexes.pieces)
        return [*parts]

    def _indexes(self) -> Indexes:
        if self._held is None:
            self._held = self._caches.indexes.get_cached(self._entry.segment_id.int)
        return self._held


def _stored_bytes(frames: Frames | None, start: int, end: int) -> int:
    """Return the size of the stored form of the bytes ``start`` to ``end`` of a log."""
    if frames is not None:
        start, end = frames.stored_range(start, end)
    return end - start
