"""The frame that serializers put before a record: a zero, the schema's id in four bytes, and for
Protobuf which message of the schema it is.

Pure, in arrays: ids of a whole batch at once.
"""

import numba
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

MAGIC = 0
HEADER_BYTES = 5
#: Instead of an id.
UNFRAMED = -1
#: A path of so many messages within one another is no sound one.
_INDEXES_MAX = 32


def ids_of(data: Bytes, starts: Longs, ends: Longs) -> Longs:
    """The schema ids of the records ``data[starts[i]:ends[i]]``; UNFRAMED where there is none."""
    framed = ends - starts >= HEADER_BYTES
    at = np.where(framed, starts, 0)
    found = np.full(len(starts), UNFRAMED, dtype=np.int64)
    if not framed.any():
        return found
    number = np.zeros(len(starts), dtype=np.int64)
    for byte in range(1, HEADER_BYTES):
        number = number << 8 | data[np.where(framed, at + byte, 0)]
    framed &= data[at] == MAGIC
    # An id is a signed number to every registry.
    framed &= number < 2**31
    found[framed] = number[framed]
    return found


@numba.njit(cache=True, nogil=True)
def _indexes(data: Bytes, starts: Longs, ends: Longs, found: Longs, behind: Longs) -> None:
    """Of each record the number of indexes and these, in a row of ``found``; a number below zero
    where there are none. ``behind``: where the message begins."""
    for record in range(len(starts)):
        position, end = starts[record], ends[record]
        left = -1
        at = 0
        while True:
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
            if broken or value < 0 or (left < 0 and value > found.shape[1] - 1):
                found[record, 0] = -1
                break
            if left < 0:
                left = value
                found[record, 0] = left
            else:
                at += 1
                found[record, at] = value
                left -= 1
            if left == 0:
                break
        behind[record] = position


def messages(
    data: Bytes, starts: Longs, ends: Longs
) -> tuple[list[tuple[int, ...] | None], Longs, Longs]:
    """Which messages of a schema there are, None for what does not say it; which of these each of
    the records is; where they begin. The first of a schema is written as a single zero."""
    found = np.zeros((len(starts), _INDEXES_MAX + 1), dtype=np.int64)
    behind = np.empty(len(starts), dtype=np.int64)
    _indexes(data, starts, ends, found, behind)
    found[found[:, 0] < 0, 1:] = 0
    most = int(found[:, 0].max(initial=0))
    rows, which = np.unique(found[:, : most + 1], axis=0, return_inverse=True)
    paths = [None if row[0] < 0 else tuple(row[1 : row[0] + 1]) or (0,) for row in rows.tolist()]
    return paths, which.reshape(-1), behind
