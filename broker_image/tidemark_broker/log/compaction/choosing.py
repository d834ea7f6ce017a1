"""How dirty a log is, which one is compacted next, and which segments become one (pure).

The rules of Kafka's ``LogCleanerManager`` and ``LogToClean``: never the active segment, nothing
that is not stable, nothing younger than ``min.compaction.lag.ms``; the dirtiest log first, where
its share of bytes that were never compacted is above ``min.cleanable.dirty.ratio``, or where a
record has waited for longer than ``max.compaction.lag.ms`` (KIP-354).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidemark.configuration.values import INT32_MAX
from tidemark_broker.log.bounds import Bounds
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.types import SegmentInfo

#: How many segments become one at once: their files are renamed while the log waits.
GROUP_SEGMENTS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """Of one log at one moment; [``first_dirty``, ``first_uncleanable``) can be compacted now, and
    the latter is where a segment begins."""

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    #: For how long a record has waited beyond ``max.compaction.lag.ms``; 0: none has.
    overdue_ms: int
    min_ratio: float

    @property
    def ratio(self) -> float:
        """The share of bytes that were never compacted, of those that can be."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is to be compacted now."""
        return self.cleanable_bytes > 0 and (self.overdue_ms > 0 or self.ratio > self.min_ratio)


def dirtiness(
    segments: Sequence[SegmentInfo],
    bounds: Bounds,
    config: LogConfig,
    *,
    first_dirty: int | None,
    last_stable_offset: int,
    now_ms: int,
) -> Dirtiness:
    """``segments`` oldest first, the last one active; ``first_dirty``: what was compacted ends
    there, None: nothing was. What was deleted since, or cut off, begins anew at the log start."""
    start = bounds.log_start if first_dirty is None else first_dirty
    if not bounds.log_start <= start <= bounds.end:
        start = bounds.log_start
    end = _first_uncleanable(segments, config, start, last_stable_offset, now_ms)
    dirty = [each for each in segments if start < each.next_base_offset and not each.is_active]
    return Dirtiness(
        first_dirty=start,
        first_uncleanable=max(start, end),
        clean_bytes=sum(each.size_bytes for each in segments if each.next_base_offset <= start),
        cleanable_bytes=sum(each.size_bytes for each in dirty if each.base_offset < end),
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
    youngest_ms = now_ms - config.min_compaction_lag_ms
    for segment in segments:
        if segment.next_base_offset <= start:
            continue
        too_young = config.min_compaction_lag_ms > 0 and segment.age_timestamp_ms > youngest_ms
        if segment.is_active or segment.next_base_offset > last_stable_offset or too_young:
            return segment.base_offset
    return start


def _overdue_ms(dirty: Iterable[SegmentInfo], config: LogConfig, now_ms: int) -> int:
    times = [each.first_timestamp_ms for each in dirty if each.first_timestamp_ms > 0]
    return max(0, now_ms - config.max_compaction_lag_ms - min(times)) if times else 0


def groups(
    segments: Sequence[SegmentInfo], index_bytes: Sequence[int], config: LogConfig
) -> Iterator[tuple[int, int]]:
    """(first, last exclusive) numbers of segments that are written as one, so that neither the
    segment nor an index outgrows its limit; ``index_bytes``: the larger index of each."""
    first, size, index = 0, 0, 0
    for number, segment in enumerate(segments):
        fits = (
            size + segment.size_bytes <= config.segment_bytes
            and index + index_bytes[number] <= config.segment_index_bytes
            and segment.next_base_offset - 1 - segments[first].base_offset <= INT32_MAX
            and number - first < GROUP_SEGMENTS_MAX
        )
        if number > first and not fits:
            yield first, number
            first, size, index = number, 0, 0
        size += segment.size_bytes
        index += index_bytes[number]
    if segments:
        yield first, len(segments)
