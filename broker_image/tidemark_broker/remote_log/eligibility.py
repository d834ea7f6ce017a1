"""Which local segment is copied next (kafka-facts 2.2, steps 5 and 6). Pure.

A segment may be copied once it is closed and everything in it is stable: the *next* segment's base
offset decides, compared by ``<=`` with the last stable offset. The first candidate is the segment
that contains the offset where copying goes on, whole: after a leader change its boundaries may
differ from those of the copies, and the manifest trims the overlap.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.wire.control import TieringState
from tidemark_broker.log import SegmentInfo


class Blocked(enum.Enum):
    """Why there is nothing to copy now."""

    NOTHING_CLOSED = "every closed segment is in the tier"
    NOT_STABLE = "the next segment is not committed yet"
    HOLE = "the offsets that follow the tier's end are not in the local log"


@dataclass(frozen=True, slots=True)
class CopyLag:
    """Closed segments, and their bytes, that wait for being copied."""

    segments: int
    size_bytes: int


def may_copy(state: TieringState) -> bool:
    """New segments are copied while tiering is enabled and in no other state."""
    return state is TieringState.ENABLED


def next_segment(
    segments: Sequence[SegmentInfo],
    *,
    next_copy_offset: int,
    log_start_offset: int,
    last_stable_offset: int,
) -> SegmentInfo | Blocked:
    """The segment to copy now. ``segments`` oldest first, the last one active; ``next_copy_offset``
    is the head's. A log that begins behind that offset, without a record having been deleted, has
    a hole that no copy may hide."""
    candidate = _candidate(segments, next_copy_offset)
    if candidate is None:
        return Blocked.NOTHING_CLOSED
    if candidate.base_offset > max(next_copy_offset, log_start_offset):
        return Blocked.HOLE
    if candidate.next_base_offset > last_stable_offset:
        return Blocked.NOT_STABLE
    return candidate


def stable_from(segments: Sequence[SegmentInfo], next_copy_offset: int) -> int | None:
    """The last stable offset at which the next candidate may be copied; None: none is closed."""
    candidate = _candidate(segments, next_copy_offset)
    return None if candidate is None else candidate.next_base_offset


def lag(segments: Sequence[SegmentInfo], next_copy_offset: int) -> CopyLag:
    """What is closed and not in the tier yet."""
    late = [
        each for each in segments if not each.is_active and each.next_base_offset > next_copy_offset
    ]
    return CopyLag(len(late), sum(each.size_bytes for each in late))


def _candidate(segments: Sequence[SegmentInfo], next_copy_offset: int) -> SegmentInfo | None:
    for segment in segments:
        if segment.next_base_offset > next_copy_offset:
            empty = segment.next_base_offset == segment.base_offset
            return None if segment.is_active or empty else segment
    return None
