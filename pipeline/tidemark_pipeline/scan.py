"""Find every record of a batch in one pass of compiled code.

A record of Kafka's format v2 is a chain of varints, so where one ends is known only after it was
read: this cannot be vectorised with array expressions, and plain Python manages a tenth of a
million records a second. numba compiles the loop to machine code; the rest of the decoder works
on whole arrays.

``scan_records`` fills, for each record, positions relative to ``data``; a negative length is
Kafka's null. It goes on where an earlier call ended, so that a table need not be as large as a
batch. What is a record is what :mod:`tidemark.records.decode` takes for one.
"""

import numba
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

#: Columns of the table that :func:`scan_records` fills.
OFFSET_DELTA, TIMESTAMP_DELTA = 0, 1
KEY_START, KEY_LENGTH = 2, 3
VALUE_START, VALUE_LENGTH = 4, 5
HEADERS_START, HEADERS_COUNT = 6, 7
COLUMNS = 8


#: Where ``scan_records`` ends that has met something else than a record.
BROKEN = -1


@numba.njit(cache=True, nogil=True, inline="always")
def _varlong(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint of 64 bits as (value, next position); the position is -1 where none is."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    while position < end and shift < np.uint64(70):
        byte = np.uint64(data[position])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return int(np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))), position
        shift += np.uint64(7)
    return 0, -1


@numba.njit(cache=True, nogil=True, inline="always")
def _varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """The same with 32 bits; so that no sum of a position and a length can overflow."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    while position < end and shift < np.uint64(35):
        byte = np.uint64(data[position])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            raw &= np.uint64(0xFFFFFFFF)
            return int(np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))), position
        shift += np.uint64(7)
    return 0, -1


@numba.njit(cache=True, nogil=True, inline="always")
def _sized(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """(start, length, next position) of bytes behind their length; -1 for the last of where they
    do not end before ``end``."""
    size, start = _varint(data, position, end)
    behind = start + max(size, 0)
    if start < 0 or behind > end:
        return 0, 0, -1
    return start, size, behind


@numba.njit(cache=True, nogil=True, inline="always")
def _behind_headers(data: Bytes, position: int, end: int, count: int) -> int:
    """The position behind so many headers, or -1."""
    for _ in range(count):
        _, size, position = _sized(data, position, end)
        if position < 0 or size < 0:
            return -1
        _, _, position = _sized(data, position, end)
        if position < 0:
            return -1
    return position


@numba.njit(cache=True, nogil=True)
def scan_records(data: Bytes, position: int, count: int, table: Longs) -> int:
    """Read ``count`` records from ``position`` on into ``table`` (shape: rows by COLUMNS); where
    the next one begins, or BROKEN."""
    for row in range(count):
        length, position = _varint(data, position, len(data))
        if position < 0 or length < 1 or position + length > len(data):
            return BROKEN
        end = position + length
        # The byte that is passed over is the record's attributes: unused by Kafka.
        table[row, TIMESTAMP_DELTA], position = _varlong(data, position + 1, end)
        if position < 0:
            return BROKEN
        table[row, OFFSET_DELTA], position = _varint(data, position, end)
        if position < 0:
            return BROKEN
        for column in (KEY_START, VALUE_START):
            table[row, column], table[row, column + 1], position = _sized(data, position, end)
            if position < 0:
                return BROKEN
        headers, position = _varint(data, position, end)
        if position < 0 or headers < 0:
            return BROKEN
        table[row, HEADERS_START] = position
        table[row, HEADERS_COUNT] = headers
        if _behind_headers(data, position, end, headers) != end:
            return BROKEN
        position = end
    return position


@numba.njit(cache=True, nogil=True)
def scan_batches(data: Bytes, starts: Longs, ends: Longs, counts: Longs, table: Longs) -> int:
    """The records of many batches, ``data[starts[i]:ends[i]]`` each, one behind the other into
    ``table``, with positions in ``data``. Where one is not as it should be: twice its number, and
    one more if there are only bytes behind its last record; else -1."""
    first = 0
    for batch in range(len(starts)):
        start = starts[batch]
        size = ends[batch] - start
        rows = table[first : first + counts[batch]]
        behind = scan_records(data[start : ends[batch]], 0, counts[batch], rows)
        if behind == BROKEN:
            return 2 * batch
        if behind != size:
            return 2 * batch + 1
        for row in range(counts[batch]):
            rows[row, KEY_START] += start
            rows[row, VALUE_START] += start
            rows[row, HEADERS_START] += start
        first += counts[batch]
    return -1


@numba.njit(cache=True, nogil=True)
def gather(data: Bytes, starts: Longs, lengths: Longs, offsets: Longs, out: Bytes) -> None:
    """Copy the pieces ``data[starts[i]:starts[i]+lengths[i]]`` to ``out`` at ``offsets[i]``."""
    for row in range(len(starts)):
        size = lengths[row]
        if size > 0:
            begin = starts[row]
            target = offsets[row]
            out[target : target + size] = data[begin : begin + size]


@numba.njit(cache=True, nogil=True)
def scan_headers(data: Bytes, starts: Longs, counts: Longs, spans: Longs) -> None:
    """Read every header of rows that were scanned into ``spans`` (key start, key length, value
    start, value length)."""
    found = 0
    for row in range(len(starts)):
        position = starts[row]
        for _ in range(counts[row]):
            for column in (0, 2):
                spans[found, column], spans[found, column + 1], position = _sized(
                    data, position, len(data)
                )
            found += 1
