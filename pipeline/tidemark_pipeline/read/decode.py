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
    CONTROL,
    CRC_COVERS_FROM,
    HEADER_BYTES,
    TRANSACTIONAL,
    Buffer,
    CorruptBatch,
    check_crc,
    compute_crc,
    parse_header,
)
from tidemark.records.codecs import UNPACKED_BYTES_MAX, decompress, decompress_into
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
    """Uncompressed records of batches of a run.

    The records of batch ``numbers[i]`` of the run are ``buffer[starts[i]:ends[i]]``.
    """

    buffer: scan.Bytes
    run: scan.Longs
    numbers: list[int]
    starts: list[int]
    ends: list[int]

    @classmethod
    def over(cls, data: Buffer, run: scan.Longs) -> "_Group":
        """Return a group of no batches yet."""
        return cls(scan.as_bytes(data), run, [], [], [])

    def add(self, number: int, records: int, start: int, end: int) -> None:
        """Add a batch. Raises ValueError if it cannot have as many records as its header says."""
        # The header's count decides how much memory is allocated, so it is checked against the
        # smallest possible record size.
        if not 0 < records * RECORD_BYTES_MIN <= end - start:
            raise ValueError(f"{count(records, 'record')} in {end - start} bytes")
        self.numbers.append(number)
        self.starts.append(start)
        self.ends.append(end)


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
    try:
        batches, _ = scan.find_batches(data)
        # Partitions of a topic have separate logs, so each read starts without known transactions.
        read = batches_to_read(data, batches, source, AbortedProducers(aborted))
    except CorruptBatch as error:
        raise CorruptData(
            f"{source.topic}-{source.partition}, among the offsets {source.from_offset} to "
            f"{source.to_offset_inclusive} ({source.tier}): {error}"
        ) from error
    yield from decode_batches(data, read, source, threads)


def batches_to_read(
    data: bytes, batches: scan.Longs, source: ByteSource, aborted: AbortedProducers
) -> scan.Longs:
    """Return the batches of a table that may contain a requested record.

    Those of aborted transactions and markers are left out. Raises CorruptBatch if the CRC of one
    that is left out for that reason is wrong.
    """
    chosen = (batches[:, scan.LAST_OFFSET] >= source.from_offset) & (
        batches[:, scan.BASE_OFFSET] <= source.to_offset_inclusive
    )
    if source.since_ms is not None:
        chosen &= batches[:, scan.MAX_TIMESTAMP] >= source.since_ms
    # Only batches of transactions affect which others are left out. Most topics have none.
    special = batches[:, scan.ATTRIBUTES] & (TRANSACTIONAL | CONTROL) != 0
    if special.any():
        starts = batches[:, scan.START]
        places = [(start, parse_header(data, start)) for start in starts[special].tolist()]
        kept = [start for start, _ in committed(data, places, aborted)]
        chosen &= ~special | np.isin(starts, kept)
    return batches[chosen]


def decode_batches(
    data: bytes,
    batches: scan.Longs,
    source: ByteSource,
    threads: DecodeThreads = CALLER_THREAD,
) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of the requested records, as :func:`decode`, for known batches.

    ``batches``: those of ``data`` to read (:func:`batches_to_read`).
    """

    def unpack(run: scan.Longs) -> tuple[_Group, scan.Longs]:
        return _unpack(data, run, source)

    # Runs of batches are decompressed by the threads, and each is decoded at once.
    for group, rest in threads.map(unpack, _runs(batches), _is_compressed):
        yield from _decode_group(group, source)
        # Batches that compress well fill a buffer before their run ends.
        while len(rest):
            group, rest = unpack(rest)
            yield from _decode_group(group, source)


def _runs(batches: scan.Longs) -> Iterator[scan.Longs]:
    """Yield runs of consecutive batches, each of which is usually decoded into one Arrow batch.

    A run exceeds ROWS_MAX rows or RUN_BYTES only if it is a single batch.
    """
    counts, guesses = batches[:, scan.COUNT].tolist(), _unpacked_guesses(batches).tolist()
    begin = rows = size = 0
    for number, (records, guess) in enumerate(zip(counts, guesses, strict=True)):
        rows += records
        size += guess
        if number > begin and (rows > ROWS_MAX or size > RUN_BYTES):
            yield batches[begin:number]
            begin, rows, size = number, records, guess
    if begin < len(batches):
        yield batches[begin:]


def _unpacked_guesses(batches: scan.Longs) -> scan.Longs:
    sizes: scan.Longs = batches[:, scan.END] - batches[:, scan.START]
    return np.where(batches[:, scan.ATTRIBUTES] & scan.CODEC, sizes * _RATIO_ASSUMED, sizes)


def _is_compressed(run: scan.Longs) -> bool:
    return bool((run[:, scan.ATTRIBUTES] & scan.CODEC).any())


def _unpack(data: bytes, run: scan.Longs, source: ByteSource) -> tuple[_Group, scan.Longs]:
    """Verify the CRCs of a run's batches and decompress their records into one buffer.

    Batches without data records are left out. Returns the batches for which the buffer has no room,
    too. Raises :class:`CorruptData`.
    """
    # Uncompressed batches are decoded in place. If any is compressed, all are put into one buffer.
    room, used = None, 0
    if _is_compressed(run):
        size = int(_unpacked_guesses(run).sum())
        buffer = np.empty(min(max(size, _BUFFER_LEAST), UNPACKED_BYTES_MAX), dtype=np.uint8)
        room = buffer.data
    group = _Group.over(data if room is None else room, run)
    for number, row in enumerate(run[:, _UNPACK_COLUMNS].tolist()):
        position, end, crc, attributes, records = row
        start = position + HEADER_BYTES
        try:
            # The CRC covers compressed bytes, so it is checked before they are decompressed.
            if compute_crc(data, position + CRC_COVERS_FROM, end) != crc:
                check_crc(data, position, parse_header(data, position))
            if attributes & CONTROL or records == 0:
                continue
            if room is not None:
                codec, packed = attributes & scan.CODEC, data[start:end]
                written = decompress_into(codec, packed, room[used:])
                if written is None and group.numbers:
                    return group, run[number:]
                # A batch that is larger than the whole buffer has one to itself.
                if written is None:
                    raw = decompress(codec, packed)
                    group = _Group.over(raw, run)
                    group.add(number, records, 0, len(raw))
                    return group, run[number + 1 :]
                start, end = used, used + written
                used = end
            group.add(number, records, start, end)
        except ValueError as error:
            raise _corrupt(source, run[number], str(error)) from error
    return group, run[:0]


#: Columns of a batch that :func:`_unpack` uses.
_UNPACK_COLUMNS = [scan.START, scan.END, scan.CRC, scan.ATTRIBUTES, scan.COUNT]


def _decode_group(group: _Group, source: ByteSource) -> Iterator[pa.RecordBatch]:
    """Yield the requested records of a group as at most one Arrow batch, unless it is large."""
    if not group.numbers:
        return
    batches = group.run[group.numbers]
    counts = np.ascontiguousarray(batches[:, scan.COUNT])
    # A few KiB may decompress to millions of records, so a large batch is split.
    if counts[0] > ROWS_MAX:
        yield from _decode_large(group, batches, source)
        return
    # One table for the group, so that a single call into compiled code scans it.
    table = np.empty((int(counts.sum()), scan.COLUMNS), dtype=np.int64)
    starts, ends = np.array(group.starts, dtype=np.int64), np.array(group.ends, dtype=np.int64)
    wrong = scan.scan_batches(group.buffer, starts, ends, counts, table)
    # The scanner returns twice the index of the corrupt batch, plus one for the second error.
    if wrong >= 0:
        raise _corrupt(source, batches[wrong // 2], _SCAN_ERRORS[wrong % 2])
    yield from _requested_rows(group.buffer, table, batches, counts, source)


def _decode_large(
    group: _Group, batches: scan.Longs, source: ByteSource
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a batch with more than ROWS_MAX records, ROWS_MAX rows at a time."""
    (batch,) = batches
    view = group.buffer[group.starts[0] : group.ends[0]]
    position, records = 0, int(batch[scan.COUNT])
    for first in range(0, records, ROWS_MAX):
        rows = min(ROWS_MAX, records - first)
        table = np.empty((rows, scan.COLUMNS), dtype=np.int64)
        # Each call continues at the position where the previous one ended.
        position = scan.scan_records(view, position, rows, table)
        if position == scan.BROKEN:
            raise _corrupt(source, batch, _SCAN_ERRORS[0])
        # Bytes after the last record mean that the header's count is wrong.
        if first + rows == records and position != len(view):
            raise _corrupt(source, batch, _SCAN_ERRORS[1])
        yield from _requested_rows(view, table, batches, np.array([rows]), source)


_SCAN_ERRORS = ("its records cannot be read", "there are bytes behind its last record")


def _requested_rows(
    buffer: scan.Bytes,
    table: scan.Longs,
    batches: scan.Longs,
    counts: scan.Longs,
    source: ByteSource,
) -> Iterator[pa.RecordBatch]:
    """Yield the requested records of scanned batches as an Arrow batch, if there are any.

    ``table``: a row of positions in ``buffer`` per record (:func:`scan.scan_records`). ``counts``:
    number of rows of each of the ``batches``.
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
        batches,
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


def _corrupt(source: ByteSource, batch: scan.Longs, reason: str) -> CorruptData:
    return CorruptData(
        f"{source.topic}-{source.partition}, offsets {batch[scan.BASE_OFFSET]} to "
        f"{batch[scan.LAST_OFFSET]} ({source.tier}): {reason}"
    )
