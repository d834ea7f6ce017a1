"""Decode record batches to Arrow, verified and in bulk.

Each data record gives one row. Control batches and records outside the requested offsets give none,
and no batch is passed on unless its CRC is correct. The bytes of a segment and of a fetched tail go
through :func:`decode`: one decoder for every tier.

Producers' batches are small, so several become one Arrow batch, up to ``ROWS_MAX`` rows.
Uncompressed batches are not copied. The others are decompressed into one buffer, and several such
buffers are filled in parallel by a few threads (``DecodeThreads``), as the codecs release the
interpreter's lock.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from tidemark.message_text import count
from tidemark.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatch,
    TimestampType,
    check_crc,
    iter_headers,
)
from tidemark.records.codecs import UNPACKED_BYTES_MAX, Codec, decompress, decompress_into
from tidemark.records.decode import RECORD_BYTES_MIN
from tidemark.records.read_committed import AbortedProducers, committed
from tidemark_pipeline.errors import CorruptData
from tidemark_pipeline.read import scan
from tidemark_pipeline.read.arrow import ROWS_MAX, ByteSource, Rows, to_arrow

__all__ = ["ByteSource", "DecodeThreads", "decode", "decode_batches"]

T = TypeVar("T")
R = TypeVar("R")
#: Record batches that are decoded together have about these decompressed bytes. Processor caches
#: hold them, and the memory allocator reuses buffers of this size.
RUN_BYTES = 8 * 1024 * 1024
#: Decompressed bytes of a compressed byte for which a buffer has room.
_RATIO_ASSUMED = 8
_BUFFER_LEAST = 64 * 1024
#: Batches in progress for each thread. The number is small, as each may decompress to 256 MiB.
_AHEAD = 2


class DecodeThreads:
    """Thread pool that returns results in the order of the inputs."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "decode") if count > 1 else None
        self._ahead = count * _AHEAD

    def __enter__(self) -> "DecodeThreads":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[[T], R], values: Iterable[T], needs_thread: Callable[[T], bool]
    ) -> Iterator[R]:
        """Yield ``function(value)`` for each value, in order, with bounded look-ahead.

        Values for which ``needs_thread`` is true are processed by the pool, the others by the
        caller's thread when their result is due.
        """
        if self._pool is None:
            yield from map(function, values)
            return
        waiting: deque[Callable[[], R]] = deque()
        for value in values:
            task = functools.partial(function, value)
            # Handing an uncompressed batch to a thread costs more than processing it.
            waiting.append(self._pool.submit(task).result if needs_thread(value) else task)
            # Popping the oldest result bounds memory and preserves the order.
            if len(waiting) > self._ahead:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()


CALLER_THREAD = DecodeThreads(1)


@dataclass(frozen=True, slots=True)
class _Group:
    """Records of consecutive batches, uncompressed: batch i is ``buffer[starts[i]:ends[i]]``."""

    buffer: scan.Bytes
    headers: list[BatchHeader]
    starts: list[int]
    ends: list[int]

    @classmethod
    def over(cls, data: Buffer) -> "_Group":
        """Return a group of no batches yet."""
        # Read-only for every codec, as the scanner is compiled once for each type of an argument.
        return cls(np.frombuffer(memoryview(data).toreadonly(), dtype=np.uint8), [], [], [])

    def add(self, header: BatchHeader, start: int, end: int) -> None:
        """Add a batch. Raises ValueError if it cannot have as many records as its header says."""
        # The header's count decides how much memory is allocated, so it is checked against the
        # smallest possible record size.
        if not 0 < header.count * RECORD_BYTES_MIN <= end - start:
            raise ValueError(f"{count(header.count, 'record')} in {end - start} bytes")
        self.headers.append(header)
        self.starts.append(start)
        self.ends.append(end)


#: Position in the fetched bytes, and header, of a record batch.
_Place = tuple[int, BatchHeader]


def decode(
    data: bytes,
    source: ByteSource,
    aborted: Iterable[tuple[int, int]] = (),
    threads: DecodeThreads = CALLER_THREAD,
) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of the requested records in ``data``, in order.

    Records of ``aborted`` transactions (producer id, first offset) are left out. ``data`` starts at
    a batch; a partial batch at its end is ignored.

    Raises :class:`CorruptData` if a checksum or a record's structure is wrong.
    """
    yield from decode_batches(data, _headers_of(data, source, aborted), source, threads)


def is_requested(header: BatchHeader, source: ByteSource) -> bool:
    """Return whether the batch may contain a requested record."""
    return (
        header.last_offset >= source.from_offset
        and header.base_offset <= source.to_offset_inclusive
        and (source.since_ms is None or header.max_timestamp >= source.since_ms)
    )


def decode_batches(
    data: bytes,
    batches: Iterable[tuple[int, BatchHeader]],
    source: ByteSource,
    threads: DecodeThreads = CALLER_THREAD,
) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of the requested records, as :func:`decode`, for known batches.

    ``batches``: position in ``data`` and header of each record batch.
    """

    def unpack(places: list[_Place]) -> tuple[_Group, list[_Place]]:
        return _unpack(data, places, source)

    # Runs of batches are decompressed by the threads, and each is decoded at once.
    requested = (place for place in batches if is_requested(place[1], source))
    for group, rest in threads.map(unpack, _runs(requested), _is_compressed):
        yield from _decode_group(group, source)
        # Batches that compress well fill a buffer before their run ends.
        while rest:
            group, rest = unpack(rest)
            yield from _decode_group(group, source)


def _headers_of(
    data: bytes, source: ByteSource, aborted: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, BatchHeader]]:
    try:
        yield from committed(data, iter_headers(data), AbortedProducers(aborted))
    except CorruptBatch as error:
        raise CorruptData(
            f"{source.topic}-{source.partition}, among the offsets {source.from_offset} to "
            f"{source.to_offset_inclusive} ({source.tier}): {error}"
        ) from error


def _runs(batches: Iterable[_Place]) -> Iterator[list[_Place]]:
    """Yield runs of consecutive batches, each of which is usually decoded into one Arrow batch.

    A run exceeds ROWS_MAX rows or RUN_BYTES only if it is a single batch.
    """
    run: list[_Place] = []
    rows = size = 0
    for place in batches:
        rows += place[1].count
        size += _unpacked_guess(place[1])
        if run and (rows > ROWS_MAX or size > RUN_BYTES):
            yield run
            run, rows, size = [], place[1].count, _unpacked_guess(place[1])
        run.append(place)
    if run:
        yield run


def _unpacked_guess(header: BatchHeader) -> int:
    return header.size_bytes * (1 if header.codec == Codec.NONE else _RATIO_ASSUMED)


def _is_compressed(run: list[_Place]) -> bool:
    return any(header.codec != Codec.NONE for _, header in run)


def _unpack(data: bytes, run: list[_Place], source: ByteSource) -> tuple[_Group, list[_Place]]:
    """Verify the CRCs of a run's batches and decompress their records into one buffer.

    Batches without data records are left out. Returns the batches for which the buffer has no room,
    too. Raises :class:`CorruptData`.
    """
    # Uncompressed batches are decoded in place. If any is compressed, all are put into one buffer.
    room, used = None, 0
    if _is_compressed(run):
        size = sum(_unpacked_guess(header) for _, header in run)
        buffer = np.empty(min(max(size, _BUFFER_LEAST), UNPACKED_BYTES_MAX), dtype=np.uint8)
        room = buffer.data
    group = _Group.over(data if room is None else room)
    for number, (position, header) in enumerate(run):
        start, end = position + HEADER_BYTES, position + header.size_bytes
        try:
            # The CRC covers compressed bytes, so it is checked before they are decompressed.
            check_crc(data, position, header)
            if header.is_control or header.count == 0:
                continue
            if room is not None:
                written = decompress_into(header.codec, data[start:end], room[used:])
                if written is None and group.headers:
                    return group, run[number:]
                # A batch that is larger than the whole buffer has one to itself.
                if written is None:
                    raw = decompress(header.codec, data[start:end])
                    group = _Group.over(raw)
                    group.add(header, 0, len(raw))
                    return group, run[number + 1 :]
                start, end = used, used + written
                used = end
            group.add(header, start, end)
        except ValueError as error:
            raise _corrupt(source, header, str(error)) from error
    return group, []


def _decode_group(group: _Group, source: ByteSource) -> Iterator[pa.RecordBatch]:
    """Yield the requested records of a group as at most one Arrow batch, unless it is large."""
    headers = group.headers
    if not headers:
        return
    # A few KiB may decompress to millions of records, so a large batch is split.
    if headers[0].count > ROWS_MAX:
        yield from _decode_large(group, source)
        return
    counts = np.array([header.count for header in headers], dtype=np.int64)
    # One table for the group, so that a single call into compiled code scans it.
    table = np.empty((int(counts.sum()), scan.COLUMNS), dtype=np.int64)
    starts, ends = np.array(group.starts, dtype=np.int64), np.array(group.ends, dtype=np.int64)
    wrong = scan.scan_batches(group.buffer, starts, ends, counts, table)
    # The scanner returns twice the index of the corrupt batch, plus one for the second error.
    if wrong >= 0:
        raise _corrupt(source, headers[wrong // 2], _SCAN_ERRORS[wrong % 2])
    yield from _requested_rows(group.buffer, table, headers, counts, source)


def _decode_large(group: _Group, source: ByteSource) -> Iterator[pa.RecordBatch]:
    """Yield the records of a batch with more than ROWS_MAX records, ROWS_MAX rows at a time."""
    (header,) = group.headers
    view = group.buffer[group.starts[0] : group.ends[0]]
    position = 0
    for first in range(0, header.count, ROWS_MAX):
        rows = min(ROWS_MAX, header.count - first)
        table = np.empty((rows, scan.COLUMNS), dtype=np.int64)
        # Each call continues at the position where the previous one ended.
        position = scan.scan_records(view, position, rows, table)
        if position == scan.BROKEN:
            raise _corrupt(source, header, _SCAN_ERRORS[0])
        # Bytes after the last record mean that the header's count is wrong.
        if first + rows == header.count and position != len(view):
            raise _corrupt(source, header, _SCAN_ERRORS[1])
        yield from _requested_rows(view, table, [header], np.array([rows]), source)


_SCAN_ERRORS = ("its records cannot be read", "there are bytes behind its last record")


def _requested_rows(
    buffer: scan.Bytes,
    table: scan.Longs,
    headers: list[BatchHeader],
    counts: scan.Longs,
    source: ByteSource,
) -> Iterator[pa.RecordBatch]:
    """Yield the requested records of scanned batches as an Arrow batch, if there are any.

    ``table``: a row of positions in ``buffer`` per record (:func:`scan.scan_records`). ``counts``:
    number of records of each batch in ``headers``.
    """
    size = len(table)
    # scan.spread fills these arrays: offset, timestamp (µs), timestamp type, leader epoch.
    rows = Rows(
        buffer,
        table,
        np.empty(size, dtype=np.int64),
        np.empty(size, dtype=np.int64),
        np.empty(size, dtype=np.int32),
        np.empty(size, dtype=np.int32),
    )
    requested = scan.spread(
        table,
        counts,
        np.array([_batch_columns(header) for header in headers], dtype=np.int64),
        (source.from_offset, source.to_offset_inclusive),
        rows.offsets,
        rows.timestamps_us,
        rows.timestamp_types,
        rows.leader_epochs,
    )
    # Filtering copies every array, so it is done only for the first and last batches of a read.
    if requested < size:
        offsets = rows.offsets
        rows = rows.only((offsets >= source.from_offset) & (offsets <= source.to_offset_inclusive))
    if requested:
        yield to_arrow(rows, source)


def _batch_columns(header: BatchHeader) -> tuple[int, ...]:
    """Return the values of a batch in the order that :func:`scan.spread` expects."""
    return (
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp,
        int(header.timestamp_type is TimestampType.LOG_APPEND_TIME),
        header.partition_leader_epoch,
    )


def _corrupt(source: ByteSource, header: BatchHeader, reason: str) -> CorruptData:
    return CorruptData(
        f"{source.topic}-{source.partition}, offsets {header.base_offset} to {header.last_offset} "
        f"({source.tier}): {reason}"
    )
