"""What makes a log durable: index entries go to their files, then all is fsynced.

Threads do both. The log's lock is held for what is in memory only, so that appends and reads go on
meanwhile; a roll leaves here what it need not do itself.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from tidemark.logfiles import names
from tidemark_broker.log.errors import StorageError
from tidemark_broker.log.files import sync_directory, sync_file
from tidemark_broker.log.log_state import LogState
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.types import SegmentFiles

logger = logging.getLogger(__name__)


def needs_flush(log: LogState) -> bool:
    """See :attr:`PartitionLog.needs_flush`."""
    bounds, segments = log.bounds, log.segments
    if log.failure is not None or log.closed:
        return False  # a failed log must be opened again first
    return (
        bounds.recovery_point < segments.active.base_offset
        or bool(segments.unfinished)
        or bounds.end - bounds.recovery_point >= log.config.flush_messages
    )


def flush(log: LogState, up_to_offset: int | None = None) -> int:
    """T: see :meth:`PartitionLog.flush`."""
    with log.shaping:
        with log.lock:
            log.check_usable()
            end, recovery_point = log.bounds.end, log.bounds.recovery_point
            target = end if up_to_offset is None else min(up_to_offset, end)
            if target <= recovery_point and not log.segments.unfinished:
                return recovery_point
        _save_indexes(log)
        with log.lock:
            truncations = log.truncations
            due = _due(log, target)
            reached = due[-1].next_offset if due else log.bounds.recovery_point
    _sync(log, due)
    log.save_epochs()
    with log.lock:
        if truncations == log.truncations:
            log.bounds = log.bounds.flushed(reached)
        return log.bounds.recovery_point


def close(log: LogState) -> None:
    """T: see :meth:`PartitionLog.close`."""
    if log.failure is not None:
        log.let_go()
        raise StorageError(log.failure)
    if log.closed:
        return
    try:
        with log.shaping:
            _save_indexes(log, closing=True)
            flush(log)
            log.save_epochs()
    finally:
        log.let_go()


def segment_files(log: LogState, base_offset: int) -> SegmentFiles:
    """T: see :meth:`PartitionLog.segment_files`."""
    with log.shaping:
        if log.segments.unfinished:
            _save_indexes(log)
        with log.lock:
            return log.segments.files_of(base_offset)


def _save_indexes(log: LogState, *, closing: bool = False) -> None:
    """T, holding ``shaping``: write what is not in the index files yet, and finish segments that
    were closed. ``closing``: the active one, too."""
    segments = log.segments
    with log.lock:
        log.check_usable()
        active = segments.active
        for segment in (*segments.unfinished, active):
            segment.cut_torn_tail()
        if closing:
            active.seal()
        unsaved = [(each, each.unsaved()) for each in (*segments.unfinished, active)]
        if closing and active.size_bytes and log.producers.tells_all:
            segments.snapshots.take(log.bounds.end, log.producers.snapshot())
    aborted = []
    for segment, entries in unsaved:
        closed = segment is not active
        segment.save(entries, whole=closed or closing)
        aborted.append((segment.aborted, segment.aborted.save()))
        if closed or closing:
            segments.snapshots.save(segment.next_offset)
    with log.lock:
        for index, count in aborted:
            index.saved(count)
        for segment, _ in unsaved[:-1]:
            segments.finished(segment)
    segments.trim()


def sync_segments(log: LogState, target: int) -> None:
    """T, holding ``shaping``: fsync all below ``target``, and nothing else."""
    with log.lock:
        due = _due(log, target)
    _sync(log, due)


def _due(log: LogState, target: int) -> list[Segment]:
    """What to sync so that all below ``target`` is durable. Of the active segment all that was
    appended before the sync began is; the list is empty where retention took all of it. The segment
    that ends at the recovery point is among them: it may have been cut there, and a cut that was
    not synced is undone by a power cut."""
    first = log.segments.number_of(log.bounds.recovery_point - 1)
    return [each for each in log.segments.items[first:] if each.base_offset < target]


def _sync(log: LogState, due: Sequence[Segment]) -> None:
    try:
        _sync_files(log.directory, due)
    except OSError as error:
        log.failure = (
            f"{log.directory} cannot be synced ({error.strerror}): bytes may be lost; the log "
            "takes nothing more until it was opened again"
        )
        logger.warning(log.failure)
        raise StorageError(log.failure) from error


def _sync_files(directory: Path, segments: Sequence[Segment]) -> None:
    for segment in segments:
        for path in (
            segment.log_path,
            segment.index_path,
            segment.time_index_path,
            segment.aborted.path,
            directory
            / names.segment_file_name(segment.next_offset, names.PRODUCER_SNAPSHOT_SUFFIX),
        ):
            try:
                sync_file(path)
            except FileNotFoundError:
                continue  # retention was quicker, or an empty segment has no indexes
    if segments:
        sync_directory(directory)
