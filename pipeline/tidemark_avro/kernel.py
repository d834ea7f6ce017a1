"""Read Avro's bytes into slots, in one pass of compiled code.

The format is a chain of varints without markers, so values must be read one by one. Plain Python
reads about a hundred thousand small records a second, and available libraries crash on deeply
nested records. The kernel runs a program (:mod:`~.program`) on each record. Each node defines how a
value of the writer's schema is read, and its slot, if any.

No part of a record is trusted. Lengths and counts are checked against the remaining bytes, numbers
against their types, text against UTF-8, depth against a limit, and the number of entries against
the record's size. An invalid record leaves only a null in the slots.
"""

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

#: Operation of a node. In this order: values that start with a varint; nulls and missing fields,
#: which take no bytes; values with parts, and defaults, which follow the records; then the others.
(LONG, INT, ENUM, STRING, BYTES, UNION, NULL, MISSING, ARRAY, MAP, RECORD, DEFAULT, REFUSED,
 BOOLEAN, FIXED, FLOAT, DOUBLE) = range(17)  # fmt: skip
#: Columns of a node. ``CHILDREN``, ``COUNT``: a range of ``KernelProgram.children``. ``NULLS``,
#: ``NULLS_COUNT``: a range of ``KernelProgram.nulls``, the slots that a null goes to. ``SIZE``:
#: size of a fixed, or position of a default.
OP, SLOT, CHILDREN, COUNT, NULLS, NULLS_COUNT, SIZE, CONVERT = range(8)
NODE = 8
#: Conversion of a value for its slot. A decimal's number of digits is added to ``TO_DECIMAL``.
AS_IS, TO_DOUBLE, DAYS, MICROS, MILLIS, TEXT, TO_DECIMAL = range(7)
#: Position of the root node.
ROOT = 0

#: Reasons for the end of a record: negative, in place of the next position.
FULL = -1
(TRUNCATED, OVERLONG, RANGE, NO_BOOLEAN, NO_TEXT, NO_BRANCH, NO_SYMBOL, NO_COUNT, TOO_DEEP, UNFIT,
 TOO_LARGE, DIGITS, LEFTOVER) = range(-2, -15, -1)  # fmt: skip
DEPTH_MAX = 100
#: Limit of a record's entries: a base, and a number for each byte.
ENTRIES_MIN, ENTRIES_PER_BYTE = 65_536, 16


class KernelProgram(NamedTuple):
    """Program in the form that the kernel runs.

    ``nodes``: a row per value of the writer's schema, with the columns OP to CONVERT. ``children``:
    indexes of child nodes, and positions of enum symbols. ``nulls``: slots that a null goes to.
    ``limits``: by number of digits the two words (high, low) of a decimal's bound. ``trailer``:
    position in the buffer of the defaults and symbols, which follow the records.
    """

    nodes: Longs
    children: Longs
    nulls: Longs
    limits: npt.NDArray[np.uint64]
    trailer: int


class Store(NamedTuple):
    """Memory that the kernel fills: for each column a slot, which is a range of the arrays.

    ``low``, ``high``: two words of each entry. ``present``: 1 if the entry is not null. ``base``:
    start of each slot. ``capacity``: of each slot, in entries. ``size``: its number of entries.
    ``reached``: the sizes when a slot was full. ``frames``: the stack of nested values.
    """

    low: Longs
    high: Longs
    present: Bytes
    base: Longs
    capacity: Longs
    size: Longs
    reached: Longs
    frames: Longs


#: Columns of a frame.
FRAME_NODE, NEXT, ITEMS_LEFT, ITEMS = range(4)
FRAME = 4
#: Years 1 to 9999 in days since 1970, the range of Spark's dates and times.
_DAYS_MIN, _DAYS_END = -719_162, 2_932_897
_DAY_MS = 86_400_000


@numba.njit(cache=True, nogil=True, inline="always")
def _long(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read a zigzag varint of 64 bits and return (value, next position).

    The position is negative, TRUNCATED or OVERLONG, if the varint is invalid.
    """
    raw = np.uint64(0)
    shift = np.uint64(0)
    while True:
        if position >= end:
            return 0, TRUNCATED
        byte = np.uint64(data[position])
        position += 1
        # The tenth byte has one bit left of the 64.
        if shift == np.uint64(63) and byte > np.uint64(1):
            return 0, OVERLONG
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return int(np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))), position
        shift += np.uint64(7)


@numba.njit(cache=True, nogil=True)
def _is_text(data: Bytes, position: int, end: int) -> bool:
    """Return whether ``data[position:end]`` is valid UTF-8 (RFC 3629)."""
    while position < end:
        first = data[position]
        position += 1
        if first < 0x80:
            continue
        # The first byte gives the length and the range of the second one. The ranges exclude
        # overlong forms, surrogates and code points above U+10FFFF.
        if 0xC2 <= first <= 0xDF:
            more, low, high = 1, 0x80, 0xBF
        elif 0xE0 <= first <= 0xEF:
            more = 2
            low = 0xA0 if first == 0xE0 else 0x80
            high = 0x9F if first == 0xED else 0xBF
        elif 0xF0 <= first <= 0xF4:
            more = 3
            low = 0x90 if first == 0xF0 else 0x80
            high = 0x8F if first == 0xF4 else 0xBF
        else:
            return False
        if position + more > end or not low <= data[position] <= high:
            return False
        # All further bytes are continuation bytes.
        for at in range(position + 1, position + more):
            if data[at] & 0xC0 != 0x80:
                return False
        position += more
    return True


@numba.njit(cache=True, nogil=True)
def _decimal(
    data: Bytes, start: int, end: int, bound: npt.NDArray[np.uint64]
) -> tuple[int, int, bool]:
    """Return (low word, high word, fits) of a big-endian two's complement number.

    ``fits``: its absolute value is below ``bound`` (high, low), which is 10 to the column's
    precision.
    """
    negative = end > start and data[start] >= 0x80
    fill = np.uint8(0xFF) if negative else np.uint8(0)
    # Remove sign bytes, until 16 bytes are left. A number that needs more does not fit.
    while end - start > 16:
        if data[start] != fill:
            return 0, 0, False
        start += 1
        if end - start == 16 and (data[start] >= 0x80) != negative:
            return 0, 0, False
    high = np.uint64(0xFFFFFFFFFFFFFFFF) if negative else np.uint64(0)
    low = high
    # Shift the bytes into two words of 64 bits.
    for at in range(start, end):
        high = (high << np.uint64(8)) | (low >> np.uint64(56))
        low = (low << np.uint64(8)) | np.uint64(data[at])
    # Negate into an absolute value, with the carry from the low to the high word.
    upper, lower = high, low
    if negative:
        lower = ~lower + np.uint64(1)
        upper = ~upper + (np.uint64(1) if lower == np.uint64(0) else np.uint64(0))
    fits = upper < bound[0] or (upper == bound[0] and lower < bound[1])
    return int(np.int64(low)), int(np.int64(high)), bool(fits)


@numba.njit(cache=True, nogil=True)
def _read(  # noqa: PLR0912, PLR0915
    program: KernelProgram, store: Store, data: Bytes, position: int, end: int, budget: int
) -> tuple[int, int]:
    """Read one record into the store and return (next position, node).

    The position is one of the negative reasons if the record is invalid or a slot is full. The node
    is then the failed one, or the full slot. ``budget``: limit of entries that the record may add.

    The loop replaces recursion by a stack of frames. A frame is a node with parts that are still to
    read: its next child, and for arrays and maps the number of items left in the block and the
    total. The frame of a default contains the position at which the record continues.
    """
    nodes, children, nulls = program.nodes, program.children, program.nulls
    low, high, present = store.low, store.high, store.present
    base, capacity, sizes = store.base, store.capacity, store.size
    frames = store.frames
    entries = 0
    depth = -1
    node = ROOT
    record_end = end
    while True:
        # Read one value. The varint is inlined, as it is the most frequent operation.
        op, slot = nodes[node, OP], nodes[node, SLOT]
        one, two = 0, 0
        if op <= UNION:  # what begins with a varint: LONG, INT, UNION, ENUM, STRING, BYTES
            raw, shift = np.uint64(0), np.uint64(0)
            while True:
                if position >= end:
                    return TRUNCATED, node
                byte = np.uint64(data[position])
                position += 1
                if shift == np.uint64(63) and byte > np.uint64(1):
                    return OVERLONG, node
                raw |= (byte & np.uint64(0x7F)) << shift
                if byte < np.uint64(0x80):
                    break
                shift += np.uint64(7)
            one = int(np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)))
            # A union is replaced by its branch. It has no entry of its own.
            if op == UNION:
                if one < 0 or one >= nodes[node, COUNT]:
                    return NO_BRANCH, node
                node = children[nodes[node, CHILDREN] + one]
                continue
            convert = nodes[node, CONVERT]
            # Whole numbers are checked against the ranges of the writer's type and of the column.
            if op <= INT:
                if op == INT and (one < -(2**31) or one >= 2**31):
                    return RANGE, node
                if convert == TO_DOUBLE:
                    one = int(np.float64(one).view(np.int64))
                elif convert == DAYS:
                    if one < _DAYS_MIN or one >= _DAYS_END:
                        return RANGE, node
                elif convert == MILLIS:
                    if one < _DAYS_MIN * _DAY_MS or one >= _DAYS_END * _DAY_MS:
                        return RANGE, node
                    one *= 1000
                elif convert == MICROS and (
                    one < _DAYS_MIN * _DAY_MS * 1000 or one >= _DAYS_END * _DAY_MS * 1000
                ):
                    return RANGE, node
            # An enum's text is among the symbols in the trailer.
            elif op == ENUM:
                if one < 0 or one >= nodes[node, COUNT]:
                    return NO_SYMBOL, node
                at = nodes[node, CHILDREN] + 2 * one
                if slot >= 0:
                    one, two = program.trailer + children[at], children[at + 1]
            else:
                # Bytes and strings keep their position. The text is copied when the column is
                # built.
                if one < 0 or one > end - position:
                    return TRUNCATED, node
                two, one = one, position
                position += two
                if convert == TEXT and not _is_text(data, one, position):
                    return NO_TEXT, node
                if convert >= TO_DECIMAL and slot >= 0:
                    one, two, fits = _decimal(
                        data, one, position, program.limits[convert - TO_DECIMAL]
                    )
                    if not fits:
                        return DIGITS, node
        elif op <= MISSING:  # NULL, MISSING: an entry without a value in all slots of the column.
            for at in range(nodes[node, NULLS], nodes[node, NULLS] + nodes[node, NULLS_COUNT]):
                into = nulls[at]
                if sizes[into] >= capacity[into]:
                    return FULL, into
                place = base[into] + sizes[into]
                low[place], high[place], present[place] = 0, 0, 0
                sizes[into] += 1
                entries += 1
            slot = -1
        elif op <= DEFAULT:  # ARRAY, MAP, RECORD, DEFAULT: push a frame for the parts.
            if depth + 1 >= DEPTH_MAX:
                return TOO_DEEP, node
            depth += 1
            frames[depth, FRAME_NODE] = node
            frames[depth, NEXT] = nodes[node, CHILDREN]
            frames[depth, ITEMS_LEFT] = 0
            frames[depth, ITEMS] = 0
            # A default is read from its position in the trailer, and then the record continues.
            if op == DEFAULT:
                frames[depth, ITEMS_LEFT] = position
                position, end = program.trailer + nodes[node, SIZE], len(data)
            # A record's own entry is written now, that of a list after its items are counted.
            if op != RECORD:
                slot = -1
        # The writer's branch fits no column.
        elif op == REFUSED:
            return UNFIT, node
        elif op == BOOLEAN:
            if position >= end:
                return TRUNCATED, node
            one = data[position]
            if one > 1:
                return NO_BOOLEAN, node
            position += 1
        elif op == FIXED:
            one, two = position, nodes[node, SIZE]
            if two > end - position:
                return TRUNCATED, node
            position += two
            convert = nodes[node, CONVERT]
            if convert >= TO_DECIMAL and slot >= 0:
                bound = program.limits[convert - TO_DECIMAL]
                one, two, fits = _decimal(data, one, position, bound)
                if not fits:
                    return DIGITS, node
        else:  # FLOAT, DOUBLE
            size = 8 if op == DOUBLE else 4
            if size > end - position:
                return TRUNCATED, node
            # Avro encodes floating-point numbers in little-endian order.
            raw = np.uint64(0)
            for at in range(size):
                raw |= np.uint64(data[position + at]) << np.uint64(8 * at)
            position += size
            if op == FLOAT:
                raw = np.float64(np.uint32(raw).view(np.float32)).view(np.uint64)
            one = int(np.int64(raw))
        # Append the value to its slot.
        if slot >= 0:
            if sizes[slot] >= capacity[slot]:
                return FULL, slot
            place = base[slot] + sizes[slot]
            low[place], high[place], present[place] = one, two, 1
            sizes[slot] += 1
            entries += 1
        # Find the next node: a further part of the innermost frame, or of those around it.
        while True:
            # The record is complete. Further bytes mean that the schema does not match.
            if depth < 0:
                return (position, node) if position == record_end else (LEFTOVER, ROOT)
            node = frames[depth, FRAME_NODE]
            op = nodes[node, OP]
            at = frames[depth, NEXT]
            if at < nodes[node, CHILDREN] + nodes[node, COUNT] and (
                op in (RECORD, DEFAULT) or frames[depth, ITEMS_LEFT] > 0
            ):
                frames[depth, NEXT] = at + 1
                node = children[at]
                break
            # Return from a default to the record, or repeat the parts for the next item.
            if op == DEFAULT:
                position, end = frames[depth, ITEMS_LEFT], record_end
            elif op != RECORD:
                frames[depth, NEXT] = nodes[node, CHILDREN]
                # Items with entries but few bytes are limited by the record's budget.
                if entries > budget:
                    return TOO_LARGE, node
                if frames[depth, ITEMS_LEFT] > 1:
                    frames[depth, ITEMS_LEFT] -= 1
                    continue
                # Next block of items. A negative count is followed by the block's size in bytes.
                block, position = _long(data, position, end)
                if position >= 0 and block < 0:
                    size, position = _long(data, position, end)
                    if position >= 0 and (size < 0 or size > end - position or block == -(2**63)):
                        return NO_COUNT, node
                    block = -block
                if position < 0:
                    return position, node
                # Each item has at least one byte, which the schema's check guarantees.
                if block > end - position:
                    return NO_COUNT, node
                if block > 0:
                    frames[depth, ITEMS_LEFT] = block
                    frames[depth, ITEMS] += block
                    continue
                # A block of size zero ends the items: append their number to the list's slot.
                into = nodes[node, SLOT]
                if into >= 0:
                    if sizes[into] >= capacity[into]:
                        return FULL, into
                    place = base[into] + sizes[into]
                    low[place], high[place], present[place] = frames[depth, ITEMS], 0, 1
                    sizes[into] += 1
                    entries += 1
            depth -= 1


@numba.njit(cache=True, nogil=True)
def read_records(
    program: KernelProgram,
    store: Store,
    data: Bytes,
    starts: Longs,
    ends: Longs,
    first: int,
    entries_max: int,
    failures: Longs,
) -> tuple[int, int]:
    """Read the records ``data[starts[i]:ends[i]]`` into the store, beginning with ``first``.

    The function ends when the slots have more than ``entries_max`` entries, or a slot is full. It
    writes each record's reason and node to ``failures``, zeros for a valid record. Returns the next
    record to read, and the full slot or -1.
    """
    sizes = store.size
    before = np.empty_like(sizes)
    first_null = program.nodes[ROOT, NULLS]
    root_nulls = program.nulls[first_null : first_null + program.nodes[ROOT, NULLS_COUNT]]
    for record in range(first, len(starts)):
        # A single record is read even if it exceeds the limit of a piece.
        if record > first and sizes.sum() > entries_max:
            return record, -1
        before[:] = sizes
        budget = ENTRIES_MIN + ENTRIES_PER_BYTE * (ends[record] - starts[record])
        code, node = _read(program, store, data, starts[record], ends[record], budget)
        if code >= 0:
            continue
        # A full slot ends the call. The caller enlarges the store and repeats the record.
        if code == FULL:
            store.reached[:] = sizes
        sizes[:] = before
        if code == FULL:
            return record, node
        # An invalid record is rolled back, and all columns get a null in its place.
        for slot in root_nulls:
            if sizes[slot] >= store.capacity[slot]:
                store.reached[:] = sizes
                sizes[:] = before
                return record, slot
            place = store.base[slot] + sizes[slot]
            store.low[place], store.high[place], store.present[place] = 0, 0, 0
            sizes[slot] += 1
        failures[record, 0], failures[record, 1] = code, node
    return len(starts), -1


@numba.njit(cache=True, nogil=True)
def gather(data: Bytes, starts: Longs, offsets: npt.NDArray[np.int32], out: Bytes) -> None:
    """Copy the pieces of ``data`` at ``starts`` to the ranges of ``out`` between ``offsets``."""
    for row in range(len(starts)):
        begin, target = starts[row], offsets[row]
        size = offsets[row + 1] - target
        if size > 0:
            out[target : target + size] = data[begin : begin + size]
