"""Which bytes of a segment have to be read for the offsets and times that are wanted.

Pure. The offset index and the time index that were copied with a segment tell; whole pieces are
read, since digests are of pieces.
"""

from dataclasses import dataclass

from tidemark.logfiles.offset_index import IndexFormatError, OffsetIndex
from tidemark.logfiles.time_index import TimeIndex
from tidemark.tier.auxiliary import Aux
from tidemark.tier.integrity import PIECE_BYTES
from tidemark.tier.segment import SegmentEntry


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes ``begin`` to ``end`` of a log are read; the first batch that matters stands at
    ``position``."""

    begin: int
    position: int
    end: int

    def is_whole(self, entry: SegmentEntry) -> bool:
        """Is that all of the segment?"""
        return self.position == 0 and self.end == entry.size_bytes


def whole(entry: SegmentEntry) -> Window:
    """All of a segment."""
    return Window(0, 0, entry.size_bytes)


def window_of(entry: SegmentEntry, aux: Aux, from_offset: int, to_offset_inclusive: int) -> Window:
    """What to read for these offsets, no less than their batches. All of it where the index is of
    no use, which costs only time: what is read is checked all the same."""
    if from_offset <= entry.start_offset and to_offset_inclusive >= entry.end_offset_inclusive:
        return whole(entry)
    try:
        index = OffsetIndex.from_bytes(entry.start_offset, aux.offset_index)
    except IndexFormatError:
        return whole(entry)
    position = index.position_for(from_offset)
    behind = index.position_behind(to_offset_inclusive)
    if behind is None or not 0 <= position < behind <= entry.size_bytes:
        behind = entry.size_bytes
    if not 0 <= position < behind:
        return whole(entry)
    begin = position - position % PIECE_BYTES
    end = min(entry.size_bytes, -(-behind // PIECE_BYTES) * PIECE_BYTES)
    return Window(begin, position, end)


def first_offset_since(entry: SegmentEntry, aux: Aux, timestamp_ms: int) -> int:
    """An offset below which no record of the segment is of this time or later."""
    try:
        index = TimeIndex.from_bytes(entry.start_offset, aux.time_index)
    except IndexFormatError:
        return entry.start_offset
    return index.lookup(timestamp_ms - 1).offset
