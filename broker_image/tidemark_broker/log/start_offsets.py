"""Log start and local log start: rules for raising them and for persisting them.

No start ever rises above the high watermark (invariant 13), falls, or is shown to clients before it
is persisted. :class:`StartRecord` has the states of that process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tidemark_broker.log.bounds import Starts
from tidemark_broker.log.errors import OffsetOutOfRange
from tidemark_broker.log.partition_log import PartitionLog


def raise_log_start(log: PartitionLog, offset: int) -> bool:
    """Raise the log start offset at once; return whether it moved. It never falls.

    Segments below it are deleted at the next retention run. Raises :class:`OffsetOutOfRange` for an
    offset above the high watermark.
    """
    with log.lock:
        _check_committed(log, "log start", offset)
        if offset <= log.bounds.log_start:
            return False
        log.move_log_start(log.bounds.with_log_start(offset))
        return True


def announce_log_start(log: PartitionLog, offset: int) -> bool:
    """Schedule a log start, which takes effect once a checkpoint contains it. Return whether it
    is new.

    The delay ensures that no crash undoes a log start that clients have seen (invariant 2). The
    bounds of :func:`raise_log_start` apply.
    """
    with log.lock:
        _check_committed(log, "log start", offset)
        if offset <= log.start_record.target(log.bounds):
            return False
        log.start_record = replace(log.start_record, announced=offset)
        return True


def adopt_checkpointed_log_start(log: PartitionLog) -> bool:
    """Put an announced and checkpointed log start into effect.

    Return whether the log start moved.
    """
    with log.lock:
        adoptable = log.start_record.adoptable(log.bounds)
        moved = raise_log_start(log, adoptable)
        log.start_record = log.start_record.adopted(adoptable, log.bounds)
        return moved


def drop_remote_part(log: PartitionLog) -> bool:
    """Raise the log start offset to the local log start; return whether it moved.

    Records below were in the tier, which the topic no longer has.
    """
    with log.lock:
        if log.bounds.local_start == log.bounds.log_start:
            return False
        log.move_log_start(log.bounds.without_remote_part())
        return True


def _check_committed(log: PartitionLog, name: str, offset: int) -> None:
    if offset > log.bounds.high_watermark:
        raise OffsetOutOfRange(
            f"{name} {offset} is above the high watermark {log.bounds.high_watermark}"
        )


def starts_of(log: PartitionLog) -> Starts:
    """Return the log start and local log start to persist for a log.

    They are not below those recorded ahead of a removal in progress. No lock is taken: a bound that
    moves meanwhile is persisted the next time.
    """
    # During a truncation the log counts as truncated, during a removal as shortened.
    bounds, ahead, cut = log.checkpoint_bounds, log.pending_starts, log.pending_end
    record = log.start_record if cut is None else log.start_record.lowered(cut)
    log_start = record.recordable(bounds)
    local_start = max(bounds.local_start, log_start)
    if ahead is None:
        return Starts(log_start, local_start)
    return Starts(
        max(log_start, ahead.log_start_offset),
        max(local_start, ahead.local_log_start_offset or 0),
    )


def note_recorded_starts(log: PartitionLog, starts: Starts) -> None:
    """Note that ``starts``, or later ones, are durable in the checkpoint."""
    with log.lock:
        log.start_record = log.start_record.recorded(starts.log_start_offset, log.bounds)


@contextmanager
def recorded_before_removal(
    log: PartitionLog, starts: Starts | None = None, *, cut_to: int | None = None
) -> Iterator[None]:
    """Persist the effect of a removal before the block removes the files. Blocks.

    Otherwise a crash would leave removals that nothing explains, or trust bytes that were written
    later. ``starts``: log starts after the removal of segments at the start, None for none.
    ``cut_to``: log end after a truncation, None for none. Until the block ends, checkpoints by
    other threads write the same values. If the disk is full (:class:`StorageError`), nothing has
    changed.

    The caller holds ``shaping`` and not ``lock``. If the block fails and marks the log as failed,
    its files may be the old or the new ones. The values then stay in effect until the log is open
    again.
    """
    # Set first: a checkpoint by another thread must not write the former values in between.
    log.pending_starts, log.pending_end = starts, cut_to
    try:
        if starts is not None and log.record_starts is not None:
            log.record_starts(starts)
        # Bounds above the recovery point are not trusted after a crash anyway.
        if cut_to is not None and cut_to < log.bounds.recovery_point:
            log.checkpoint()
        yield
    finally:
        if log.failure is None:
            log.pending_starts = log.pending_end = None
