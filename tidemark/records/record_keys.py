"""Walk the records of one unpacked batch by their keys: the inner loop of log compaction.

Of a record only what compaction decides by is read: where it stands, its offset, its key, and
whether it has a value. Lengths of one byte, which nearly all are, are read without a call; the rest
of a record is passed over unseen, so that what is kept is kept byte for byte.
"""

from collections.abc import Iterator

from tidemark.records.batch import CorruptBatch
from tidemark.records.varint import VarintError, read_varint, read_varlong

#: Start and end in the payload, offset delta, key (None: there is none), whether it has a value.
KeyedRecord = tuple[int, int, int, bytes | None, bool]


def keyed_records(payload: bytes, count: int, last_delta: int) -> Iterator[KeyedRecord]:
    """Yield position, offset delta and key of every record of a decompressed batch, in order.

    ``count`` and ``last_delta``: number of records and largest offset delta in the header. Raises
    :class:`CorruptBatch` for malformed records, possibly after some were yielded.
    """
    position, limit = 0, len(payload)
    try:
        for _ in range(count):
            # The record's length. Zigzag varints of one byte are decoded in place.
            start = position
            raw = payload[position]
            if raw < 0x80:
                size, position = (raw >> 1) ^ -(raw & 1), position + 1
            else:
                size, position = read_varint(payload, position)
            end = position + size
            position += 1  # the attributes, which mean nothing
            while payload[position] >= 0x80:  # the timestamp
                position += 1
            position += 1
            # The offset delta to the batch's base offset.
            raw = payload[position]
            if raw < 0x80:
                delta, position = (raw >> 1) ^ -(raw & 1), position + 1
            else:
                delta, position = read_varint(payload, position)
            # The length of the key, negative for null.
            raw = payload[position]
            if raw < 0x80:
                key_size, position = (raw >> 1) ^ -(raw & 1), position + 1
            else:
                key_size, position = read_varint(payload, position)
            key = None
            if key_size >= 0:
                key = payload[position : position + key_size]
                position += key_size
            if not start < position < end <= limit or not 0 <= delta <= last_delta:
                raise CorruptBatch(f"a record of {size} bytes does not fit its batch")
            # A zigzag number is negative where its lowest bit is set: the length of null.
            yield start, end, delta, key, not payload[position] & 1
            position = end
    except (IndexError, VarintError) as error:
        raise CorruptBatch(f"a record cannot be read: {error}") from error
    if position != limit:
        raise CorruptBatch(f"{limit - position} bytes behind the last record")


def timestamp_delta_of(payload: bytes, start: int) -> tuple[int, int, int]:
    """Return (start, end, value) of the timestamp delta of the record at ``start``."""
    _, position = read_varint(payload, start)
    value, end = read_varlong(payload, position + 1)
    return position + 1, end, value
