"""ListOffsets by time within one segment: time index, offset index, then one batch is decoded.

A client wrote that batch and the header by which it was selected. If the records do not match the
header, the look-up continues after it. There is a limit on what one look-up unpacks and skips.
Beyond it, and for unreadable records, the headers are trusted, and the result may be a little too
early but never too late. So no client's data prevents the look-ups of others.
"""

from tidemark.logfiles.offset_index import IndexFormatError
from tidemark.records.batch import CorruptBatch, TimestampType, parse_header
from tidemark.records.decode import UnpackLimits, decode_timestamps
from tidemark_broker.log.batch_walk import BatchAt, walk_batches
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.types import TimestampOffset


def first_at_or_after(
    segment: Segment, timestamp_ms: int, start_offset: int, limits: UnpackLimits
) -> TimestampOffset | None:
    """Return a segment's first record from ``start_offset`` at or after a time, or None.

    The segment must be loaded. ``limits`` bounds the work; each batch that is passed counts as a
    record. When it is exhausted, the result is the start of the batch reached so far, which is not
    after the requested record.
    """
    assert segment.descriptor is not None
    position = _position_for(segment, timestamp_ms, start_offset)
    for batch in walk_batches(segment.descriptor, position, segment.size_bytes):
        # Headers come from clients: a walk without a limit could be made arbitrarily long.
        limits.records_left -= 1
        if limits.records_left < 0:
            return _begin_of(batch, start_offset)
        if batch.max_timestamp < timestamp_ms or batch.last_offset < start_offset:
            continue
        found = _first_in_batch(segment, batch, timestamp_ms, start_offset, limits)
        if found is not None:
            return found
    return None


def _begin_of(batch: BatchAt, start_offset: int) -> TimestampOffset:
    """Return the start of a batch: the requested record is not before it."""
    offset = max(batch.base_offset, start_offset)
    return TimestampOffset(offset, batch.max_timestamp, batch.leader_epoch)


def _position_for(segment: Segment, timestamp_ms: int, start_offset: int) -> int:
    """Return the position to walk from; every record before it is older or below
    ``start_offset``.
    """
    try:
        # Entries strictly below: the offset of an equal one need not be the first of that time.
        indexed = segment.read_times().lookup(timestamp_ms - 1).offset
    except (IndexFormatError, OSError):
        indexed = segment.base_offset
    offset = max(indexed, start_offset, segment.base_offset)
    # An entry of records that were appended since the segment was pinned.
    if offset >= segment.next_offset:
        return segment.size_bytes
    return segment.find(offset).position


def _first_in_batch(
    segment: Segment,
    batch: BatchAt,
    timestamp_ms: int,
    start_offset: int,
    limits: UnpackLimits,
) -> TimestampOffset | None:
    """Return the batch's first record from ``start_offset`` at or after a time, or None.

    If the records cannot be unpacked, the result is the start of the batch.
    """
    data = segment.bytes_of(batch.position, batch.end_position)
    header = parse_header(data)
    # LogAppendTime gives all records of the batch the header's timestamp.
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return _begin_of(batch, start_offset)
    try:
        for offset, record_ms in decode_timestamps(data, limits):
            if offset >= start_offset and record_ms >= timestamp_ms:
                return TimestampOffset(offset, record_ms, batch.leader_epoch)
    except CorruptBatch:
        # The record is in this batch: a read from the batch's start returns it, or the error.
        return _begin_of(batch, start_offset)
    return None
