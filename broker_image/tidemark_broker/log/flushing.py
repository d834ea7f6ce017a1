"""What makes a log durable: index entries go to their files, then all is fsynced.

Threads do both. The log's lock is held for what is in memory only, so that appends and reads go on
meanwhile; a roll leaves here what it need not do itself.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from tidemark_broker.log.bounds import LogBounds
from tidemark_broker.log.errors import StorageError
from tidemark_broker.log.files import sync_directory, sync_file
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.types import SegmentFiles

logger = logging.getLogger(__name__)


class FlushingLog(LogBounds):
    """Flush and what belongs to it; :class:`PartitionLog` is the whole."""

    @property
    def needs_flush(self) -> bool:
        """Whether a closed segment, or ``flush.messages`` records, are not on disk for good yet."""
        if self._failure is not None or self._closed:
            return False  # a failed log must be opened again first
        point, segments = self._recovery_point, self._segments
        return (
            point < segments.active.base_offset
            or bool(segments.unfinished)
            or self._next_offset - point >= self.config.flush_messages
        )

    def flush(self, up_to_offset: int | None = None) -> int:
        """T: fsync all below ``up_to_offset`` (default: everything); the new recovery point.

        A failed fsync may have lost pages for good, so nothing is appended any more until the log
        is opened again (which checks every byte).
        """
        with self._shaping:
            with self._lock:
                self._check_usable()
                target = self._next_offset if up_to_offset is None else up_to_offset
                target = min(target, self._next_offset)
                if target <= self._recovery_point and not self._segments.unfinished:
                    return self._recovery_point
            self._save_indexes()
            with self._lock:
                truncations = self._truncations
                due, reached = self._due(target)
        self._sync(due)
        self._save_epochs()
        with self._lock:
            if truncations == self._truncations:
                self._recovery_point = max(self._recovery_point, reached)
            return self._recovery_point

    def _due(self, target: int) -> tuple[list[Segment], int]:
        """(segments to sync, up to where the log is durable then). A sync of the active segment
        covers all that was appended before it began."""
        segments = self._segments
        first = segments.number_of(self._recovery_point)
        due = [s for s in segments.items[first:] if s.base_offset < target]
        if not due:  # all below the target went by retention
            return [], self._recovery_point
        active = due[-1] is segments.active
        return due, self._next_offset if active else due[-1].next_offset

    def sync_below_announced_start(self) -> None:
        """T: fsync what lies below an announced log start, so that it may go on record. Indexes and
        checkpoints are left to :meth:`flush`: they need room, which a deletion is to make."""
        with self._shaping:
            with self._lock:
                self._check_usable()
                target, truncations = self.announced_log_start_offset, self._truncations
                due = self._due(target)[0] if target > self._recovery_point else []
            self._sync(due)
            with self._lock:
                if truncations == self._truncations:
                    self._synced_to = max(self._synced_to, target)

    def _sync(self, due: Sequence[Segment]) -> None:
        try:
            _sync(self.directory, due)
        except OSError as error:
            self._failure = (
                f"{self.directory} cannot be synced ({error.strerror}): bytes may be lost; the log "
                "takes nothing more until it was opened again"
            )
            logger.warning(self._failure)
            raise StorageError(self._failure) from error

    def segment_files(self, base_offset: int) -> SegmentFiles:
        """T: the files of a closed segment, for copying (flush up to its end first)."""
        with self._shaping:
            if self._segments.unfinished:
                self._save_indexes()
            with self._lock:
                return self._segments.files_of(base_offset)

    def _save_indexes(self, *, closing: bool = False) -> None:
        """T, holding ``_shaping``: write what is not in the index files yet, and finish segments
        that were closed. ``closing``: the active one, too."""
        segments = self._segments
        with self._lock:
            self._check_usable()
            active = segments.active
            for segment in (*segments.unfinished, active):
                segment.cut_torn_tail()
            if closing:
                active.seal()
            unsaved = [(each, each.unsaved()) for each in (*segments.unfinished, active)]
        for segment, entries in unsaved:
            closed = segment is not active
            segment.save(entries, whole=closed or closing)
            if closed:
                segments.write_snapshot(segment)
        with self._lock:
            for segment, _ in unsaved[:-1]:
                segments.finished(segment)
        segments.trim()

    def _save_epochs(self) -> None:
        """T: whoever saves holds ``_shaping``, lest an older history replace a newer one."""
        with self._shaping:
            self._epoch_file.save(self.epochs)


def _sync(directory: Path, segments: Sequence[Segment]) -> None:
    for segment in segments:
        for path in (segment.log_path, segment.index_path, segment.time_index_path):
            try:
                sync_file(path)
            except FileNotFoundError:
                continue  # retention was quicker, or an empty segment has no indexes
    if segments:
        sync_directory(directory)
