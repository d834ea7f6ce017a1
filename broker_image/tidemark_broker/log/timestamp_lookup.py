"""ListOffsets by time within one segment: time index, offset index, then one batch is looked into.

A client made that batch, and the header by which it was chosen: where the records do not bear the
header out the look-up goes on behind it. All that one look-up unpacks and passes has a limit;
beyond it, and where records cannot be read, the headers are believed, and what is found may begin
a little early, never late. So nothing that one client wrote keeps others from their look-ups.
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
    """The first record with an offset >= ``start_offset`` that is not older than ``timestamp_ms``.

    The segment must be loaded. None if it holds no such record. A batch that is passed counts as a
    record of ``limits``; where they end so does the look-up, at the batch that it has come to.
    """
    assert segment.descriptor is not None
    position = _position_for(segment, timestamp_ms, start_offset)
    for batch in walk_batches(segment.descriptor, position, segment.size_bytes):
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
    """What is looked for is not in front of this."""
    offset = max(batch.base_offset, start_offset)
    return TimestampOffset(offset, batch.max_timestamp, batch.leader_epoch)


def _position_for(segment: Segment, timestamp_ms: int, start_offset: int) -> int:
    """Where to begin walking; every record before it is older or lies below ``start_offset``."""
    try:
        # Entries strictly below: the offset of an equal one need not be the first of that time.
        indexed = segment.read_times().lookup(timestamp_ms - 1).offset
    except (IndexFormatError, OSError):
        indexed = segment.base_offset
    offset = max(indexed, start_offset, segment.base_offset)
    if offset >= segment.next_offset:  # an entry of what was appended since the segment was pinned
        return segment.size_bytes
    return segment.find(offset).position


def _first_in_batch(
    segment: Segment,
    batch: BatchAt,
    timestamp_ms: int,
    start_offset: int,
    limits: UnpackLimits,
) -> TimestampOffset | None:
    data = segment.bytes_of(batch.position, batch.end_position)
    header = parse_header(data)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return _begin_of(batch, start_offset)
    try:
        for offset, record_ms in decode_timestamps(data, limits):
            if offset >= start_offset and record_ms >= timestamp_ms:
                return TimestampOffset(offset, record_ms, batch.leader_epoch)
    except CorruptBatch:
        # The record is in here: who reads on from the batch's start will find it, or the reason.
        return _begin_of(batch, start_offset)
    return None
