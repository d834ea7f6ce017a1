"""Find every batch of a log, and every record of a batch, in one pass of compiled code.

A record of Kafka's format v2 is a chain of varints, so its end is known only after it was read.
Array expressions cannot vectorise this, and plain Python reads a tenth of a million records per
second. numba compiles the loop to machine code; the rest of the decoder uses whole arrays.

Producers' batches often have only a few records. So their headers, too, are a table with a row for
each batch (:func:`find_batches`), and checks of batches are array expressions.

``scan_records`` fills, for each record, positions relative to ``data``; a negative length is
Kafka's null. It continues where an earlier call ended, so a table may be smaller than a batch. It
accepts the same records as :mod:`tidemark.records.decode`.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba.core import cgutils, types
from numba.extending import intrinsic

from tidemark.records.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    Buffer,
    CorruptBatch,
    iter_headers,
)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

#: Columns of the table that :func:`scan_records` fills.
OFFSET_DELTA, TIMESTAMP_DELTA = 0, 1
#: Starts of key and value; the column after each has the length.
KEY_START, VALUE_START = 2, 4
HEADERS_START, HEADERS_COUNT = 6, 7
COLUMNS = 8

#: Columns of the table of batches. START and END are positions in the bytes that were searched.
START, END, CRC, ATTRIBUTES, BASE_OFFSET, LAST_OFFSET = 0, 1, 2, 3, 4, 5
BASE_TIMESTAMP, MAX_TIMESTAMP, LEADER_EPOCH, COUNT = 6, 7, 8, 9
BATCH_COLUMNS = 10
#: Bits of ATTRIBUTES: all records have the batch's greatest timestamp, and the compression.
_APPEND_TIME, CODEC = 0x08, 0x07
_OFFSET_MAX = 2**63 - 1

#: Beyond it a timestamp in microseconds exceeds 64 bits. Producers may send such a timestamp if the
#: topic's configuration allows it. It is read as the nearest that fits.
LATEST_MS = (2**63 - 1) // 1000


#: Result of ``scan_records`` for bytes that are no record, and of ``_read_headers`` for no batch.
BROKEN = -1


def find_batches(data: Buffer) -> tuple[Longs, int]:
    """Return a row for each complete batch in ``data``, and the bytes of all of them.

    ``data`` starts at a batch. A partial batch at its end is ignored. The batches are those of
    :func:`tidemark.records.batch.iter_headers`. Raises CorruptBatch.
    """
    searched = as_bytes(data)
    # The first pass counts the batches.
    count = _read_headers(searched, np.empty((0, BATCH_COLUMNS), dtype=np.int64))
    if count == BROKEN:
        # The plain walk says what is wrong. It knows no limit of offsets.
        for _ in iter_headers(data):
            pass
        raise CorruptBatch(f"offsets beyond {_OFFSET_MAX}")
    batches = np.empty((count, BATCH_COLUMNS), dtype=np.int64)
    _read_headers(searched, batches)
    return batches, int(batches[-1, END]) if count else 0


def as_bytes(data: Buffer) -> Bytes:
    """Return a view of the bytes.

    It is read-only for every kind of buffer, as the scanner is compiled once for each type of an
    argument.
    """
    return np.frombuffer(memoryview(data).toreadonly(), dtype=np.uint8)


@intrinsic
def _copy(context: Any, out: Any, to: Any, data: Any, begin: Any, size: Any) -> Any:
    """Copy ``data[begin : begin + size]`` to ``out[to : to + size]`` with C's memcpy.

    A numba intrinsic: it returns the signature and a function that generates the machine code. An
    assignment of slices takes four times as long, as they might overlap.
    """

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        # The arguments are bare pointers here; the callers have checked the bounds.
        into = context.make_array(signature.args[0])(context, builder, given[0]).data
        source = context.make_array(signature.args[2])(context, builder, given[2]).data
        to_here, from_here = builder.gep(into, [given[1]]), builder.gep(source, [given[3]])
        cgutils.raw_memcpy(builder, to_here, from_here, given[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(out, to, data, begin, size), build


@numba.njit(cache=True, nogil=True, inline="always")
def _integer(data: Bytes, position: int, size: int) -> int:
    """Return a signed integer of ``size`` bytes, big endian."""
    value = np.int64(-1) if data[position] >= 0x80 else np.int64(0)
    for at in range(position, position + size):
        value = (value << np.int64(8)) | np.int64(data[at])
    return int(value)


@numba.njit(cache=True, nogil=True)
def _read_headers(data: Bytes, batches: Longs) -> int:
    """Read the headers of as many batches as the table has rows; return the number in ``data``.

    Returns BROKEN for what :func:`find_batches` refuses. The layout is in
    :mod:`tidemark.records.batch`.
    """
    position, number = 0, 0
    while len(data) - position >= HEADER_BYTES:
        length = _integer(data, position + 8, 4)
        base_offset = _integer(data, position, 8)
        last_delta = _integer(data, position + 23, 4)
        if data[position + 16] != MAGIC or length < HEADER_BYTES - LENGTH_OVERHEAD:
            return BROKEN
        if base_offset < 0 or last_delta < 0:
            return BROKEN
        end = position + LENGTH_OVERHEAD + length
        # The last batch is cut.
        if end > len(data):
            break
        # Sums of offsets must not wrap around.
        if base_offset > _OFFSET_MAX - last_delta:
            return BROKEN
        if number < len(batches):
            batches[number, START] = position
            batches[number, END] = end
            batches[number, CRC] = _integer(data, position + 17, 4) & 0xFFFFFFFF
            batches[number, ATTRIBUTES] = _integer(data, position + 21, 2)
            batches[number, BASE_OFFSET] = base_offset
            batches[number, LAST_OFFSET] = base_offset + last_delta
            batches[number, BASE_TIMESTAMP] = _integer(data, position + 27, 8)
            batches[number, MAX_TIMESTAMP] = _integer(data, position + 35, 8)
            batches[number, LEADER_EPOCH] = _integer(data, position + 12, 4)
            batches[number, COUNT] = _integer(data, position + 57, 4)
        position = end
        number += 1
    return number


@numba.njit(cache=True, nogil=True, inline="always")
def _varlong(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Return a zigzag varint of 64 bits as (value, next position); position -1 if invalid."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    while position < end and shift < np.uint64(70):
        byte = np.uint64(data[position])
        position += 1
        # Seven bits per byte, least significant first; a byte below 0x80 is the last one.
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            # The lowest bit is the sign (zigzag).
            return int(np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))), position
        shift += np.uint64(7)
    return 0, -1


@numba.njit(cache=True, nogil=True, inline="always")
def _varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Return a zigzag varint of 32 bits as (value, next position); position -1 if invalid.

    The bound of 32 bits ensures that no sum of position and length can overflow.
    """
    raw = np.uint64(0)
    shift = np.uint64(0)
    while position < end and shift < np.uint64(35):
        byte = np.uint64(data[position])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            # Kafka drops the excess bits of a fifth byte, too.
            raw &= np.uint64(0xFFFFFFFF)
            return int(np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))), position
        shift += np.uint64(7)
    return 0, -1


@numba.njit(cache=True, nogil=True, inline="always")
def _sized(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Return (start, length, next position) of length-prefixed bytes.

    The next position is -1 if the bytes do not end before ``end``.
    """
    size, start = _varint(data, position, end)
    # A negative length is null and has no bytes.
    behind = start + max(size, 0)
    if start < 0 or behind > end:
        return 0, 0, -1
    return start, size, behind


@numba.njit(cache=True, nogil=True, inline="always")
def _behind_headers(data: Bytes, position: int, end: int, count: int) -> int:
    """Return the position after ``count`` headers, or -1."""
    for _ in range(count):
        _, size, position = _sized(data, position, end)
        # A header's key must not be null, but its value may be.
        if position < 0 or size < 0:
            return -1
        _, _, position = _sized(data, position, end)
        if position < 0:
            return -1
    return position


@numba.njit(cache=True, nogil=True)
def scan_records(data: Bytes, position: int, count: int, table: Longs) -> int:
    """Read ``count`` records from ``position`` into ``table`` (shape: rows by COLUMNS).

    ``data``: uncompressed records of format v2. Returns the position of the next record, or BROKEN.
    """
    for row in range(count):
        # A length is checked before it is used: data may come from a faulty client.
        length, position = _varint(data, position, len(data))
        if position < 0 or length < 1 or position + length > len(data):
            return BROKEN
        end = position + length
        # Skip the record's attributes, one byte that Kafka does not use.
        table[row, TIMESTAMP_DELTA], position = _varlong(data, position + 1, end)
        if position < 0:
            return BROKEN
        table[row, OFFSET_DELTA], position = _varint(data, position, end)
        if position < 0:
            return BROKEN
        # Key and value have the same form: a length, then the bytes.
        for column in (KEY_START, VALUE_START):
            table[row, column], table[row, column + 1], position = _sized(data, position, end)
            if position < 0:
                return BROKEN
        headers, position = _varint(data, position, end)
        if position < 0 or headers < 0:
            return BROKEN
        # Headers are only skipped here; scan_headers reads them if the query needs the column.
        table[row, HEADERS_START] = position
        table[row, HEADERS_COUNT] = headers
        # A record must end exactly where its length says.
        if _behind_headers(data, position, end, headers) != end:
            return BROKEN
        position = end
    return position


@numba.njit(cache=True, nogil=True)
def scan_batches(data: Bytes, starts: Longs, ends: Longs, counts: Longs, table: Longs) -> int:
    """Read the records of many batches into consecutive rows of ``table``.

    Batch i has ``counts[i]`` records in ``data[starts[i]:ends[i]]``. Positions in ``table`` are
    relative to ``data``. Returns -1 if all batches are valid. For a corrupt batch it returns twice
    its index, plus one if it has bytes after its last record.
    """
    first = 0
    for batch in range(len(starts)):
        # Each batch is scanned as a slice, so that no record can extend into the next batch.
        start = starts[batch]
        size = ends[batch] - start
        rows = table[first : first + counts[batch]]
        behind = scan_records(data[start : ends[batch]], 0, counts[batch], rows)
        # Two results per batch: bytes that are no record, or bytes after the last record.
        if behind == BROKEN:
            return 2 * batch
        if behind != size:
            return 2 * batch + 1
        # Positions become relative to the whole buffer.
        for row in range(counts[batch]):
            rows[row, KEY_START] += start
            rows[row, VALUE_START] += start
            rows[row, HEADERS_START] += start
        first += counts[batch]
    return -1


@numba.njit(cache=True, nogil=True)
def spread(
    table: Longs,
    counts: Longs,
    batches: Longs,
    requested: tuple[int, int],
    offsets: Longs,
    timestamps_us: Longs,
    timestamp_types: Ints,
    leader_epochs: Ints,
) -> int:
    """Fill the columns that each scanned record derives from its batch header.

    ``counts`` has the number of rows of each of the ``batches`` (columns as named above).
    ``requested`` is the first and the last requested offset. Fills the last four arrays and returns
    the number of requested records.
    """
    row, requested_count = 0, 0
    for batch in range(len(counts)):
        append_time = 1 if batches[batch, ATTRIBUTES] & _APPEND_TIME else 0
        for _ in range(counts[batch]):
            offset = batches[batch, BASE_OFFSET] + table[row, OFFSET_DELTA]
            # With LogAppendTime all records have the batch's greatest timestamp.
            stamp = batches[batch, MAX_TIMESTAMP]
            if append_time == 0:
                # A sum beyond 64 bits wraps around, as it does in Kafka's clients
                # (DefaultRecord.readFrom), so that every reader sees the same time.
                stamp = batches[batch, BASE_TIMESTAMP] + table[row, TIMESTAMP_DELTA]
            stamp = min(max(stamp, -LATEST_MS), LATEST_MS)
            offsets[row] = offset
            timestamps_us[row] = stamp * 1000
            timestamp_types[row] = append_time
            leader_epochs[row] = batches[batch, LEADER_EPOCH]
            if requested[0] <= offset <= requested[1]:
                requested_count += 1
            row += 1
    return requested_count


@numba.njit(cache=True, nogil=True)
def measure(table: Longs, column: int, ends: Ints) -> tuple[int, int]:
    """Compute the Arrow offsets of one variable-length column, such as the keys.

    ``column`` has the start of each value, the column after it the length, negative for null.
    ``ends`` receives the cumulative lengths, from 0. Returns the total bytes and the number of
    nulls.
    """
    total, nulls = 0, 0
    ends[0] = 0
    for row in range(len(table)):
        size = table[row, column + 1]
        # A null takes no bytes; its start equals its end.
        if size < 0:
            nulls += 1
        else:
            total += size
        ends[row + 1] = total
    return total, nulls


@numba.njit(cache=True, nogil=True)
def gather(data: Bytes, table: Longs, column: int, ends: Ints, out: Bytes) -> None:
    """Concatenate the measured pieces; ``column`` has the start of each."""
    for row in range(len(table)):
        size = ends[row + 1] - ends[row]
        # The copy takes 64-bit numbers, but the array of ends has 32 bits.
        if size > 0:
            to = np.int64(ends[row])
            _copy(out, to, data, table[row, column], np.int64(size))  # type: ignore[call-arg]


@numba.njit(cache=True, nogil=True)
def scan_headers(data: Bytes, table: Longs, spans: Longs) -> None:
    """Read every header of scanned rows into ``spans``: key start, key length, value start,
    value length.
    """
    header = 0
    for row in range(len(table)):
        position = table[row, HEADERS_START]
        for _ in range(table[row, HEADERS_COUNT]):
            # Key first, then value, each with its length in the next column.
            for column in (0, 2):
                spans[header, column], spans[header, column + 1], position = _sized(
                    data, position, len(data)
                )
            header += 1
