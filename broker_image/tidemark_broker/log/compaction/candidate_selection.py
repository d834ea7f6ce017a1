"""How dirty a log is, which one is compacted next, and which segments become one (pure).

The rules of Kafka's ``LogCleanerManager`` and ``LogToClean``: never the active segment, nothing
that is not stable, nothing younger than ``min.compaction.lag.ms``; the dirtiest log first, where
its share of bytes that were never compacted is above ``min.cleanable.dirty.ratio``, or where a
record has waited for longer than ``max.compaction.lag.ms`` (KIP-354).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.configuration.values import INT32_MAX
from tidemark_broker.log.bounds import Bounds
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.types import SegmentInfo

#: How many segments become one at once: their files are renamed while the log waits.
GROUP_SEGMENTS_MAX = 100


class IndexedBytes(NamedTuple):
    """Of a new segment so far: its log, and the larger of its indexes."""

    log_bytes: int
    index_bytes: int


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


def goes_along(
    sources: Sequence[SegmentInfo],
    written: IndexedBytes,
    following: SegmentInfo,
    index_bytes: int,
    config: LogConfig,
) -> bool:
    """Whether ``following`` is written into the same new segment as ``sources``, of which
    ``written`` is left: neither that nor an index may outgrow its limit (its larger index has
    ``index_bytes`` now). What is left decides, where Kafka's ``groupSegmentsBySize`` goes by what
    was there: so nothing is left of many segments in one."""
    return (
        len(sources) < GROUP_SEGMENTS_MAX
        and written.log_bytes + following.size_bytes <= config.segment_bytes
        and written.index_bytes + index_bytes <= config.segment_index_bytes
        and following.next_base_offset - 1 - sources[0].base_offset <= INT32_MAX
    )
