"""The first offset of a time or later, from the tier alone.

It is the offset that ListOffsets returns. The manifest names the segment, its time index a range of
it, and the batches in that range the record.
"""

from collections.abc import Iterator

from tidemark.records.batch import BatchHeader
from tidemark.records.decode import decode_records
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.reader import Snapshot
from tidemark.tier.segments.integrity import list_batches
from tidemark_pipeline.read.segment_window import (
    batches_in,
    first_offset_since,
    full_window,
    window_of,
)
from tidemark_pipeline.read.tier_access import ReadableTier

_READ_BYTES = 1024 * 1024


def find(tier: ReadableTier, snapshot: Snapshot, timestamp_ms: int) -> int | None:
    """Return the first offset in the tier with this timestamp or a later one, None without one.

    As with ListOffsets, the record is at or above the tier's first offset. Raises
    ``ObjectDamaged``, ``ObjectNotFound`` and ``CorruptBatch``.
    """
    first = snapshot.head.remote_log_start_offset
    if first is None:
        return None
    # The first segment whose largest timestamp is late enough.
    entry = snapshot.find_by_timestamp(timestamp_ms)
    end = snapshot.head.highest_remote_offset
    while entry is not None:
        offset = _find_in(tier, entry, max(first, entry.from_offset), timestamp_ms)
        if offset is not None:
            return offset
        # The segment's latest record may be below the log start, so the next segment is searched.
        first = entry.end_offset_inclusive + 1
        entry = snapshot.find(first) if first <= end else None
    return None


def _find_in(tier: ReadableTier, entry: SegmentEntry, first: int, timestamp_ms: int) -> int | None:
    if entry.max_timestamp_ms < timestamp_ms:
        return None
    for data, position, header in _batches_from(tier, entry, first, timestamp_ms):
        # A marker of a transaction is no record that a read could start at.
        if header.last_offset < first or header.max_timestamp < timestamp_ms or header.is_control:
            continue
        for record in decode_records(data[position : position + header.size_bytes]):
            if record.offset >= first and record.timestamp_ms >= timestamp_ms:
                return record.offset
    return None


def _batches_from(
    tier: ReadableTier, entry: SegmentEntry, first: int, timestamp_ms: int
) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Yield (data, position in data, header) of a segment's batches that may contain the time.

    ``first``: lowest offset of interest. The time index narrows the read.
    """
    # Without digests Tidemark's own segments are read whole, as a part could not be verified.
    window, aux = full_window(entry), None
    if tier.segments.reads_parts(entry):
        aux = tier.segments.fetch_aux(entry)
        begin = max(first, first_offset_since(entry, aux, timestamp_ms))
        window = window_of(entry, aux, begin, entry.end_offset_inclusive)
    # The pieces are small: usually the first of them contains the record.
    parts = (
        tier.segments.fetch(entry, begin, begin + _READ_BYTES, None if aux is None else aux.frames)
        for begin in range(window.begin, window.end, _READ_BYTES)
    )
    # Header by header, so that the caller stops the download at its record.
    for _, data, headers in batches_in(window, tier, entry, aux, parts, list_batches):
        for position, header in headers:
            yield data, position, header
