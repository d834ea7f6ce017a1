"""Selection of the local segment to copy next. Pure.

A segment may be copied once it is closed and everything in it is stable: the *next* segment's base
offset must not be above the last stable offset. A topic may delay the copy further (KIP-1241). The
first candidate is the whole segment that contains the next offset to copy. After a leader change
its boundaries may differ from those of the copies; the manifest trims the overlap. Segments are in
order, so bisection finds the candidate: a copy costs the same in a log of ten segments and of ten
thousand.
"""

import enum
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark_broker.log import SegmentInfo
from tidemark_broker.replication.remote import WaitingRecords


class Blocked(enum.Enum):
    """Reason why there is nothing to copy now."""

    NOTHING_CLOSED = "every closed segment is in the tier"
    NOT_STABLE = "the next segment is not committed yet"
    DELAYED = "the topic delays the copy of the next segment (remote.copy.lag.ms and .bytes)"
    HOLE = "the offsets that follow the tier's end are not in the local log"


@dataclass(frozen=True, slots=True)
class CopyLag:
    """Closed segments that wait to be copied, and their bytes."""

    segments: int
    size_bytes: int


def next_segment(
    segments: Sequence[SegmentInfo],
    *,
    next_copy_offset: int,
    log_start_offset: int,
    last_stable_offset: int,
) -> SegmentInfo | Blocked:
    """Return the closed local segment to copy next, or the reason why there is none.

    ``segments``: oldest first, the last one active. ``next_copy_offset``: offset after the tier's
    last one. If the log starts above that offset although no record was deleted, the result is
    ``Blocked.HOLE``: a copy would leave a gap in the tier.
    """
    candidate = _candidate(segments, next_copy_offset)
    if candidate is None:
        return Blocked.NOTHING_CLOSED
    # The gap was neither copied nor deleted.
    if candidate.base_offset > max(next_copy_offset, log_start_offset):
        return Blocked.HOLE
    # Only committed records without an open transaction are copied, as in Kafka.
    if candidate.next_base_offset > last_stable_offset:
        return Blocked.NOT_STABLE
    return candidate


def stable_from(segments: Sequence[SegmentInfo], next_copy_offset: int) -> int | None:
    """Return the last stable offset that permits copying the next candidate; None if none is
    closed.
    """
    candidate = _candidate(segments, next_copy_offset)
    return None if candidate is None else candidate.next_base_offset


def copy_delay_ms(
    segments: Sequence[SegmentInfo],
    next_copy_offset: int,
    *,
    lag_ms: int,
    lag_bytes: int,
    now_ms: int,
) -> int | None:
    """Return the time (ms) until the copy of the next candidate is permitted, 0 for now.

    KIP-1241 permits it once the newest record is ``lag_ms`` old, or once ``lag_bytes`` were written
    after the segment; -1 is no such limit. None: only more records permit it. ``segments``: from
    the candidate to the active one.
    """
    candidate = _candidate(segments, next_copy_offset)
    if candidate is None:
        return 0
    newer = segments[first_ending_behind(segments, candidate.next_base_offset) :]
    if lag_bytes >= 0 and sum(item.size_bytes for item in newer) >= lag_bytes:
        return 0
    if lag_ms < 0:
        return None
    age_ms = now_ms - candidate.age_timestamp_ms
    # A timestamp in the future says nothing about the age. As in Kafka it delays nothing.
    return 0 if age_ms < 0 else max(0, lag_ms - age_ms)


def lag(segments: Sequence[SegmentInfo], next_copy_offset: int) -> CopyLag:
    """Return the closed segments that are not in the tier yet."""
    first = first_ending_behind(segments, next_copy_offset)
    late = [segments[at] for at in range(first, len(segments)) if not segments[at].is_active]
    return CopyLag(len(late), sum(item.size_bytes for item in late))


def waiting(
    segments: Sequence[SegmentInfo], *, first_offset: int, high_watermark: int
) -> WaitingRecords | None:
    """Return the committed records from ``first_offset`` on, which is the first that is neither
    deleted nor in the tier; None if there are none.
    """
    late = segments[first_ending_behind(segments, first_offset) :]
    if high_watermark <= first_offset or not late:
        return None
    oldest = late[0]
    # The records are missing in this log, for example because an older head was brought back.
    if oldest.next_base_offset == oldest.base_offset:
        return None
    # A segment's first append is not later than that of any of its records.
    return WaitingRecords(
        since_ms=oldest.modified_ms if oldest.first_append_ms < 0 else oldest.first_append_ms,
        is_since_known=oldest.first_append_ms >= 0,
        size_bytes=sum(item.size_bytes for item in late),
    )


def first_ending_behind(segments: Sequence[SegmentInfo], offset: int) -> int:
    """Return the index of the first segment that contains ``offset`` or starts after it;
    ``len(segments)`` for none.
    """
    return bisect_right(segments, offset, key=lambda segment: segment.next_base_offset)


def _candidate(segments: Sequence[SegmentInfo], next_copy_offset: int) -> SegmentInfo | None:
    first = first_ending_behind(segments, next_copy_offset)
    if first == len(segments):
        return None
    segment = segments[first]
    # An empty segment has nothing to copy.
    empty = segment.next_base_offset == segment.base_offset
    return None if segment.is_active or empty else segment
