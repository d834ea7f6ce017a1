"""All logs of one log directory: found, opened, created, removed and closed.

Absence never deletes: data in the directory stays until its deletion is requested. A partition that
cannot be opened is reported and left unchanged, checkpoints included. A directory is renamed, which
deletes it durably, and then removed. A crash in between leaves a directory whose name marks it as
deleted; the next start removes it.
"""

import asyncio
import logging
import os
import shutil
import uuid
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import TopicPartition
from tidemark_broker.lock_order import LockRank
from tidemark_broker.log import flushing
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.directory_files import (
    UNKNOWN_BROKER_EPOCH,
    encode_state,
    ensure_identity,
    lock_directory,
    mark_clean_shutdown,
    read_topic_id,
    take_clean_shutdown,
)
from tidemark_broker.log.errors import (
    CorruptRecords,
    LogError,
    RecordsMissing,
    StorageError,
    storage_errors,
)
from tidemark_broker.log.files import TEMPORARY_SUFFIX, SharedWork, sync_directory
from tidemark_broker.log.log_checkpoints import LogCheckpoints
from tidemark_broker.log.open_logs import OpenFailure, OpenLogs
from tidemark_broker.log.opening import create_log, open_log, sync_parent_of
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.producer_states import ALL_PRODUCERS_MAX, ProducerLimit
from tidemark_broker.log.segment_list import OpenSegments

logger = logging.getLogger(__name__)

#: Logs that are closed at once at a shutdown. Each close waits for the disk a few times, and
#: thousands of them in sequence would exceed the time that a broker has. Disks process a few fsyncs
#: at once; more do not speed them up.
CLOSED_AT_ONCE_MAX = 6

#: Runs a blocking call, given with its arguments, in a thread; to its end, also when cancelled.
InThread = Callable[..., Awaitable[Any]]


class LogManager:
    """Logs of a directory, created by :meth:`open`.

    ``clean_shutdown``: whether the last run ended cleanly. ``previous_broker_epoch`` is the proof
    of it that the registration carries: the epoch of the run that ended cleanly, else None. It is
    valid only after :meth:`open_all`, which clears it if a log lacks bytes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        lock_descriptor: int,
        directory_id: uuid.UUID,
        clean_shutdown: bool,
        previous_broker_epoch: int | None,
        producers_max: int = ALL_PRODUCERS_MAX,
    ) -> None:
        """Create it without logs; see :meth:`open`.

        ``lock_descriptor``: open file that holds the directory's lock. ``producers_max``: limit of
        the idempotent producers that all logs together remember.
        """
        self.directory = directory
        self.directory_id = directory_id
        self.clean_shutdown = clean_shutdown
        self.previous_broker_epoch = previous_broker_epoch
        self._lock_descriptor: int | None = lock_descriptor
        #: Open logs, and directories that could not be opened.
        self._open = OpenLogs()
        self._checkpoints = LogCheckpoints(directory, self._open)
        #: Cache of closed segments with an open file, shared by all logs.
        self._open_segments = OpenSegments()
        self._producer_limit = ProducerLimit(producers_max)
        #: Fsync of the directory, shared by threads that create or rename logs at the same time.
        self._sync_names = SharedWork(self._sync_directory, LockRank.DIRECTORY_NAMES).run
        self._config_of: Callable[[Path], LogConfig] | None = None
        #: Directories that were set aside, by topic id and partition.
        self._strays: dict[tuple[uuid.UUID, int], list[Path]] = {}

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        node_id: int,
        cluster_id: str,
        producers_max: int = ALL_PRODUCERS_MAX,
    ) -> "LogManager":
        """Lock a log directory and check its identity, so that :meth:`open_all` can open the logs.

        Blocks. Raises StorageError if the directory is in use or belongs to another broker or
        cluster.
        """
        descriptor = lock_directory(directory)
        try:
            identity = ensure_identity(directory, cluster_id=cluster_id, node_id=node_id)
            # Removed before any log is opened: a crash from here on is an unclean shutdown.
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
            producers_max=producers_max,
        )

    def open_all(self, config_of: Callable[[Path], LogConfig] | None = None) -> list[OpenFailure]:
        """Open every log of the directory and complete interrupted removals. Blocks.

        Return the logs that could not be opened. ``config_of`` returns a partition's configuration
        by its directory (it may read ``partition.state``). Without it Kafka's defaults apply until
        ``log.config`` is set.
        """
        self._config_of = config_of
        self._checkpoints.load()
        # Temporary files of a crash are worthless: their rename never happened.
        with storage_errors(f"{self.directory} cannot be read"):
            for path in self.directory.glob(f"*{TEMPORARY_SUFFIX}"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            paths = sorted(path for path in self.directory.iterdir() if path.is_dir())
        # Deleted directories are removed, strays are kept, everything unknown is left alone.
        for path in paths:
            if names.is_deleted_directory(path.name):
                shutil.rmtree(path, ignore_errors=True)
            elif (key := names.parse_partition_directory(path.name)) is not None:
                self._open_one(key, path, clean_shutdown=self.clean_shutdown)
            elif (number := names.partition_of_stray(path.name)) is not None:
                self._register_stray(path, number)
        # A log that is missing completely counts as lost bytes too.
        missing = self._missing()
        if missing:
            logger.warning("%s: these logs are missing: %s", self.directory, missing)
        # Any lost byte invalidates the proof of a clean shutdown (KIP-966).
        if missing or self.failures or any(log.truncated_at_open for log in self.logs()):
            self.previous_broker_epoch = None
        logger.info(
            "%s: %d logs opened, %d failed", self.directory, len(self.logs()), len(self.failures)
        )
        return self.failures

    def _missing(self) -> list[TopicPartition]:
        """Return logs that had records at the last clean shutdown and have no directory now.

        Their replacements are empty.
        """
        known = self._open.by_key.keys() | self._open.failures.keys()
        points = self._checkpoints.recovery_points.offsets
        return [key for key, offset in points.items() if offset and key not in known]

    @property
    def failures(self) -> list[OpenFailure]:
        """Logs that could not be opened, nor reopened since."""
        return list(self._open.failures.values())

    def retry_opening(self, topic: str, partition: int) -> PartitionLog | None:
        """Retry a log that :meth:`open_all` could not open. Blocks. Return None if it still fails.

        Every byte above the recovery point is checked, however the last run ended.
        """
        key = (topic, partition)
        if key in self._open.failures:
            self._open_one(key, self.partition_directory(topic, partition), clean_shutdown=False)
        return self._open.by_key.get(key)

    def _open_one(self, key: TopicPartition, path: Path, *, clean_shutdown: bool) -> None:
        """Open the log in ``path`` and register it, or register the failure. Blocks.

        With ``clean_shutdown`` the bytes need no check.
        """
        topic, partition = key
        config_of, checkpoints = self._config_of, self._checkpoints
        starts = checkpoints.starts.of(key)
        topic_id: uuid.UUID | None = None
        try:
            if not path.is_dir():
                raise StorageError(f"{path} is missing; restart the broker to create it again")
            # Read first, so that even a failed log can be reported by its topic id.
            topic_id = read_topic_id(path)
            log = open_log(
                path,
                topic=topic,
                topic_id=topic_id,
                partition=partition,
                # All bounds come from the checkpoints; the files decide where they disagree.
                config=config_of(path) if config_of is not None else LogConfig(),
                recovery_point=checkpoints.recovery_points.offsets.get(key, 0),
                clean_shutdown=clean_shutdown,
                log_start_offset=None if starts is None else starts.log_start_offset,
                local_log_start_offset=None if starts is None else starts.local_log_start_offset,
                high_watermark=checkpoints.high_watermarks.offsets.get(key),
                first_dirty=checkpoints.first_dirty.offsets.get(key),
                open_segments=self._open_segments,
                producer_limit=self._producer_limit,
            )
        # One log that fails must not prevent that the others are opened.
        except (LogError, OSError, ValueError) as error:
            failure = OpenFailure(
                topic=topic,
                partition=partition,
                topic_id=topic_id,
                directory=path,
                reason=str(error),
                misses_records=isinstance(error, (RecordsMissing, CorruptRecords)),
            )
            # A retry that fails for the same reason is not logged again.
            if failure != self._open.failures.get(key):
                logger.warning("%s cannot be opened and is left unchanged: %s", path, error)
            self._open.failures[key] = failure
            return
        self._add(log)

    def _add(self, log: PartitionLog) -> PartitionLog:
        self._checkpoints.attach(log)
        self._open.add(log)
        return log

    # -- the logs ----------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the open log of that partition, or None."""
        return self._open.by_key.get((topic, partition))

    def logs(self) -> tuple[PartitionLog, ...]:
        """Return every open log."""
        return self._open.all()

    def partition_directory(self, topic: str, partition: int) -> Path:
        """Return the directory of that partition, whether or not it exists."""
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
        """Return the log of a partition; create it if there is none. Blocks.

        ``state``: content of its ``partition.state``, None for no such file. Raises
        :class:`StorageError` for a log of another topic of that name, or one that could not be
        opened. Several threads may create logs at once.
        """
        key = (topic, partition)
        # One thread at a time for each name; a second one finds the log that the first has created.
        with self._open.creating(key):
            existing = self._existing(key, topic_id)
            if existing is not None:
                return existing
            if self._checkpoints.has_entry(key):
                # Entries of a deleted log would bound the new one after a crash.
                self.checkpoint()
            log = create_log(
                self.partition_directory(topic, partition),
                topic=topic,
                topic_id=topic_id,
                partition=partition,
                config=config,
                state=None if state is None else encode_state(state),
                sync_parent=self._sync_names,
                open_segments=self._open_segments,
                producer_limit=self._producer_limit,
            )
            return self._add(log)

    def _existing(self, key: TopicPartition, topic_id: uuid.UUID) -> PartitionLog | None:
        failure, existing = self._open.failures.get(key), self._open.by_key.get(key)
        if failure is not None:
            raise StorageError(f"{failure.directory} cannot be opened: {failure.reason}")
        if existing is not None and existing.topic_id != topic_id:
            raise StorageError(
                f"{existing.directory} belongs to topic id {existing.topic_id}, "
                f"not to {topic_id}: delete that one first"
            )
        return existing

    def delete(self, topic: str, partition: int) -> bool:
        """Remove a partition's log. Blocks. Return False if there is none.

        After an error the log still exists (closed), or its files are removed and only the
        checkpoints could not be written.
        """
        log = self.get(topic, partition)
        if log is None:
            return False
        renamed = rename_log(log, self._sync_names)
        self._open.remove((topic, partition))
        self._remove_renamed(renamed)
        return True

    def discard(self, failure: OpenFailure) -> None:
        """Remove a directory that could not be opened. Blocks."""
        key = (failure.topic, failure.partition)
        renamed = rename_as_deleted(failure.directory, *key)
        self._sync_names()
        self._open.remove(key)
        self._remove_renamed(renamed)

    # -- logs that are set aside -------------------------------------------------------------

    def give_up(self, log: PartitionLog, reason: str) -> None:
        """Close an open log that failed and lacks records; its files stay.

        It then counts as a log that could not be opened, so that :meth:`set_aside` can replace it.
        """
        log.close_files()
        failure = OpenFailure(
            topic=log.topic,
            partition=log.partition,
            topic_id=log.topic_id,
            directory=log.directory,
            reason=reason,
            misses_records=True,
        )
        # In one step, so that no thread sees the log as neither open nor failed.
        with self._open.changed:
            self._open.by_key.pop(log.key, None)
            self._open.failures[log.key] = failure

    def set_aside(self, failure: OpenFailure) -> None:
        """Durably rename the directory of a log that cannot be opened, so that a new log can be
        created in its place. Blocks. The directory is kept until :meth:`remove_strays`."""
        topic, partition, directory = failure.topic, failure.partition, failure.directory
        topic_id = read_topic_id(directory)
        stray = rename_as_stray(directory, topic, partition)
        self._sync_names()
        self._open.remove((topic, partition))
        former = self._strays.get((topic_id, partition), [])
        self._strays[topic_id, partition] = [stray]
        logger.warning("%s is set aside as %s, to be copied from its leader", directory, stray)
        # Only the newest stray of a replica is kept, to bound the disk space.
        for path in former:
            shutil.rmtree(path, ignore_errors=True)

    def _register_stray(self, path: Path, partition: int) -> None:
        try:
            self._strays.setdefault((read_topic_id(path), partition), []).append(path)
        except StorageError as error:
            logger.warning("%s is kept, because its topic id cannot be read: %s", path, error)

    def strays(self) -> dict[tuple[uuid.UUID, int], tuple[Path, ...]]:
        """Return the directories that were set aside, by topic id and partition."""
        return {key: tuple(paths) for key, paths in tuple(self._strays.items())}

    def remove_strays(self, topic_id: uuid.UUID, partition: int) -> None:
        """Delete the directories that were set aside for a replica. Blocks."""
        for path in self._strays.pop((topic_id, partition), []):
            logger.info("%s is removed", path)
            shutil.rmtree(path, ignore_errors=True)

    def _remove_renamed(self, renamed: Path) -> None:
        """Remove the files even if the checkpoints cannot be written: on a full disk that frees
        space.
        """
        try:
            self.checkpoint()
        finally:
            remove_renamed(renamed)

    # -- checkpoints -------------------------------------------------------------------------

    def record_log_starts(self, logs: Iterable[PartitionLog]) -> None:
        """Persist the logs' starts; see :meth:`LogCheckpoints.record_starts`. Blocks."""
        self._checkpoints.record_starts(logs)

    def checkpoint(self) -> None:
        """Persist the checkpoints of all logs; see :meth:`LogCheckpoints.save`. Blocks."""
        self._checkpoints.save()

    def _sync_directory(self) -> None:
        with storage_errors(f"{self.directory} cannot be synced"):
            sync_directory(self.directory)

    async def close(
        self,
        broker_epoch: int = UNKNOWN_BROKER_EPOCH,
        in_thread: InThread = asyncio.to_thread,
    ) -> bool:
        """Flush and close all logs, in threads. Return whether the shutdown was clean.

        Only then the clean shutdown marker is written, with ``broker_epoch``, the epoch of this
        run's registration. Otherwise the next start checks all logs. ``in_thread`` runs a blocking
        call.
        """
        if self._lock_descriptor is None:
            return False
        try:
            # A log that never opened may lack records, so the shutdown is not clean.
            clean = await _close_logs(self.logs(), in_thread) and not self.failures
            await in_thread(self._write_last, broker_epoch if clean else None)
        finally:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
        return clean

    def _write_last(self, clean_broker_epoch: int | None) -> None:
        self.checkpoint()
        if clean_broker_epoch is not None:
            mark_clean_shutdown(self.directory, clean_broker_epoch)


async def _close_logs(logs: Iterable[PartitionLog], in_thread: InThread) -> bool:
    """Close all logs; return whether all succeeded. A failure does not stop the others.

    Returns, or raises unexpected exceptions, only when no thread works on a log any more.
    """
    # The workers share one iterator: each takes the next log when it is done.
    remaining = iter(logs)

    async def close_in_turn() -> bool:
        results = [await in_thread(_close, log) for log in remaining]
        return all(results)

    ends = await asyncio.gather(
        *(close_in_turn() for _ in range(CLOSED_AT_ONCE_MAX)), return_exceptions=True
    )
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return all(ends)


def _close(log: PartitionLog) -> bool:
    try:
        flushing.close(log)
    except LogError as error:
        logger.warning("%s: %s", log.directory, error)
        return False
    return True


# -- removal of a directory ------------------------------------------------------------------------


def rename_as_deleted(directory: Path, topic: str, partition: int) -> Path:
    """Rename a directory as deleted; return the new name, which is not synced yet. Blocks."""
    target = directory.with_name(names.deleted_directory_name(topic, partition, uuid.uuid4()))
    with storage_errors(f"{directory} cannot be removed"):
        directory.rename(target)
    return target


def rename_as_stray(directory: Path, topic: str, partition: int) -> Path:
    """Rename a directory that another one replaces; return the new name, not yet synced. Blocks."""
    target = directory.with_name(names.stray_directory_name(topic, partition, uuid.uuid4()))
    with storage_errors(f"{directory} cannot be set aside"):
        directory.rename(target)
    return target


def rename_log(log: PartitionLog, sync_parent: Callable[[], None] | None) -> Path:
    """Close a log and rename its directory as deleted; return the new path. Blocks.

    The new name is durable on return. After a failure the call may be repeated.
    """
    log.close_files()
    log.directory = rename_as_deleted(log.directory, log.topic, log.partition)
    sync_parent_of(log.directory, sync_parent)
    return log.directory


def remove_renamed(directory: Path) -> None:
    """Remove a directory that was renamed. Blocks."""
    with storage_errors(f"{directory} cannot be removed"):
        shutil.rmtree(directory)
