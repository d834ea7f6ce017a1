"""Whole batches out of one remote segment, by ranged reads through a cache of chunks.

The offset index (cached) says from where to walk; batch headers say the rest. Only headers are
looked at. All calls block and run in the fetcher's pool.
"""

import struct
from dataclasses import dataclass

from tidemark.logfiles.offset_index import IndexFormatError, OffsetIndex
from tidemark.logfiles.time_index import TimeIndex
from tidemark.records.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    CorruptBatch,
    TimestampType,
    parse_header,
)
from tidemark.records.decode import decode_records
from tidemark.tier.auxiliary import AuxCorrupt
from tidemark.tier.open import Tier
from tidemark.tier.segment import SegmentEntry
from tidemark.tier.cache import ByteCache
from tidemark_broker.remote_log.settings import RemoteSettings
from tidemark_broker.replication.remote import RemoteOffset

#: base offset, length, magic, last offset delta, max timestamp
_GLANCE = struct.Struct(">qi4xb6xi8xq")


class SegmentCorrupt(Exception):
    """A remote segment is not what its manifest entry and index say."""


@dataclass(frozen=True, slots=True)
class Indexes:
    """A segment's indexes in memory."""

    offsets: OffsetIndex
    times: TimeIndex

    @property
    def size_bytes(self) -> int:
        """About what they take."""
        return 8 * len(self.offsets) + 12 * len(self.times) + 200


@dataclass(frozen=True, slots=True)
class _Batch:
    """Where a batch stands in the segment's log."""

    position: int
    size_bytes: int
    last_offset: int
    max_timestamp_ms: int

    @property
    def end(self) -> int:
        return self.position + self.size_bytes


class Caches:
    """Chunks and indexes of all segments, each with a limit in bytes. A segment id never names
    other bytes, so nothing in here is ever out of date."""

    def __init__(self, settings: RemoteSettings) -> None:
        self.chunk_bytes = settings.chunk_bytes
        self.chunks: ByteCache[tuple[object, int], bytes] = ByteCache(
            settings.chunk_cache_bytes, len
        )
        self.indexes: ByteCache[object, Indexes] = ByteCache(
            settings.index_cache_bytes, lambda indexes: indexes.size_bytes
        )

    @property
    def size_bytes(self) -> int:
        """Bytes held now."""
        return self.chunks.size_bytes + self.indexes.size_bytes


class SegmentReader:
    """Reads one segment; make one where it is needed, it holds nothing."""

    def __init__(self, tier: Tier, caches: Caches, entry: SegmentEntry) -> None:
        self._tier = tier
        self._caches = caches
        self._entry = entry

    def read(self, offset: int, max_bytes: int) -> tuple[bytes, int, int]:
        """(whole batches from the one with ``offset``, the offset behind them, the position behind
        them); the first batch comes whole however large."""
        first = self._find(offset)
        end, next_offset = first.end, first.last_offset + 1
        while end < self._entry.size_bytes:
            batch = self._batch_at(end)
            if batch.end - first.position > max_bytes:
                break
            end, next_offset = batch.end, batch.last_offset + 1
        return self._bytes(first.position, end), next_offset, end

    def first_at_or_after(self, timestamp_ms: int, start_offset: int) -> RemoteOffset | None:
        """The first record not below ``start_offset`` that is not older than a time."""
        indexed = self._indexes().times.lookup(timestamp_ms - 1).offset
        position = self._indexes().offsets.position_for(max(indexed, start_offset))
        while position < self._entry.size_bytes:
            batch = self._batch_at(position)
            if batch.max_timestamp_ms >= timestamp_ms and batch.last_offset >= start_offset:
                found = self._first_in_batch(batch, timestamp_ms, start_offset)
                if found is not None:
                    return found
            position = batch.end
        return None

    def load_chunk(self, number: int) -> bytes:
        """One chunk of the segment's log, from the cache or the store."""
        size = self._caches.chunk_bytes
        start = number * size
        end = min(start + size, self._entry.size_bytes)

        def load() -> bytes:
            data = self._tier.segments.fetch(self._entry, start, end)
            if len(data) != end - start:
                raise SegmentCorrupt(
                    f"{self._entry.log_key} has {start + len(data)} bytes, the manifest says "
                    f"{self._entry.size_bytes}"
                )
            return data

        return self._caches.chunks.get((self._entry.segment_id, number), load)

    def _first_in_batch(
        self, batch: _Batch, timestamp_ms: int, start_offset: int
    ) -> RemoteOffset | None:
        data = self._bytes(batch.position, batch.end)
        try:
            header = parse_header(data)
            epoch = header.partition_leader_epoch
            if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
                offset = max(header.base_offset, start_offset)
                return RemoteOffset(offset, header.max_timestamp, epoch)
            for record in decode_records(data):
                if record.offset >= start_offset and record.timestamp_ms >= timestamp_ms:
                    return RemoteOffset(record.offset, record.timestamp_ms, epoch)
        except CorruptBatch as error:
            raise SegmentCorrupt(f"{self._entry.log_key} at {batch.position}: {error}") from error
        return None

    def _find(self, offset: int) -> _Batch:
        position = self._indexes().offsets.position_for(offset)
        while position < self._entry.size_bytes:
            batch = self._batch_at(position)
            if batch.last_offset >= offset:
                return batch
            position = batch.end
        raise SegmentCorrupt(f"{self._entry.log_key} holds no batch with offset {offset}")

    def _batch_at(self, position: int) -> _Batch:
        header = self._bytes(position, min(position + HEADER_BYTES, self._entry.size_bytes))
        if len(header) < HEADER_BYTES:
            raise SegmentCorrupt(f"{self._entry.log_key} ends within a batch at {position}")
        base, length, magic, last_delta, max_timestamp = _GLANCE.unpack_from(header)
        size = length + LENGTH_OVERHEAD
        fits = HEADER_BYTES <= size <= self._entry.size_bytes - position
        if magic != MAGIC or not fits or last_delta < 0:
            raise SegmentCorrupt(f"{self._entry.log_key}: no record batch begins at {position}")
        return _Batch(position, size, base + last_delta, max_timestamp)

    def _bytes(self, start: int, end: int) -> bytes:
        size = self._caches.chunk_bytes
        first, last = start // size, (end - 1) // size
        if first == last:
            return self.load_chunk(first)[start - first * size : end - first * size]
        whole = b"".join(self.load_chunk(number) for number in range(first, last + 1))
        return whole[start - first * size : end - first * size]

    def _indexes(self) -> Indexes:
        return self._caches.indexes.get(self._entry.segment_id, self._load_indexes)

    def _load_indexes(self) -> Indexes:
        aux, base = self._tier.segments.fetch_aux(self._entry), self._entry.start_offset
        try:
            return Indexes(
                OffsetIndex.from_bytes(base, aux.offset_index),
                TimeIndex.from_bytes(base, aux.time_index),
            )
        except IndexFormatError as error:
            raise AuxCorrupt(f"{self._entry.aux_key}: {error}") from error
