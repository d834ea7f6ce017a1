"""The bytes of a segment that are read for the requested offsets and times.

This module does no I/O. The offset index and the time index that were copied with a segment give
the positions. Whole pieces are read, since digests cover pieces.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tidemark.logfiles.offset_index import IndexFormatError, OffsetIndex
from tidemark.logfiles.time_index import TimeIndex
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.integrity import PIECE_BYTES, Found, verified_batches
from tidemark_pipeline.read.tier_access import ReadableTier

#: Size of most batches: Kafka's ``max.message.bytes``.
_SPARE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes ``begin`` to ``end`` of a log are read; the first relevant batch starts at
    ``position``.
    """

    begin: int
    position: int
    end: int


def full_window(entry: SegmentEntry) -> Window:
    """Return the window of a whole segment."""
    return Window(0, 0, entry.size_bytes)


def window_of(entry: SegmentEntry, aux: Aux, from_offset: int, to_offset_inclusive: int) -> Window:
    """Return the bytes of a segment that contain all batches with these offsets.

    If the index is unusable, that is the whole segment. This costs only time, as everything that is
    read is checked.
    """
    if from_offset <= entry.start_offset and to_offset_inclusive >= entry.end_offset_inclusive:
        return full_window(entry)
    try:
        index = OffsetIndex.from_bytes(entry.start_offset, aux.offset_index)
    except IndexFormatError:
        return full_window(entry)
    position = index.position_for(from_offset)
    # Positions beyond the file mean a damaged index, which must not shorten the read.
    behind = index.position_behind(to_offset_inclusive)
    if behind is None or not 0 <= position < behind <= entry.size_bytes:
        behind = entry.size_bytes
    if not 0 <= position < behind:
        return full_window(entry)
    # A log without digests may have gaps: the batch behind shows that the requested ones ended.
    if entry.digests is None:
        behind += _SPARE_BYTES
    # Digests cover whole pieces, so both ends are rounded to pieces.
    begin = position - position % PIECE_BYTES
    end = min(entry.size_bytes, -(-behind // PIECE_BYTES) * PIECE_BYTES)
    return Window(begin, position, end)


def batches_in(
    window: Window,
    tier: ReadableTier,
    entry: SegmentEntry,
    aux: Aux | None,
    parts: Iterable[bytes],
    find: Callable[[bytes], tuple[Found, int]],
) -> Iterator[tuple[int, bytes, Found]]:
    """Yield the window's batches, as :func:`verified_batches`.

    ``parts``: its bytes. ``aux``: None without digests.
    """
    # Without digests the CRCs of batches are what shows damage.
    return verified_batches(
        entry,
        parts,
        () if aux is None else aux.pieces,
        tier.segments.describe(entry),
        find,
        begin=window.begin,
        position=window.position,
        end=window.end,
    )


def first_offset_since(entry: SegmentEntry, aux: Aux, timestamp_ms: int) -> int:
    """Return an offset below which no record of the segment has this time or a later one."""
    try:
        index = TimeIndex.from_bytes(entry.start_offset, aux.time_index)
    except IndexFormatError:
        return entry.start_offset
    # The entry before the time is the last one whose records are all too early.
    return index.lookup(timestamp_ms - 1).offset
