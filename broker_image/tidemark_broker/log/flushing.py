"""Flushing of a log: index entries are written to their files, then everything is fsynced.

Threads do both. They hold the log's lock only for state in memory, so that appends and reads
continue. A roll leaves its deferrable work to the flush.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.producer_snapshot import encode_snapshot, open_transactions
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark_broker.log import producer_snapshots
from tidemark_broker.log.errors import StorageError
from tidemark_broker.log.files import sync_directory, sync_file
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.producer_snapshots import TransactionEnds
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.types import SegmentFiles

logger = logging.getLogger(__name__)


def needs_flush(log: PartitionLog) -> bool:
    """Return whether a closed segment, or ``flush.messages`` records, are not durable yet."""
    bounds, segments = log.bounds, log.segments
    if log.failure is not None or log.closed:
        return False  # a failed log must be reopened first
    return (
        bounds.recovery_point < segments.active.base_offset
        or bool(segments.unfinished)
        or bounds.end - bounds.recovery_point >= log.config.flush_messages
    )


def flush(log: PartitionLog, up_to_offset: int | None = None) -> int:
    """Fsync everything below an offset and return the new recovery point. Blocks.

    ``up_to_offset`` None: the log end. A failed fsync may have lost pages permanently. The log then
    refuses appends until :func:`opening.reopen`, which checks every byte.
    """
    with log.shaping:
        with log.lock:
            log.check_usable()
            end, recovery_point = log.bounds.end, log.bounds.recovery_point
            target = end if up_to_offset is None else min(up_to_offset, end)
            # Everything is durable already.
            if target <= recovery_point and not log.segments.unfinished:
                return recovery_point
        # Index entries first: the fsync below then covers them too.
        _save_indexes(log)
        with log.lock:
            truncations = log.truncations
            due = _due(log, target)
            reached = due[-1].next_offset if due else log.bounds.recovery_point
    # Fsync without the lock, since appends on the loop wait for it.
    _sync(log, due)
    log.save_epochs()
    with log.lock:
        # A truncation may have removed synced records and replaced them since.
        if truncations == log.truncations:
            log.bounds = log.bounds.flushed(reached)
        return log.bounds.recovery_point


def close(log: PartitionLog) -> None:
    """Flush everything and close the log's files. Blocks. A closed log refuses everything else.

    Raises :class:`StorageError` for a log whose disk failed: its data is in doubt, so the shutdown
    is not clean.
    """
    # A failed log is closed without a flush: another fsync would hide the lost pages.
    if log.failure is not None:
        log.close_files()
        raise StorageError(log.failure)
    if log.closed:
        return
    try:
        with log.shaping:
            _save_indexes(log, closing=True)
            flush(log)
            log.save_epochs()
    finally:
        log.close_files()


def sync_below_announced(log: PartitionLog) -> None:
    """Fsync everything below an announced log start, so that it may be persisted. Blocks.

    Otherwise a crash could leave a log that ends below its log start. Indexes and checkpoints are
    left to :func:`flush`, because they need disk space, which a deletion is to free.
    """
    if log.start_record.target(log.bounds) <= log.start_record.recordable(log.bounds):
        return
    with log.shaping:
        with log.lock:
            log.check_usable()
            target, truncations = log.start_record.target(log.bounds), log.truncations
        if target > log.bounds.recovery_point:
            with log.lock:
                due = _due(log, target)
            _sync(log, due)
        # After a truncation the synced bytes may be other records.
        with log.lock:
            if truncations == log.truncations:
                log.start_record = log.start_record.synced(target)


def segment_files(log: PartitionLog, base_offset: int) -> SegmentFiles:
    """Return the parts of a closed segment that are copied to the tier. Blocks.

    The caller flushes up to its end first. Raises :class:`OffsetOutOfRange` if no closed segment
    starts at ``base_offset``.
    """
    # While it is held, no segment is removed or replaced.
    with log.shaping:
        with log.lock:
            segment = log.segments.closed_at(base_offset)
        return SegmentFiles(
            log=segment.log_path,
            producer_snapshot=_snapshot_at(log, segment.next_offset),
            open_before=open_transactions(_snapshot_at(log, base_offset)),
            size_bytes=segment.size_bytes,
        )


def aborted_behind(
    log: PartitionLog, ends: TransactionEnds, files: SegmentFiles, offset: int
) -> tuple[AbortedTxn, ...]:
    """Return the aborted transactions that are open at the end of a closed segment. Blocks.

    ``offset``: behind the segment. ``ends``: what the copies before it have read. The segment ends
    below the last stable offset, so all of its transactions have ended.
    """
    open_at_end = open_transactions(files.producer_snapshot)
    left = ends.left(open_at_end, offset)
    while left and (segment := _pinned_behind(log, ends.read_to)) is not None:
        # Without ``shaping``, for which flushes, retention and truncations wait.
        ends.read(segment, left)
    return ends.aborted(open_at_end)


def _pinned_behind(log: PartitionLog, offset: int) -> Segment | None:
    """Return the first segment that ends behind ``offset``, None if there is none. Blocks.

    Its file is open, and so stays readable if it is removed.
    """
    with log.shaping:
        with log.lock:
            segments = log.segments
            later = segments.items[segments.number_of(offset) :]
            found = next((item for item in later if item.next_offset > offset), None)
            segment = None if found is None else found.pinned()
        if segment is not None:
            segment.open_file()
    return segment


def _snapshot_at(log: PartitionLog, offset: int) -> bytes:
    """Return the producers at the start of a segment. Blocks. The caller holds ``shaping``."""
    snapshots = log.segments.snapshots
    found = snapshots.at(offset)
    if found is not None:
        return found
    with log.lock:
        before = [item.pinned() for item in log.segments.items if item.next_offset <= offset]
    # A new log starts without producers.
    if not before:
        return encode_snapshot()
    # With an empty one instead, a replica that starts from the copy would know no producer.
    logger.warning("%s is missing or damaged: it is replayed", snapshots.path(offset))
    found = producer_snapshots.replayed(snapshots, before)
    # Later copies would repeat the replay without the file. A full disk must not prevent a copy.
    with suppress(StorageError):
        snapshots.put(offset, found)
    return found


def _save_indexes(log: PartitionLog, *, closing: bool = False) -> None:
    """Write index entries, aborted transactions and producer snapshots that are only in memory.

    Closed segments are finished by it. With ``closing`` the active segment is treated like a closed
    one. Blocks. The caller holds ``shaping``.
    """
    segments = log.segments
    with log.lock:
        log.check_usable()
        active = segments.active
        # A failed append may have left bytes after the last batch.
        for segment in (*segments.unfinished, active):
            segment.cut_failed_append()
        if closing:
            active.seal()
        unsaved = [(item, item.unsaved()) for item in (*segments.unfinished, active)]
        if closing and active.size_bytes and log.producers.is_complete:
            segments.snapshots.take(log.bounds.end, log.producers.snapshot())
    # Write outside the lock: appends continue during the I/O.
    aborted = []
    for segment, entries in unsaved:
        closed = segment is not active
        segment.save(entries, is_final=closed or closing)
        aborted.append((segment.aborted, segment.aborted.save()))
        if closed or closing:
            segments.snapshots.save(segment.next_offset)
    # Mark entries as saved only now; new ones may have been added meanwhile.
    with log.lock:
        for index, count in aborted:
            index.saved(count)
        for segment, _ in unsaved[:-1]:
            segments.finished(segment)
    segments.trim()


def _due(log: PartitionLog, target: int) -> list[Segment]:
    """Return the segments to sync so that everything below ``target`` is durable.

    The active segment is synced up to its end before the sync began. The list is empty if retention
    removed all of them. The segment that ends at the recovery point is included: it may have been
    cut there, and a power failure undoes a cut that was not synced.
    """
    first = log.segments.number_of(log.bounds.recovery_point - 1)
    return [item for item in log.segments.items[first:] if item.base_offset < target]


def _sync(log: PartitionLog, due: Sequence[Segment]) -> None:
    try:
        _sync_files(log.directory, due)
    # The kernel reports a lost write once and then drops the pages: never retry an fsync.
    except OSError as error:
        log.failure = (
            f"{log.directory} cannot be synced ({error.strerror}): bytes may be lost; the log "
            "takes nothing more until it was opened again"
        )
        logger.warning(log.failure)
        raise StorageError(log.failure) from error


def _sync_files(directory: Path, segments: Sequence[Segment]) -> None:
    """Fsync the segments' log, index and snapshot files, and the directory. Raises ``OSError``."""
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
                continue  # retention removed it, or an empty segment has no indexes
    if segments:
        sync_directory(directory)
