"""Dirtiness of a log, the order of compaction, and the grouping of segments (pure).

The rules are those of Kafka's ``LogCleanerManager`` and ``LogToClean``. The active segment,
unstable records, and records younger than ``min.compaction.lag.ms`` are never compacted. The
dirtiest log is first. A log is due if its share of bytes that were never compacted is above
``min.cleanable.dirty.ratio``, or if a record has waited longer than ``max.compaction.lag.ms``
(KIP-354).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.configuration.values import INT32_MAX
from tidemark_broker.log.bounds import LogBounds
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.types import SegmentInfo

#: Segments that are merged at once at most, because the log is locked while they are renamed.
GROUP_SEGMENTS_MAX = 100


class IndexedBytes(NamedTuple):
    """Bytes of an unfinished segment: its log, and the larger of its indexes."""

    log_bytes: int
    index_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """Dirtiness of one log at one moment.

    [``first_dirty``, ``first_uncleanable``) can be compacted now; the latter is a segment's base.
    """

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    #: Time that a record has waited beyond ``max.compaction.lag.ms``; 0: none has.
    overdue_ms: int
    min_ratio: float

    @property
    def ratio(self) -> float:
        """Share of bytes that were never compacted, of those that can be."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether the log is to be compacted now."""
        return self.cleanable_bytes > 0 and (self.overdue_ms > 0 or self.ratio > self.min_ratio)


def dirtiness(
    segments: Sequence[SegmentInfo],
    bounds: LogBounds,
    config: LogConfig,
    *,
    first_dirty: int | None,
    last_stable_offset: int,
    now_ms: int,
) -> Dirtiness:
    """Return how much of a log can be compacted now, and how urgent that is.

    ``segments``: oldest first, the last one active. ``first_dirty``: first offset that was never
    compacted, None if nothing was. If that is below the log start or above the end, everything
    counts as dirty.
    """
    # A deletion or truncation moved the log past the checkpointed offset.
    start = bounds.log_start if first_dirty is None else first_dirty
    if not bounds.log_start <= start <= bounds.end:
        start = bounds.log_start
    end = _first_uncleanable(segments, config, start, last_stable_offset, now_ms)
    # Closed segments with records that were never compacted, including those too young for now.
    dirty = [
        segment
        for segment in segments
        if start < segment.next_base_offset and not segment.is_active
    ]
    return Dirtiness(
        first_dirty=start,
        first_uncleanable=max(start, end),
        clean_bytes=sum(
            segment.size_bytes for segment in segments if segment.next_base_offset <= start
        ),
        cleanable_bytes=sum(item.size_bytes for item in dirty if item.base_offset < end),
        overdue_ms=_overdue_ms(dirty, config, now_ms),
        min_ratio=config.min_cleanable_dirty_ratio,
    )


def _first_uncleanable(
    segments: Sequence[SegmentInfo],
    config: LogConfig,
    start: int,
    last_stable_offset: int,
    now_ms: int,
) -> int:
    """Return the base offset of the first segment after ``start`` that cannot be compacted yet.

    That is the active segment, one with unstable records, or one whose records are younger than
    ``min.compaction.lag.ms``. ``start`` is returned if there is no segment after it.
    """
    youngest_ms = now_ms - config.min_compaction_lag_ms
    for segment in segments:
        if segment.next_base_offset <= start:
            continue
        # Stops at the first such segment, so that offsets are compacted in order.
        too_young = config.min_compaction_lag_ms > 0 and segment.age_timestamp_ms > youngest_ms
        if segment.is_active or segment.next_base_offset > last_stable_offset or too_young:
            return segment.base_offset
    return start


def _overdue_ms(dirty: Iterable[SegmentInfo], config: LogConfig, now_ms: int) -> int:
    times = [item.first_timestamp_ms for item in dirty if item.first_timestamp_ms > 0]
    return max(0, now_ms - config.max_compaction_lag_ms - min(times)) if times else 0


def fits_into_group(
    sources: Sequence[SegmentInfo],
    written: IndexedBytes,
    following: SegmentInfo,
    index_bytes: int,
    config: LogConfig,
) -> bool:
    """Return whether ``following`` may be merged into the new segment made from ``sources``.

    ``written``: bytes written for the sources so far. ``index_bytes``: size of the larger index of
    ``following``. Neither the log nor an index may exceed its limit. The size after compaction
    counts, where Kafka's ``groupSegmentsBySize`` uses the size before, so nearly empty segments
    merge into one.
    """
    # The last condition: index entries have 32 bits for an offset relative to the base offset.
    return (
        len(sources) < GROUP_SEGMENTS_MAX
        and written.log_bytes + following.size_bytes <= config.segment_bytes
        and written.index_bytes + index_bytes <= config.segment_index_bytes
        and following.next_base_offset - 1 - sources[0].base_offset <= INT32_MAX
    )
