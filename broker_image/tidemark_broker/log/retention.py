"""Which local segments may go: the rules of Kafka's local retention, as a pure decision.

Always oldest first, stopping at the first that must stay; never a segment whose end the high
watermark has not reached. A tiered log with copying enabled lets a segment go only when it is in
the tier (or already below the log start), and moves the *local* log start; any other log moves the
log start itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.types import SegmentInfo, TieredRetention


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionInput:
    """One log at one moment; ``segments`` oldest first, the last one is active."""

    segments: Sequence[SegmentInfo]
    config: LogConfig
    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    now_ms: int
    tiered: TieredRetention | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """The ``delete`` oldest segments go. Offsets are None where nothing moves."""

    delete: int = 0
    #: The active segment qualifies: begin a new one (first, if every segment goes).
    roll_active: bool = False
    log_start_offset: int | None = None
    local_log_start_offset: int | None = None


_NOTHING = RetentionPlan()


def plan_retention(log: RetentionInput) -> RetentionPlan:
    """Decide; time, then size, then log start, each going on where the one before stopped."""
    tiered = log.tiered
    if tiered is not None and tiered.suspended:
        return _NOTHING
    keeps_remote = tiered is not None and tiered.copy_enabled
    goes = _run_length(log, 0, _time_breached(log, keeps_remote=keeps_remote))
    goes = _run_length(log, goes, _size_breached(log, goes, keeps_remote=keeps_remote))
    goes = _run_length(log, goes, _start_breached(log, tiered=tiered is not None))
    if not goes:
        return _NOTHING
    all_go = goes == len(log.segments)
    if all_go and keeps_remote:
        goes -= 1
    if not goes:
        return RetentionPlan(roll_active=True)
    new_start = log.segments[goes - 1].next_base_offset
    if keeps_remote:
        return RetentionPlan(
            delete=goes,
            roll_active=all_go,
            local_log_start_offset=max(new_start, log.local_log_start_offset),
        )
    return RetentionPlan(
        delete=goes, roll_active=all_go, log_start_offset=max(new_start, log.log_start_offset)
    )


Breach = Callable[[SegmentInfo], bool]


def _run_length(log: RetentionInput, already: int, breached: Breach) -> int:
    """How many of the oldest segments go once ``breached`` was asked too."""
    count = already
    for segment in log.segments[already:]:
        if not (_may_go(log, segment) and breached(segment)):
            break
        count += 1
    return count


def _may_go(log: RetentionInput, segment: SegmentInfo) -> bool:
    end = segment.next_base_offset
    if segment.is_active and end == segment.base_offset:
        return False
    if log.high_watermark < end:
        return False
    if log.tiered is None or not log.tiered.copy_enabled:
        return True
    return end - 1 <= log.tiered.highest_remote_offset or log.log_start_offset >= end


def _time_breached(log: RetentionInput, *, keeps_remote: bool) -> Breach:
    config = log.config
    limit_ms = config.effective_local_retention_ms if keeps_remote else config.retention_ms

    def breached(segment: SegmentInfo) -> bool:
        age_ms = log.now_ms - segment.age_timestamp_ms
        return config.deletes and limit_ms >= 0 and age_ms > limit_ms

    return breached


def _size_breached(log: RetentionInput, already: int, *, keeps_remote: bool) -> Breach:
    config = log.config
    limit = config.effective_local_retention_bytes if keeps_remote else config.retention_bytes
    excess = _excesses(log.segments[already:], limit)

    def breached(segment: SegmentInfo) -> bool:
        return config.deletes and limit >= 0 and next(excess) >= 0

    return breached


def _excesses(segments: Sequence[SegmentInfo], limit: int) -> Iterator[int]:
    """For each segment: by how much the log stays above ``limit`` without it and the ones before."""
    size = sum(segment.size_bytes for segment in segments)
    for segment in segments:
        size -= segment.size_bytes
        yield size - limit


def _start_breached(log: RetentionInput, *, tiered: bool) -> Breach:
    start = log.local_log_start_offset if tiered else log.log_start_offset

    def breached(segment: SegmentInfo) -> bool:
        return not segment.is_active and segment.next_base_offset <= start

    return breached
