"""All logs of one log directory, and the checkpoints that they share.

Absence never deletes: what lies in the directory stays until somebody asks for its deletion, and
a partition that cannot be opened is reported and kept as it is, checkpoints included.
"""

import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import TopicPartition
from tidemark_broker.log.checkpoint_file import OffsetCheckpoint
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.deletion import remove_renamed, rename_out_of_the_way
from tidemark_broker.log.errors import LogError, StorageError, storage_errors
from tidemark_broker.log.files import TEMPORARY_SUFFIX, sync_directory
from tidemark_broker.log.identity import (
    UNKNOWN_BROKER_EPOCH,
    ensure_identity,
    lock_directory,
    mark_clean_shutdown,
    take_clean_shutdown,
)
from tidemark_broker.log.log_starts import LogStarts, Starts
from tidemark_broker.log.open_segments import OpenSegments
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.shared_work import SharedWork
from tidemark_broker.log.state import encode_state
from tidemark_broker.log.topic_id_file import read_topic_id

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFailure:
    """A partition's directory that could not be opened; it is kept as it is. ``topic_id`` is None
    where not even that can be read."""

    topic: str
    partition: int
    topic_id: uuid.UUID | None
    directory: Path
    reason: str


class LogManager:
    """Opened by :meth:`open`; T marks what blocks on the disk and is run in a thread.

    ``clean_shutdown`` says how the last run ended; ``previous_broker_epoch`` is the proof of it
    that registration carries: the epoch of the run that ended cleanly, else None. It is only to be
    trusted after :meth:`open_all`, which takes it back when a log turns out to lack bytes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        lock_descriptor: int,
        directory_id: uuid.UUID,
        clean_shutdown: bool,
        previous_broker_epoch: int | None,
    ) -> None:
        self.directory = directory
        self.directory_id = directory_id
        self.clean_shutdown = clean_shutdown
        self.previous_broker_epoch = previous_broker_epoch
        self._lock_descriptor: int | None = lock_descriptor
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._failures: dict[TopicPartition, OpenFailure] = {}
        #: Being made by some thread; the condition tells of the end.
        self._making: set[TopicPartition] = set()
        #: Guards the maps; never held while the disk is waited for.
        self._changed = threading.Condition()
        self._sync_names = SharedWork(self._sync_directory).run
        self._shared_checkpoint = SharedWork(self._write_checkpoints).run
        self._open_segments = OpenSegments()
        self._config_of: Callable[[Path], LogConfig] | None = None
        self._recovery_points = OffsetCheckpoint(directory / names.RECOVERY_POINT_CHECKPOINT)
        self._high_watermarks = OffsetCheckpoint(directory / names.HIGH_WATERMARK_CHECKPOINT)
        self._starts = LogStarts(directory)
        #: Where logs begin from now on, not on record yet; guarded by ``_changed``.
        self._starts_due: dict[TopicPartition, Starts] = {}
        self._shared_record = SharedWork(self._write_starts).run

    @classmethod
    def open(cls, directory: Path, *, node_id: int, cluster_id: str) -> "LogManager":
        """T: lock the directory and read whose it is; the logs are opened by :meth:`open_all`."""
        descriptor = lock_directory(directory)
        try:
            identity = ensure_identity(directory, cluster_id=cluster_id, node_id=node_id)
            broker_epoch = take_clean_shutdown(directory)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(
            directory,
            lock_descriptor=descriptor,
            directory_id=identity.directory_id,
            clean_shutdown=broker_epoch is not None,
            previous_broker_epoch=None if broker_epoch == UNKNOWN_BROKER_EPOCH else broker_epoch,
        )

    def open_all(self, config_of: Callable[[Path], LogConfig] | None = None) -> list[OpenFailure]:
        """T: open every partition's directory, finish removals that were begun; what failed.

        ``config_of`` gives a partition's configuration by its directory (it may look into
        ``partition.state``); without it Kafka's defaults hold until ``log.config`` is set.
        """
        self._config_of = config_of
        for checkpoint in (self._recovery_points, self._high_watermarks, self._starts):
            checkpoint.load()
        with storage_errors(f"{self.directory} cannot be read"):
            for path in self.directory.glob(f"*{TEMPORARY_SUFFIX}"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            paths = sorted(path for path in self.directory.iterdir() if path.is_dir())
        for path in paths:
            if names.is_deleted_directory(path.name):
                shutil.rmtree(path, ignore_errors=True)
            elif (key := names.parse_partition_directory(path.name)) is not None:
                self._open_one(key, path, clean_shutdown=self.clean_shutdown)
        missing = self._missing()
        if missing:
            logger.warning("%s: these logs are gone: %s", self.directory, missing)
        if missing or self.failures or any(log.truncated_at_open for log in self._logs.values()):
            self.previous_broker_epoch = None
        logger.info(
            "%s: %d logs opened, %d failed", self.directory, len(self._logs), len(self.failures)
        )
        return self.failures

    def _missing(self) -> list[TopicPartition]:
        """Logs that the last clean shutdown left with records and that are not here: what is made
        in their place is empty."""
        known = self._logs.keys() | self._failures.keys()
        points = self._recovery_points.offsets
        return [key for key, offset in points.items() if offset and key not in known]

    @property
    def failures(self) -> list[OpenFailure]:
        """What could not be opened, and not be opened again either."""
        return list(self._failures.values())

    def open_again(self, topic: str, partition: int) -> PartitionLog | None:
        """T: try once more what :meth:`open_all` could not open; None if it still cannot be.

        Every byte behind the recovery point is checked, whatever was thought of the last shutdown.
        """
        key = (topic, partition)
        if key in self._failures:
            self._open_one(key, self.partition_directory(topic, partition), clean_shutdown=False)
        return self._logs.get(key)

    def _open_one(self, key: TopicPartition, path: Path, *, clean_shutdown: bool) -> None:
        topic, partition = key
        config_of = self._config_of
        starts = self._starts.of(key)
        topic_id: uuid.UUID | None = None
        try:
            if not path.is_dir():
                raise StorageError(f"{path} is gone; start the broker again to have it made anew")
            topic_id = read_topic_id(path)
            log = PartitionLog.open(
                path,
                topic=topic,
                topic_id=topic_id,
                partition=partition,
                config=config_of(path) if config_of is not None else LogConfig(),
                recovery_point=self._recovery_points.offsets.get(key, 0),
                clean_shutdown=clean_shutdown,
                log_start_offset=None if starts is None else starts.log_start_offset,
                local_log_start_offset=None if starts is None else starts.local_log_start_offset,
                high_watermark=self._high_watermarks.offsets.get(key),
                open_segments=self._open_segments,
            )
        except (LogError, OSError, ValueError) as error:
            failure = OpenFailure(
                topic=topic,
                partition=partition,
                topic_id=topic_id,
                directory=path,
                reason=str(error),
            )
            if failure != self._failures.get(key):
                logger.warning("%s cannot be opened and is kept as it is: %s", path, error)
            self._failures[key] = failure
            return
        self._adopt(key, log)

    def _adopt(self, key: TopicPartition, log: PartitionLog) -> None:
        log.persist_checkpoints = self._shared_checkpoint
        log.record_starts = partial(self._record, log)
        with self._changed:
            self._logs[key] = log
            self._failures.pop(key, None)

    # -- the logs ----------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The open log of that partition."""
        return self._logs.get((topic, partition))

    def logs(self) -> tuple[PartitionLog, ...]:
        """Every open log."""
        return tuple(self._logs.values())

    def partition_directory(self, topic: str, partition: int) -> Path:
        """Where that partition's files are, or would be."""
        return self.directory / names.partition_directory_name(topic, partition)

    def create(
        self,
        *,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
        config: LogConfig,
        state: dict[str, Any] | None = None,
    ) -> PartitionLog:
        """T: the log of that partition, made (with ``state`` in its folder) if it is not there;
        another topic's of the same name, or one that could not be opened, is a
        :class:`StorageError`. Several threads may make logs at once."""
        key = (topic, partition)
        with self._changed:
            self._changed.wait_for(lambda: key not in self._making)
            existing = self._existing(key, topic_id)
            if existing is not None:
                return existing
            self._making.add(key)
        try:
            if self._is_checkpointed(key):
                self.checkpoint()  # of a log that is gone: after a crash it would bound the new one
            log = PartitionLog.create(
                self.partition_directory(topic, partition),
                topic=topic,
                topic_id=topic_id,
                partition=partition,
                config=config,
                state=None if state is None else encode_state(state),
                sync_parent=self._sync_names,
                open_segments=self._open_segments,
            )
            self._adopt(key, log)
        finally:
            with self._changed:
                self._making.discard(key)
                self._changed.notify_all()
        return log

    def _existing(self, key: TopicPartition, topic_id: uuid.UUID) -> PartitionLog | None:
        failure, existing = self._failures.get(key), self._logs.get(key)
        if failure is not None:
            raise StorageError(f"{failure.directory} is kept unopened: {failure.reason}")
        if existing is not None and existing.topic_id != topic_id:
            raise StorageError(
                f"{existing.directory} belongs to topic id {existing.topic_id}, "
                f"not to {topic_id}: delete that one first"
            )
        return existing

    def delete(self, topic: str, partition: int) -> bool:
        """T: remove a partition's log; False if there is none. Where it fails the log is still
        there (closed), or its files went and only the checkpoints could not be written."""
        log = self._logs.get((topic, partition))
        if log is None:
            return False
        renamed = log.rename_for_deletion(self._sync_names)
        with self._changed:
            self._logs.pop((topic, partition), None)
        self._remove_renamed(renamed)
        return True

    def discard(self, failure: OpenFailure) -> None:
        """T: remove what could not be opened."""
        key = (failure.topic, failure.partition)
        renamed = rename_out_of_the_way(failure.directory, *key)
        self._sync_names()
        with self._changed:
            self._failures.pop(key, None)
        self._remove_renamed(renamed)

    def _remove_renamed(self, renamed: Path) -> None:
        """The files go also where the checkpoints cannot be written: on a full disk that is what
        makes room."""
        try:
            self.checkpoint()
        finally:
            remove_renamed(renamed)

    # -- checkpoints -------------------------------------------------------------------------

    def _is_checkpointed(self, key: TopicPartition) -> bool:
        points, watermarks = self._recovery_points.offsets, self._high_watermarks.offsets
        return key in points or key in watermarks or key in self._starts.recorded

    def record_log_starts(self, logs: Iterable[PartitionLog]) -> None:
        """T: put on record where these logs begin now, announced starts included; what that costs
        does not depend on how many others there are. Not to be called with a log's lock held."""
        logs = list(logs)
        _sync_announced_starts(logs)
        self._record_starts(logs)

    def _record_starts(self, logs: Iterable[PartitionLog]) -> None:
        with self._changed:  # read under it, lest an older state replace what a removal recorded
            due = {_key(log): (log, log.starts) for log in logs if self._is_here(log)}
            self._starts_due.update({key: starts for key, (_, starts) in due.items()})
        self._shared_record()
        for log, starts in due.values():
            log.starts_recorded(starts)

    def _is_here(self, log: PartitionLog) -> bool:
        """What is on record goes by name: a log that is gone has no part in it any more."""
        return self._logs.get(_key(log)) is log

    def _record(self, log: PartitionLog, starts: Starts) -> None:
        with self._changed:
            if not self._is_here(log):
                raise StorageError(f"{log.directory} is gone")
            self._starts_due[_key(log)] = starts
        self._shared_record()

    def _write_starts(self) -> None:
        with self._changed:
            due, self._starts_due = self._starts_due, {}
        try:
            self._starts.record(due)
        except StorageError:
            with self._changed:
                self._starts_due = due | self._starts_due
            raise

    def checkpoint(self) -> None:
        """T: write recovery points, high watermarks and starts of all logs, durably.

        What a failed partition had in them stays. Unchanged files are not written again. Not to be
        called with a log's lock held.
        """
        _sync_announced_starts(self.logs())
        self._shared_checkpoint()

    def _write_checkpoints(self) -> None:
        recorded = self._starts.known()  # before the logs: one that is made meanwhile is not gone
        with self._changed:
            kept, logs = set(self._failures), dict(self._logs)
        self._record_starts(logs.values())
        self._starts.compact(without=recorded - kept - set(logs))
        self._recovery_points.save({key: log.recovery_point for key, log in logs.items()}, kept)
        self._high_watermarks.save({key: log.high_watermark for key, log in logs.items()}, kept)

    def _sync_directory(self) -> None:
        with storage_errors(f"{self.directory} cannot be synced"):
            sync_directory(self.directory)

    def close(self, broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> bool:
        """T: flush and close all; the mark of a clean shutdown is set only if all of it held.

        ``broker_epoch`` is the epoch this run was registered with. False: the next start recovers.
        """
        if self._lock_descriptor is None:
            return False
        clean = not self.failures
        try:
            for log in self.logs():
                try:
                    log.close()
                except LogError as error:
                    logger.warning("%s: %s", log.directory, error)
                    clean = False
            self.checkpoint()
            if clean:
                mark_clean_shutdown(self.directory, broker_epoch)
        finally:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
        return clean


def _key(log: PartitionLog) -> TopicPartition:
    return log.topic, log.partition


def _sync_announced_starts(logs: Iterable[PartitionLog]) -> None:
    """A log that refuses keeps the start that is on record; it says itself what is wrong with
    it."""
    for log in logs:
        if log.has_start_to_sync:
            try:
                log.sync_below_announced_start()
            except StorageError as error:
                logger.warning("%s: its log start cannot go on record: %s", log.directory, error)
