"""Checkpoint files shared by all logs of a directory: recovery points, high watermarks, log starts.

Each file stores one offset for each log and is written as a whole, so that a crash leaves the old
or the new one. Threads that request a write at the same moment share one write. Entries of a log
that could not be opened are preserved. Entries of a deleted log are removed, so that they do not
bound a new log of its name.

Log starts are persisted before any file below them is deleted. There are two offsets for each log:
its log start, and its local log start, below which segments may be missing (they are in the tier,
or deleted). A log whose first segment is above the persisted local start has lost records that
nothing deleted. Both are in checkpoint files, which are rewritten from time to time. Changes in
between are lines of a journal. So a raised start costs the same however many logs there are, and
starts that are raised together share one fsync.

A line has the complete state of one log, so all lines may be replayed over a newer checkpoint, but
no subset of them: the first one is erased before the others. The journal's space is reserved from
the start, because retention must work when the disk is full.
"""

import contextlib
import logging
import os
import zlib
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import (
    CheckpointFormatError,
    TopicPartition,
    read_offsets,
    write_offsets,
)
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.log.bounds import LogBounds, StartRecord, Starts
from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import (
    SharedWork,
    opened,
    replace_file,
    sync_directory,
    write_at,
)
from tidemark_broker.log.flushing import sync_below_announced
from tidemark_broker.log.open_logs import OpenLogs
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.start_offsets import note_recorded_starts, starts_of

logger = logging.getLogger(__name__)


class OffsetCheckpoint:
    """One offset checkpoint file and its content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offsets: dict[TopicPartition, int] = {}

    def load(self) -> None:
        """Read the file. Blocks.

        An incomplete file raises :class:`StorageError`: it was written as a whole, so something
        else has changed the disk.
        """
        with storage_errors(f"{self._path} cannot be read"):
            text = self._path.read_text() if self._path.exists() else ""
        try:
            self.offsets = read_offsets(text)
        except CheckpointFormatError as error:
            raise StorageError(f"{self._path} cannot be read: {error}") from error

    @property
    def exists(self) -> bool:
        """Whether the file exists (a short blocking call)."""
        return self._path.exists()

    def save(
        self, offsets: dict[TopicPartition, int], kept: Collection[TopicPartition] = ()
    ) -> None:
        """Replace the file, unless it is unchanged. Blocks. The offsets of ``kept`` are
        preserved."""
        merged = {key: self.offsets[key] for key in kept if key in self.offsets} | offsets
        if merged == self.offsets and self._path.exists():
            return
        replace_file(self._path, write_offsets(merged).encode())
        self.offsets = merged


LOCAL_LOG_START_CHECKPOINT = "local-log-start-offset-checkpoint"
JOURNAL = "log-start-offset-journal"
JOURNAL_BYTES = 64 * 1024
#: Mark after the last line, so that the remains of a partial write are not read after the next one.
_END = b"\0"


class LogStarts:
    """Persisted starts of all logs. Methods that block may be called by any thread."""

    def __init__(self, directory: Path) -> None:
        """Create it without content; :meth:`load` reads the files."""
        self._log_starts = OffsetCheckpoint(directory / names.LOG_START_CHECKPOINT)
        self._local_starts = OffsetCheckpoint(directory / LOCAL_LOG_START_CHECKPOINT)
        self._journal = directory / JOURNAL
        #: End of the valid lines in the journal.
        self._used_bytes = 0
        #: End of former lines, which must be erased before another line is written.
        self._stale_end = 0
        #: Whether the journal's name is known to survive a power failure.
        self._is_named = False
        self._lock = ordered_lock(LockRank.LOG_STARTS)
        #: Persisted starts, from the checkpoints and the journal.
        self.recorded: dict[TopicPartition, Starts] = {}
        #: Logs whose last line could not be written, though the disk may have it. Their next record
        #: is written even if it equals ``recorded``.
        self._in_doubt: set[TopicPartition] = set()
        #: Number of changes that were persisted.
        self.changes = 0
        #: Whether a log without an entry starts at 0, because it was created so.
        self._complete = False

    def load(self) -> None:
        """Read the persisted starts from the checkpoints and the journal. Blocks.

        The journal's disk space is reserved, if there is any.
        """
        # Reserve now: retention must be able to persist new starts when the disk is full.
        try:
            self._write_journal(b"", 0)
        except StorageError as error:
            logger.warning("%s (it grows as it is written)", error)
        self._complete = self._local_starts.exists
        # The checkpoint first, then the journal's newer lines on top.
        self._log_starts.load()
        self._local_starts.load()
        for key, offset in self._log_starts.offsets.items():
            self.recorded[key] = Starts(offset, self._local_starts.offsets.get(key))
        with storage_errors(f"{self._journal} cannot be read"):
            data = self._journal.read_bytes() if self._journal.exists() else b""
        for line in data.split(b"\n")[:-1]:
            change = _parse_journal_line(line)
            if change is None:  # an incomplete line, or the end mark
                break
            self.recorded[change[0]] = change[1]
            self._used_bytes += len(line) + 1
        # Bytes after the last valid line are the remains of a partial write.
        self._stale_end = len(data.rstrip(b"\0"))

    def of(self, key: TopicPartition) -> Starts | None:
        """Return the persisted starts of a log, or None if they are unknown."""
        return self.recorded.get(key) or (Starts(0, 0) if self._complete else None)

    @property
    def exists(self) -> bool:
        """Whether both files exist. Blocks."""
        return self._log_starts.exists and self._local_starts.exists

    def record(self, changes: Mapping[TopicPartition, Starts]) -> None:
        """Persist the starts of logs; they are durable on return. Blocks.

        Usually a line in the journal for each changed log suffices.
        """
        with self._lock:
            # Most calls repeat known starts and need no write.
            changes = {
                key: new
                for key, new in changes.items()
                if self.recorded.get(key) != new or key in self._in_doubt
            }
            if not changes:
                return
            self.changes += 1
            lines = b"".join(_journal_line(key, starts) for key, starts in changes.items())
            self._in_doubt.update(changes)
            # A full journal is folded into the checkpoints, which empties it.
            if self._used_bytes + len(lines) + len(_END) > JOURNAL_BYTES:
                self._rewrite_checkpoints({**self.recorded, **changes})
            else:
                self._append(lines)
            self.recorded.update(changes)
            self._in_doubt.difference_update(changes)

    def known(self) -> frozenset[TopicPartition]:
        """Return the logs that have an entry."""
        with self._lock:
            return frozenset(self.recorded)

    def compact(self, *, without: Collection[TopicPartition] = ()) -> None:
        """Rewrite the checkpoints ``without`` deleted logs, and restart the journal. Blocks."""
        with self._lock:
            kept = {key: starts for key, starts in self.recorded.items() if key not in without}
            self._rewrite_checkpoints(kept)
            self.recorded = kept

    def _rewrite_checkpoints(self, recorded: Mapping[TopicPartition, Starts]) -> None:
        self._log_starts.save({key: starts.log_start_offset for key, starts in recorded.items()})
        self._local_starts.save(
            {
                key: starts.local_log_start_offset
                for key, starts in recorded.items()
                if starts.local_log_start_offset is not None
            }
        )
        self._stale_end, self._used_bytes = max(self._stale_end, self._used_bytes), 0
        self._erase_stale_lines()

    def _erase_stale_lines(self) -> None:
        """Erase former lines before anything is appended.

        A failed write may be on the disk nevertheless, and lines after an end mark are hidden only
        until a partial write destroys the mark.
        """
        begin, end = self._used_bytes, self._stale_end
        if begin < end:
            # The end mark first: without it the journal is unchanged.
            self._write_journal(_END, begin)
            self._write_journal(b"\0" * (end - begin), begin)
        self._stale_end = 0

    def _append(self, lines: bytes) -> None:
        self._erase_stale_lines()
        # Assume remains up to the end of the write, until it has succeeded.
        self._stale_end = self._used_bytes + len(lines) + len(_END)
        self._write_journal(lines + _END, self._used_bytes)
        self._used_bytes += len(lines)
        self._stale_end = 0

    def _write_journal(self, data: bytes, position: int) -> None:
        """Write bytes to the journal file at a position, and fsync it. Blocks.

        The first call creates the file and reserves its space.
        """
        with storage_errors(f"{self._journal} cannot be written"):
            with opened(self._journal, os.O_WRONLY | os.O_CREAT) as descriptor:
                if os.fstat(descriptor).st_size < JOURNAL_BYTES:
                    with contextlib.suppress(OSError):  # without space it grows with each write
                        os.posix_fallocate(descriptor, 0, JOURNAL_BYTES)
                write_at(descriptor, data, position)
                os.fsync(descriptor)
            # The first write must also make the file's name durable.
            if not self._is_named:
                sync_directory(self._journal.parent)
                self._is_named = True


def _journal_line(key: TopicPartition, starts: Starts) -> bytes:
    text = f"{key[0]} {key[1]} {starts.log_start_offset} {starts.local_log_start_offset}".encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))


def _parse_journal_line(line: bytes) -> tuple[TopicPartition, Starts] | None:
    text, _, crc = line.rpartition(b" ")
    if crc != b"%08x" % zlib.crc32(text):
        return None
    topic, partition, log_start, local_start = text.decode().split(" ")
    return (topic, int(partition)), Starts(int(log_start), int(local_start))


#: Number of recorded changes of starts, failed logs, and the bounds and starts of open ones.
_CheckpointedState: TypeAlias = tuple[
    int,
    tuple[TopicPartition, ...],
    list[tuple[PartitionLog, LogBounds, StartRecord, Starts | None, int | None, int | None]],
]


class LogCheckpoints:
    """Checkpoints of all logs. The caller of a blocking method holds no log's lock."""

    def __init__(self, directory: Path, logs: OpenLogs) -> None:
        self._logs = logs
        self.recovery_points = OffsetCheckpoint(directory / names.RECOVERY_POINT_CHECKPOINT)
        self.high_watermarks = OffsetCheckpoint(directory / names.HIGH_WATERMARK_CHECKPOINT)
        self.first_dirty = OffsetCheckpoint(directory / names.CLEANER_CHECKPOINT)
        self.starts = LogStarts(directory)
        #: Starts that are not persisted yet; guarded by ``OpenLogs.changed``.
        self._starts_due: dict[TopicPartition, Starts] = {}
        #: State that the files contain; None during a write and after a failed one.
        self._saved: _CheckpointedState | None = None
        self._shared_record = SharedWork(self._write_starts, LockRank.LOG_STARTS_DUE).run
        self._shared_save = SharedWork(self._write_all, LockRank.CHECKPOINTS).run

    def load(self) -> None:
        """Read the files of the last run. Blocks."""
        for checkpoint in self._offsets:
            checkpoint.load()
        self.starts.load()

    def attach(self, log: PartitionLog) -> None:
        """Connect a log, so that it can persist its starts before its files change."""
        log.persist_checkpoints = self._shared_save
        log.record_starts = partial(self._record_pending_starts, log)

    def has_entry(self, key: TopicPartition) -> bool:
        """Return whether any of the files has an entry of that name."""
        return key in self.starts.recorded or any(key in offset.offsets for offset in self._offsets)

    @property
    def _offsets(self) -> tuple[OffsetCheckpoint, ...]:
        return self.recovery_points, self.high_watermarks, self.first_dirty

    def save(self) -> None:
        """Persist recovery points, high watermarks and starts of all logs. Blocks.

        Unchanged files are not rewritten. If no log has moved, their content is not even assembled.
        """
        if self._current_state() == self._saved and not self._starts_due and self._exist():
            return
        _sync_announced(self._logs.all())
        self._shared_save()

    def _current_state(self) -> "_CheckpointedState":
        """Return everything that the files are derived from.

        A value that moves is replaced as a whole, so idle logs compare by identity.
        """
        with self._logs.changed:
            failures, logs = tuple(self._logs.failures), self._logs.all()
        of_logs = [
            (
                log,
                log.bounds,
                log.start_record,
                log.pending_starts,
                log.pending_end,
                log.first_dirty,
            )
            for log in logs
        ]
        return self.starts.changes, failures, of_logs

    def _exist(self) -> bool:
        return self.starts.exists and all(offset.exists for offset in self._offsets)

    def record_starts(self, logs: Iterable[PartitionLog]) -> None:
        """Persist the logs' starts, announced ones included. Blocks.

        The cost does not depend on the number of other logs.
        """
        logs = list(logs)
        _sync_announced(logs)
        self._record(logs)

    def _write_all(self) -> None:
        """Write all checkpoint files from the current state of the logs. Blocks."""
        # Forget the saved state first: a change during the write is not part of it.
        self._saved, state = None, self._current_state()
        # Read the recorded names before the logs: a log created meanwhile must not be dropped.
        recorded = self.starts.known()
        with self._logs.changed:
            kept, logs = set(self._logs.failures), dict(self._logs.by_key)
        # Starts first: bounds that rely on a raised start must not be durable before it.
        self._record(logs.values())
        self.starts.compact(without=recorded - kept - set(logs))
        # ``kept``: logs that could not be opened, whose entries are preserved.
        bounds = {key: log.checkpoint_bounds for key, log in logs.items()}
        self.recovery_points.save({key: of.recovery_point for key, of in bounds.items()}, kept)
        self.high_watermarks.save({key: of.high_watermark for key, of in bounds.items()}, kept)
        dirty = {key: log.checkpoint_first_dirty for key, log in logs.items()}
        self.first_dirty.save({key: at for key, at in dirty.items() if at is not None}, kept)
        self._saved = state

    def _record(self, logs: Iterable[PartitionLog]) -> None:
        """Persist starts by name. A deleted log must not overwrite the entry of its successor."""
        # Under the condition: an older state must not replace one recorded by a removal.
        with self._logs.changed:
            due = [(log, starts_of(log)) for log in logs if self._logs.is_registered(log)]
            self._starts_due.update({log.key: starts for log, starts in due})
        self._shared_record()
        for log, starts in due:
            note_recorded_starts(log, starts)

    def _record_pending_starts(self, log: PartitionLog, starts: Starts) -> None:
        with self._logs.changed:
            if not self._logs.is_registered(log):
                raise StorageError(f"{log.directory} is deleted; its starts cannot be recorded")
            self._starts_due[log.key] = starts
        self._shared_record()

    def _write_starts(self) -> None:
        with self._logs.changed:
            due, self._starts_due = self._starts_due, {}
        try:
            self.starts.record(due)
        except StorageError:
            # Newer starts of the same log win over those that could not be written.
            with self._logs.changed:
                self._starts_due = due | self._starts_due
            raise


def _sync_announced(logs: Iterable[PartitionLog]) -> None:
    """Sync below announced starts.

    A log that fails retains its persisted start and reports its failure itself.
    """
    for log in logs:
        try:
            sync_below_announced(log)
        except StorageError as error:
            logger.warning("%s: its log start cannot be persisted: %s", log.directory, error)
