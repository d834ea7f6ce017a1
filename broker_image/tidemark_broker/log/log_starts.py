"""Log starts of a directory, persisted before any file below them is deleted.

There are two offsets for each log: its log start, and its local log start, below which segments may
be missing (they are in the tier, or deleted). A log whose first segment is above the persisted
local start has lost records that nothing deleted. Both are in checkpoint files, which are rewritten
from time to time. Changes in between are lines of a journal. So a raised start costs the same
however many logs there are, and starts that are raised together share one fsync.

A line has the complete state of one log, so all lines may be replayed over a newer checkpoint, but
no subset of them: the first one is erased before the others. The journal's space is reserved from
the start, because retention must work when the disk is full.
"""

import contextlib
import logging
import os
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import TopicPartition
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.log.checkpoint_file import OffsetCheckpoint
from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import sync_directory

logger = logging.getLogger(__name__)

LOCAL_LOG_START_CHECKPOINT = "local-log-start-offset-checkpoint"
JOURNAL = "log-start-offset-journal"
JOURNAL_BYTES = 64 * 1024
#: Mark after the last line, so that the remains of a torn write are not read after the next one.
_END = b"\0"


class Starts(NamedTuple):
    """Starts of one log. ``local_log_start_offset`` None: never persisted, in an old directory."""

    log_start_offset: int
    local_log_start_offset: int | None


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
            self._put(b"", 0)
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
            change = _parse(line)
            if change is None:  # a torn line, or the end mark
                break
            self.recorded[change[0]] = change[1]
            self._used_bytes += len(line) + 1
        # Bytes after the last valid line are the remains of a torn write.
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
            lines = b"".join(_line(key, starts) for key, starts in changes.items())
            self._in_doubt.update(changes)
            # A full journal is folded into the checkpoints, which empties it.
            if self._used_bytes + len(lines) + len(_END) > JOURNAL_BYTES:
                self._write({**self.recorded, **changes})
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
            self._write(kept)
            self.recorded = kept

    def _write(self, recorded: Mapping[TopicPartition, Starts]) -> None:
        self._log_starts.save({key: starts.log_start_offset for key, starts in recorded.items()})
        self._local_starts.save(
            {
                key: starts.local_log_start_offset
                for key, starts in recorded.items()
                if starts.local_log_start_offset is not None
            }
        )
        self._stale_end, self._used_bytes = max(self._stale_end, self._used_bytes), 0
        self._erase()

    def _erase(self) -> None:
        """Erase former lines before anything is appended.

        A failed write may be on the disk nevertheless, and lines after an end mark are hidden only
        until a torn write destroys the mark.
        """
        begin, end = self._used_bytes, self._stale_end
        if begin < end:
            self._put(_END, begin)  # the end mark first: without it the journal is unchanged
            self._put(b"\0" * (end - begin), begin)
        self._stale_end = 0

    def _append(self, lines: bytes) -> None:
        self._erase()
        # Assume remains up to the end of the write, until it has succeeded.
        self._stale_end = self._used_bytes + len(lines) + len(_END)
        self._put(lines + _END, self._used_bytes)
        self._used_bytes += len(lines)
        self._stale_end = 0

    def _put(self, data: bytes, position: int) -> None:
        """Write bytes to the journal file at a position, and fsync it. Blocks.

        The first call creates the file and reserves its space.
        """
        with storage_errors(f"{self._journal} cannot be written"):
            descriptor = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(descriptor).st_size < JOURNAL_BYTES:
                    with contextlib.suppress(OSError):  # without space it grows with each write
                        os.posix_fallocate(descriptor, 0, JOURNAL_BYTES)
                view = memoryview(data)
                while view:
                    written = os.pwrite(descriptor, view, position)
                    view, position = view[written:], position + written
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            # The first write must also make the file's name durable.
            if not self._is_named:
                sync_directory(self._journal.parent)
                self._is_named = True


def _line(key: TopicPartition, starts: Starts) -> bytes:
    text = f"{key[0]} {key[1]} {starts.log_start_offset} {starts.local_log_start_offset}".encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))


def _parse(line: bytes) -> tuple[TopicPartition, Starts] | None:
    text, _, crc = line.rpartition(b" ")
    if crc != b"%08x" % zlib.crc32(text):
        return None
    topic, partition, log_start, local_start = text.decode().split(" ")
    return (topic, int(partition)), Starts(int(log_start), int(local_start))
