"""Application of retention: deletes segments at the start of a log as ``log/retention.py`` decides.

The new starts are persisted first, since otherwise a crash would leave a log that seems to have
lost its start. The epochs are saved too, which may be only in the deleted batches. Then the offsets
move, so that reads end at once. The files are deleted last.
"""

from pathlib import Path

from tidemark_broker.log.files import remove_files
from tidemark_broker.log.log_starts import Starts
from tidemark_broker.log.log_state import LogState
from tidemark_broker.log.retention import RetentionInput, RetentionPlan, plan_retention
from tidemark_broker.log.start_offsets import recorded_ahead, starts_recorded
from tidemark_broker.log.types import SegmentInfo, TieredRetention


def apply_retention(
    log: LogState, now_ms: int, tiered: TieredRetention | None
) -> list[SegmentInfo]:
    """Delete the segments that :func:`plan_retention` selects; return them. Blocks.

    It implements :meth:`PartitionLog.apply_retention`. The files are removed after the locks are
    released.
    """
    renamed: list[Path] = []
    try:
        with log.shaping:
            return _retain(log, now_ms, tiered, renamed)
    finally:
        remove_files(renamed)


def _retain(
    log: LogState, now_ms: int, tiered: TieredRetention | None, renamed: list[Path]
) -> list[SegmentInfo]:
    """Delete the oldest segments as retention decides; return them.

    Their files are only renamed and added to ``renamed``, for the caller to delete. The caller
    holds ``shaping``.
    """
    with log.lock:
        log.check_usable()
        plan = _plan(log, now_ms, tiered)
        starts = _starts_after(log, plan)
        # Nothing to delete yet: roll, so that the closed segment can be copied.
        if plan.roll_active and not plan.delete:
            log.roll(log.bounds.end, now_ms)
    if not plan.delete:
        return []
    # Persist the new log starts before anything is deleted: otherwise a crash would leave a log
    # whose first segments seem to be lost.
    with recorded_ahead(log, starts):
        _save_epochs_below(log, starts)
        with log.lock:
            log.check_usable()
            if plan != _plan(log, now_ms, tiered):
                return []  # the log changed meanwhile: the next run decides again
            _move_starts(log, plan, now_ms)
            starts_recorded(log, starts)
        return [_take_oldest(log, renamed) for _ in range(plan.delete)]


def _plan(log: LogState, now_ms: int, tiered: TieredRetention | None) -> RetentionPlan:
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


def _starts_after(log: LogState, plan: RetentionPlan) -> Starts:
    log_start = max(log.start_record.target(log.bounds), plan.log_start_offset or 0)
    local_start = max(log.bounds.local_start, plan.local_log_start_offset or 0)
    return Starts(log_start, max(log_start, local_start))


def _save_epochs_below(log: LogState, starts: Starts) -> None:
    """Save epochs that only deleted batches have: those of the tier's part, and that of the last
    record if none remains. Blocks.

    Nothing is written without need: retention must work when the disk is full.
    """
    start, local_start = starts.log_start_offset, starts.local_log_start_offset or 0
    if local_start >= log.bounds.end:
        start = min(start, local_start - 1)
    if not log.epoch_file.has_epochs_of(log.epochs, start, local_start):
        log.save_epochs()


def _move_starts(log: LogState, plan: RetentionPlan, now_ms: int) -> None:
    if plan.roll_active:
        log.roll(log.bounds.end, now_ms)
    if plan.log_start_offset is not None:
        log.move_log_start(log.bounds.with_log_start(plan.log_start_offset))
    if plan.local_log_start_offset is not None:
        log.bounds = log.bounds.with_local_start(plan.local_log_start_offset)


def _take_oldest(log: LogState, renamed: list[Path]) -> SegmentInfo:
    """Remove one segment at a time, so that a failed removal leaves no hole."""
    with log.lock:
        log.check_usable()
        info = log.segments.items[0].info(is_active=False)
        # Locally readable records stay (invariant 4), the segment of the log start too (15).
        assert info.next_base_offset <= log.bounds.local_start, (info, log.bounds)
        renamed += log.segments.take_oldest()
    return info
