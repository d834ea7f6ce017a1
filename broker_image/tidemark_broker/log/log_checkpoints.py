"""Checkpoint files shared by all logs of a directory: recovery points, high watermarks, starts.

Threads that request a write at the same moment share one write. Entries of a log that could not be
opened are preserved. Entries of a deleted log are removed, so that they do not bound a new log of
its name.
"""

import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import TopicPartition
from tidemark_broker.lock_order import LockRank
from tidemark_broker.log.bounds import LogBounds
from tidemark_broker.log.checkpoint_file import OffsetCheckpoint
from tidemark_broker.log.errors import StorageError
from tidemark_broker.log.log_starts import LogStarts, Starts
from tidemark_broker.log.open_logs import OpenLogs
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.shared_work import SharedWork
from tidemark_broker.log.start_offsets import starts_of, starts_recorded, sync_below_announced
from tidemark_broker.log.start_record import StartRecord

logger = logging.getLogger(__name__)


#: Number of recorded changes of starts, failed logs, and the bounds and starts of open ones.
_Moment: TypeAlias = tuple[
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
        self._saved: _Moment | None = None
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
        log.record_starts = partial(self._record_ahead, log)

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
        if self._moment() == self._saved and not self._starts_due and self._exist():
            return
        _sync_announced(self._logs.all())
        self._shared_save()

    def _moment(self) -> "_Moment":
        """Return everything that the files are derived from.

        A value that moves is replaced as a whole, so idle logs compare by identity.
        """
        with self._logs.changed:
            failures, logs = tuple(self._logs.failures), self._logs.all()
        of_logs = [
            (log, log.bounds, log.start_record, log.starts_ahead, log.cut_ahead, log.first_dirty)
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
        self._saved, moment = None, self._moment()
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
        self._saved = moment

    def _record(self, logs: Iterable[PartitionLog]) -> None:
        """Persist starts by name. A deleted log must not overwrite the entry of its successor."""
        # Under the condition: an older state must not replace one recorded by a removal.
        with self._logs.changed:
            due = [(log, starts_of(log)) for log in logs if self._logs.is_here(log)]
            self._starts_due.update({log.key: starts for log, starts in due})
        self._shared_record()
        for log, starts in due:
            starts_recorded(log, starts)

    def _record_ahead(self, log: PartitionLog, starts: Starts) -> None:
        with self._logs.changed:
            if not self._logs.is_here(log):
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
