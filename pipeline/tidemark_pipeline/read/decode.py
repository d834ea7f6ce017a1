"""Decode record batches to Arrow, verified and in bulk.

Each data record gives one row. Control batches and records outside the requested offsets give none,
and no batch is passed on unless its CRC is correct. The bytes of a segment and of a fetched tail go
through :func:`decode`: one decoder for every tier.

Producers' batches are small, so several become one Arrow batch, up to ``ROWS_MAX`` rows.
Uncompressed batches are not copied. The others are decompressed in parallel by a few threads
(``DecodeThreads``), as the codecs release the interpreter's lock, and then concatenated.
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
    CorruptBatch,
    TimestampType,
    check_crc,
    iter_headers,
)
from tidemark.records.codecs import Codec, decompress
from tidemark.records.decode import RECORD_BYTES_MIN
from tidemark.records.read_committed import AbortedProducers, committed
from tidemark_pipeline.errors import CorruptData
from tidemark_pipeline.read import scan
from tidemark_pipeline.read.arrow import ROWS_MAX, ByteSource, Rows, to_arrow

__all__ = ["ByteSource", "DecodeThreads", "decode", "decode_batches"]

T = TypeVar("T")
R = TypeVar("R")
#: An Arrow batch ends when its record batches exceed these decompressed bytes.
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
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
class _Unpacked:
    """Records of a batch: ``data[start:end]``."""

    header: BatchHeader
    data: bytes
    start: int
    end: int


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

    def unpack(place: tuple[int, BatchHeader]) -> _Unpacked | None:
        return _unpack(data, *place, source)

    # Batches are decompressed by the threads, and several small ones are decoded at once.
    requested = (place for place in batches if is_requested(place[1], source))
    for group in _groups(threads.map(unpack, requested, _is_compressed)):
        # A few KiB may decompress to millions of records, so a large batch is split.
        if group[0].header.count > ROWS_MAX:
            yield from _decode_large(group[0], source)
        else:
            yield from _decode_group(data, group, source)


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


def _unpack(
    data: bytes, position: int, header: BatchHeader, source: ByteSource
) -> _Unpacked | None:
    """Verify a record batch's CRC and return its decompressed records.

    Returns None if the batch has no data records. Raises :class:`CorruptData`.
    """
    start, end = position + HEADER_BYTES, position + header.size_bytes
    unpacked = _Unpacked(header, data, start, end)
    try:
        # The CRC covers compressed bytes, so it is checked before they are decompressed.
        check_crc(data, position, header)
        if header.is_control or header.count == 0:
            return None
        if header.codec != Codec.NONE:
            raw = decompress(header.codec, data[start:end])
            unpacked = _Unpacked(header, raw, 0, len(raw))
    except ValueError as error:
        raise _corrupt(source, header, str(error)) from error
    size = unpacked.end - unpacked.start
    # The header's count decides how much memory is allocated, so it is checked against the smallest
    # possible record size.
    if not 0 < header.count * RECORD_BYTES_MIN <= size:
        raise _corrupt(source, header, f"{count(header.count, 'record')} in {size} bytes")
    return unpacked


def _is_compressed(place: tuple[int, BatchHeader]) -> bool:
    return place[1].codec != Codec.NONE


def _groups(batches: Iterable[_Unpacked | None]) -> Iterator[list[_Unpacked]]:
    """Yield groups of consecutive batches that are decoded into one Arrow batch.

    A group exceeds ROWS_MAX rows only if it is a single batch. None stands for a batch without data
    records.
    """
    group: list[_Unpacked] = []
    rows = size = 0
    for batch in batches:
        if batch is None:
            continue
        rows += batch.header.count
        size += batch.end - batch.start
        if group and (rows > ROWS_MAX or size > UNPACKED_BYTES_MAX):
            yield group
            group, rows, size = [], batch.header.count, batch.end - batch.start
        group.append(batch)
    if group:
        yield group


def _decode_group(
    data: bytes, group: list[_Unpacked], source: ByteSource
) -> Iterator[pa.RecordBatch]:
    """Yield the requested records of several record batches as at most one Arrow batch.

    ``data``: the fetched bytes, in which uncompressed batches are located.
    """
    # Uncompressed batches are decoded in place. If any batch was compressed, all are concatenated.
    if all(batch.data is data for batch in group):
        buffer, starts = data, np.array([batch.start for batch in group], dtype=np.int64)
        ends = np.array([batch.end for batch in group], dtype=np.int64)
    else:
        buffer = b"".join([batch.data[batch.start : batch.end] for batch in group])
        ends = np.cumsum([batch.end - batch.start for batch in group], dtype=np.int64)
        starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
    headers = [batch.header for batch in group]
    counts = np.array([header.count for header in headers], dtype=np.int64)
    # One table for the group, so that a single call into compiled code scans it.
    table = np.empty((int(counts.sum()), scan.COLUMNS), dtype=np.int64)
    view = np.frombuffer(buffer, dtype=np.uint8)
    wrong = scan.scan_batches(view, starts, ends, counts, table)
    # The scanner returns twice the index of the corrupt batch, plus one for the second error.
    if wrong >= 0:
        raise _corrupt(source, headers[wrong // 2], _SCAN_ERRORS[wrong % 2])
    yield from _requested_rows(view, table, headers, counts, source)


def _decode_large(batch: _Unpacked, source: ByteSource) -> Iterator[pa.RecordBatch]:
    """Yield the records of a batch with more than ROWS_MAX records, ROWS_MAX rows at a time."""
    header = batch.header
    view = np.frombuffer(batch.data, dtype=np.uint8)[batch.start : batch.end]
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
