"""Find every record of a batch in one pass of compiled code.

A record of Kafka's format v2 is a chain of varints, so where one ends is known only after it was
read: this cannot be vectorised with array expressions, and plain Python manages a tenth of a
million records a second. numba compiles the loop to machine code; the rest of the decoder works
on whole arrays.

``scan_records`` fills, for record ``i`` of a batch, positions relative to ``data``; a length of -1
is Kafka's null. It returns the number of records that it read, or -1 where the bytes are not
records: the caller names the batch.
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


@numba.njit(cache=True, nogil=True, inline="always")
def _varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint as (value, next position); the position is -1 where there is none."""
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


@numba.njit(cache=True, nogil=True)
def scan_records(data: Bytes, start: int, end: int, count: int, table: Longs) -> int:
    """Read ``count`` records of ``data[start:end]`` into ``table`` (shape: rows by COLUMNS)."""
    position = start
    for row in range(count):
        length, position = _varint(data, position, end)
        if position < 0 or length < 1 or position + length > end:
            return -1
        record_end = position + length
        position += 1  # the record's attributes: unused by Kafka
        table[row, TIMESTAMP_DELTA], position = _varint(data, position, record_end)
        if position < 0:
            return -1
        table[row, OFFSET_DELTA], position = _varint(data, position, record_end)
        if position < 0:
            return -1
        for column in (KEY_START, VALUE_START):
            size, position = _varint(data, position, record_end)
            if position < 0 or size < -1 or position + max(size, 0) > record_end:
                return -1
            table[row, column] = position
            table[row, column + 1] = size
            position += max(size, 0)
        headers, position = _varint(data, position, record_end)
        if position < 0 or headers < 0 or headers > record_end - position:
            return -1
        table[row, HEADERS_START] = position
        table[row, HEADERS_COUNT] = headers
        position = record_end
    return count if position == end else -1


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
def scan_headers(data: Bytes, starts: Longs, counts: Longs, ends: int, spans: Longs) -> int:
    """Read every header of the rows into ``spans`` (key start, key length, value start, value
    length); the number of headers, or -1 where the bytes are not headers."""
    found = 0
    for row in range(len(starts)):
        position = starts[row]
        for _ in range(counts[row]):
            for column in (0, 2):
                size, position = _varint(data, position, ends)
                if position < 0 or size < -1 or position + max(size, 0) > ends:
                    return -1
                spans[found, column] = position
                spans[found, column + 1] = size
                position += max(size, 0)
            found += 1
    return found
