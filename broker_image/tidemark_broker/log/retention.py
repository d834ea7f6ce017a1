"""Local retention: the decision which segments to delete, and their deletion.

:func:`plan_retention` is Kafka's local retention as a pure decision. Deletion starts at the oldest
segment and stops at the first that must stay. A segment above the high watermark always stays. A
tiered log with copying enabled deletes a segment only if it is in the tier (or below the log
start), and moves the *local* log start. Any other log moves the log start itself. The active
segment of a tiered log is rolled once retention reaches it: only closed segments are copied, so
that of an idle partition would otherwise stay forever.

:func:`apply_retention` persists the new starts first, since otherwise a crash would leave a log
that seems to have lost its start. The epochs are saved too, which may be only in the deleted
batches. Then the offsets move, so that reads end at once. The files are deleted last.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemark_broker.log.bounds import Starts
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.files import remove_files
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.start_offsets import note_recorded_starts, recorded_before_removal
from tidemark_broker.log.types import SegmentInfo, TieredRetention


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionInput:
    """Snapshot of one log; ``segments`` oldest first, the last one is active."""

    segments: Sequence[SegmentInfo]
    config: LogConfig
    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    now_ms: int
    tiered: TieredRetention | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """Decision: delete the ``delete`` oldest segments. Offsets are None where nothing moves."""

    delete: int = 0
    #: The active segment qualifies: roll it (before the deletion, if every segment is deleted).
    roll_active: bool = False
    log_start_offset: int | None = None
    local_log_start_offset: int | None = None


_NOTHING = RetentionPlan()


def plan_retention(log: RetentionInput) -> RetentionPlan:
    """Decide which segments local retention deletes: by time, then by size, then by log start.

    Each rule continues at the segment where the one before stopped.
    """
    tiered = log.tiered
    # While suspended nothing may be deleted: the tier's content is not certain.
    if tiered is not None and tiered.suspended:
        return _NOTHING
    keeps_remote = tiered is not None and tiered.copy_enabled
    # ``count``: number of oldest segments to delete so far.
    by_time = _time_breached(log, keeps_remote=keeps_remote)
    count, active_by_time = _run_length(log, 0, by_time)
    by_size = _size_breached(log, count, keeps_remote=keeps_remote)
    count, active_by_size = _run_length(log, count, by_size)
    count, _ = _run_length(log, count, _start_breached(log, tiered=tiered is not None))
    roll = active_by_time or active_by_size
    # With a tier only the local log start moves. The active segment is rolled but stays until it is
    # copied.
    if keeps_remote:
        return _local_plan(log, min(count, len(log.segments) - 1), roll_active=roll)
    # Without a tier a deletion moves the log start offset itself.
    if not count:
        return _NOTHING
    new_start = _start_after(log, count)
    return RetentionPlan(
        delete=count, roll_active=roll, log_start_offset=max(new_start, log.log_start_offset)
    )


def _local_plan(log: RetentionInput, count: int, *, roll_active: bool) -> RetentionPlan:
    if not count:
        return RetentionPlan(roll_active=roll_active)
    new_start = _start_after(log, count)
    return RetentionPlan(
        delete=count,
        roll_active=roll_active,
        local_log_start_offset=max(new_start, log.local_log_start_offset),
    )


def _start_after(log: RetentionInput, count: int) -> int:
    """Return the log start after a deletion of ``count`` segments, which are all committed."""
    start = log.segments[count - 1].next_base_offset
    assert start <= log.high_watermark, (start, log.high_watermark)
    return start


Breach = Callable[[SegmentInfo], bool]


def _run_length(log: RetentionInput, already: int, breached: Breach) -> tuple[int, bool]:
    """Return the number of oldest segments to delete after applying ``breached``, and whether
    the active segment is breached after all before it.
    """
    count = already
    for segment in log.segments[already:]:
        if not (_is_committed(log, segment) and breached(segment)):
            break
        # Not in the tier yet: the segment stays, but an active one is rolled to be copied.
        if not _may_drop_local_copy(log, segment):
            return count, segment.is_active
        count += 1
    return count, count == len(log.segments)


def _is_committed(log: RetentionInput, segment: SegmentInfo) -> bool:
    end = segment.next_base_offset
    is_empty = segment.is_active and end == segment.base_offset
    return not is_empty and log.high_watermark >= end


def _may_drop_local_copy(log: RetentionInput, segment: SegmentInfo) -> bool:
    """Return whether the segment is in the tier, or need not be kept."""
    if log.tiered is None or not log.tiered.copy_enabled:
        return True
    end = segment.next_base_offset
    return end - 1 <= log.tiered.highest_remote_offset or log.log_start_offset >= end


def _time_breached(log: RetentionInput, *, keeps_remote: bool) -> Breach:
    """Return the rule whether a segment is older than ``retention.ms`` or ``local.retention.ms``.

    ``keeps_remote``: the tier keeps the records, so the local limit applies.
    """
    config = log.config
    limit_ms = config.effective_local_retention_ms if keeps_remote else config.retention_ms

    def breached(segment: SegmentInfo) -> bool:
        # Deleting the local copy of tiered records loses nothing, so the last append bounds their
        # age. By record timestamps alone (Kafka's rule), one record dated in the future would keep
        # everything before it on the disk.
        since_ms = segment.age_timestamp_ms
        if keeps_remote:
            since_ms = min(since_ms, segment.modified_ms)
        age_ms = log.now_ms - since_ms
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
    """Yield for each segment the log's excess over ``limit`` without it and those before it."""
    size = sum(segment.size_bytes for segment in segments)
    for segment in segments:
        size -= segment.size_bytes
        yield size - limit


def _start_breached(log: RetentionInput, *, tiered: bool) -> Breach:
    start = log.local_log_start_offset if tiered else log.log_start_offset

    def breached(segment: SegmentInfo) -> bool:
        return not segment.is_active and segment.next_base_offset <= start

    return breached


# -- deletion --------------------------------------------------------------------------------------

#: Segments of a log up to which the decision alone needs no thread.
_QUICK_SEGMENTS_MAX = 32


def may_be_due(log: PartitionLog, now_ms: int, *, tiered: TieredRetention | None) -> bool:
    """Return False if :func:`apply_retention` would do nothing now.

    Quick, so that the loop's thread may call it.
    """
    # A thread decides about a long log, so that the loop does not stall.
    if log.segment_count > _QUICK_SEGMENTS_MAX:
        return True
    with log.lock:
        return _plan(log, now_ms, tiered) != _NOTHING


def apply_retention(
    log: PartitionLog, now_ms: int, *, tiered: TieredRetention | None
) -> list[SegmentInfo]:
    """Delete the segments that :func:`plan_retention` selects; return them. Blocks.

    The files are removed after the locks are released.
    """
    renamed: list[Path] = []
    try:
        with log.shaping:
            with log.lock:
                log.check_usable()
                plan = _plan(log, now_ms, tiered)
                starts = _starts_after(log, plan)
                # Nothing to delete yet: roll, so that the closed segment can be copied.
                if plan.roll_active and not plan.delete:
                    log.start_segment(log.bounds.end, now_ms)
            if not plan.delete:
                return []
            # Persist the new log starts before anything is deleted: otherwise a crash would leave a
            # log whose first segments seem to be lost.
            with recorded_before_removal(log, starts):
                _save_epochs_below(log, starts)
                with log.lock:
                    log.check_usable()
                    if plan != _plan(log, now_ms, tiered):
                        return []  # the log changed meanwhile: the next run decides again
                    _move_starts(log, plan, now_ms)
                    note_recorded_starts(log, starts)
                return [_take_oldest(log, renamed) for _ in range(plan.delete)]
    finally:
        remove_files(renamed)


def _plan(log: PartitionLog, now_ms: int, tiered: TieredRetention | None) -> RetentionPlan:
    """Return what retention deletes from the log as it is now. The caller holds ``lock``."""
    return plan_retention(
        RetentionInput(
            segments=log.segments.infos(),
            config=log.config,
            log_start_offset=log.bounds.log_start,
            local_log_start_offset=log.bounds.local_start,
            high_watermark=log.bounds.high_watermark,
            now_ms=now_ms,
            tiered=tiered,
        )
    )


def _starts_after(log: PartitionLog, plan: RetentionPlan) -> Starts:
    log_start = max(log.start_record.target(log.bounds), plan.log_start_offset or 0)
    local_start = max(log.bounds.local_start, plan.local_log_start_offset or 0)
    return Starts(log_start, max(log_start, local_start))


def _save_epochs_below(log: PartitionLog, starts: Starts) -> None:
    """Save epochs that only deleted batches have: those of the tier's part, and that of the last
    record if none remains. Blocks.

    Nothing is written without need: retention must work when the disk is full.
    """
    start, local_start = starts.log_start_offset, starts.local_log_start_offset or 0
    if local_start >= log.bounds.end:
        start = min(start, local_start - 1)
    if not log.epoch_file.has_epochs_of(log.epochs, start, local_start):
        log.save_epochs()


def _move_starts(log: PartitionLog, plan: RetentionPlan, now_ms: int) -> None:
    if plan.roll_active:
        log.start_segment(log.bounds.end, now_ms)
    if plan.log_start_offset is not None:
        log.move_log_start(log.bounds.with_log_start(plan.log_start_offset))
    if plan.local_log_start_offset is not None:
        log.bounds = log.bounds.with_local_start(plan.local_log_start_offset)


def _take_oldest(log: PartitionLog, renamed: list[Path]) -> SegmentInfo:
    """Remove one segment at a time, so that a failed removal leaves no hole."""
    with log.lock:
        log.check_usable()
        info = log.segments.items[0].info(is_active=False)
        # Locally readable records stay (invariant 4), the segment of the log start too (15).
        assert info.next_base_offset <= log.bounds.local_start, (info, log.bounds)
        renamed += log.segments.take_oldest()
    return info
