"""Frame that serializers write before a record: a zero byte and the schema's id in four bytes.

For Protobuf a path follows, which names the message within the schema. Pure functions over arrays
read a whole batch at once.
"""

import numba
import numpy as np

from tidemark_avro.decoder_results import Bytes, Longs

MAGIC = 0
HEADER_BYTES = 5
#: Result for a record without a frame, instead of an id.
UNFRAMED = -1
#: Longest path. Real schemas nest far fewer messages.
_INDEXES_MAX = 32


def ids_of(data: Bytes, starts: Longs, ends: Longs) -> Longs:
    """Return the schema IDs of the records ``data[starts[i]:ends[i]]``, UNFRAMED for none."""
    # A record that is too short reads position 0 instead, so that no index is out of range.
    framed = ends - starts >= HEADER_BYTES
    at = np.where(framed, starts, 0)
    ids = np.full(len(starts), UNFRAMED, dtype=np.int64)
    if not framed.any():
        return ids
    number = np.zeros(len(starts), dtype=np.int64)
    for byte in range(1, HEADER_BYTES):
        number = number << 8 | data[np.where(framed, at + byte, 0)]
    framed &= data[at] == MAGIC
    # An id is a signed number to every registry.
    framed &= number < 2**31
    ids[framed] = number[framed]
    return ids


@numba.njit(cache=True, nogil=True)
def _indexes(
    data: Bytes, starts: Longs, ends: Longs, paths_by_record: Longs, behind: Longs
) -> None:
    """Read the message path of each Protobuf record in ``data[starts[i]:ends[i]]``.

    A path is a count followed by indexes. Both are written to the record's row of
    ``paths_by_record``; the count is negative for an invalid path. ``behind`` receives the start of
    each message.
    """
    for record in range(len(starts)):
        position, end = starts[record], ends[record]
        remaining = -1
        at = 0
        while True:
            # Read one zigzag varint, of 35 bits at most.
            raw, shift, broken = 0, 0, True
            while position < end and shift < 35:
                byte = int(data[position])
                position += 1
                raw = raw | (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    broken = False
                    break
            value = (raw >> 1) ^ -(raw & 1)
            # The first number is the length of the path. It must fit the row.
            if broken or value < 0 or (remaining < 0 and value > paths_by_record.shape[1] - 1):
                paths_by_record[record, 0] = -1
                break
            # Further numbers are the indexes.
            if remaining < 0:
                remaining = value
                paths_by_record[record, 0] = remaining
            else:
                at += 1
                paths_by_record[record, at] = value
                remaining -= 1
            if remaining == 0:
                break
        behind[record] = position


def messages(
    data: Bytes, starts: Longs, ends: Longs
) -> tuple[list[tuple[int, ...] | None], Longs, Longs]:
    """Return the distinct message paths, each record's index in them, and the message starts.

    ``data[starts[i]:ends[i]]`` are Protobuf records after the schema ID. The path is None for a
    record without a valid one, and (0,) for the schema's first message.
    """
    paths_by_record = np.zeros((len(starts), _INDEXES_MAX + 1), dtype=np.int64)
    behind = np.empty(len(starts), dtype=np.int64)
    _indexes(data, starts, ends, paths_by_record, behind)
    # Invalid rows are cleared, so that they count as one path.
    paths_by_record[paths_by_record[:, 0] < 0, 1:] = 0
    most = int(paths_by_record[:, 0].max(initial=0))
    # A batch has few distinct paths, so callers can build one decoder for each.
    rows, which = np.unique(paths_by_record[:, : most + 1], axis=0, return_inverse=True)
    paths = [None if row[0] < 0 else tuple(row[1 : row[0] + 1]) or (0,) for row in rows.tolist()]
    return paths, which.reshape(-1), behind
