"""Log directory of the broker: its logs and their checkpoints. Nearly all functions block.

A failing disk is reported and retried; nothing here ends a running broker.
"""

import asyncio
import logging
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tidemark.configuration.layers import effective
from tidemark_broker.config import BrokerConfig
from tidemark_broker.config_entries import ConfigError
from tidemark_broker.log import (
    LogConfig,
    LogManager,
    OpenFailure,
    PartitionLog,
    StorageError,
    probe_room,
    read_state,
    write_state,
)
from tidemark_broker.replication.partition import Partition, log_start
from tidemark_broker.replication.partition.state_file import StoredState, from_json, to_json
from tidemark_broker.replication.partition.storage_failures import StorageFailures
from tidemark_broker.replication.threads import in_role_thread, in_thread
from tidemark_broker.replication.types import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
#: A disk that was full counts as usable when it takes a batch of the largest usual size.
_ROOM_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FoundLog:
    """Open log and the state in its directory, None if that is unreadable.

    ``whole``: it was closed cleanly and has every byte.
    """

    log: PartitionLog
    state: StoredState | None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class UnopenedLog:
    """Log that was found at the start and does not open.

    ``topic_id`` is None if not even that is readable.
    """

    tp: TopicPartition
    topic_id: uuid.UUID | None


class LogDirectory:
    """Kafka's log directory, created by :meth:`open`.

    Disk operations raise :class:`StorageError`.
    """

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self._found = [
            FoundLog(log, _state_of(log), logs.clean_shutdown and not log.truncated_at_open)
            for log in logs.logs()
        ]
        #: Reasons why directories were set aside since this process started.
        self._reasons: dict[tuple[uuid.UUID | None, int], str] = {}
        self._waiting: list[tuple[Partition, asyncio.Future[None]]] = []
        self._requested = asyncio.Event()
        self._checkpoint_error = ""
        self._probe_error = ""
        self.failures = StorageFailures()

    @classmethod
    def open(cls, config: BrokerConfig) -> Self:
        """Lock the directory and recover every log (blocking).

        Raises :class:`StorageError` if the directory is another broker's or in use,
        :class:`ConfigError` for defaults that cannot be parsed.
        """
        try:
            # Topic configurations arrive with the first snapshot; until then the broker's apply.
            defaults = LogConfig.of(effective(config.entries))
        except ValueError as error:
            raise ConfigError(str(error)) from error
        logs = LogManager.open(
            config.log_dir,
            node_id=config.node_id,
            cluster_id=config.cluster_id,
            producers_max=config.integer("tidemark.producer.ids.max"),
        )
        logs.open_all(lambda _: defaults)
        return cls(logs)

    # ------------------------------------------------------------ what it is

    @property
    def directory_id(self) -> uuid.UUID:
        """Id of the directory; another id means that the data was lost."""
        return self._logs.directory_id

    @property
    def clean_broker_epoch(self) -> int:
        """Broker epoch of a run that ended cleanly, else -1."""
        epoch = self._logs.previous_broker_epoch
        return -1 if epoch is None else epoch

    @property
    def log_count(self) -> int:
        """Number of logs, including those that do not open."""
        return len(self._logs.logs()) + len(self._logs.failures)

    def directory_error(self) -> str:
        """Return the error of the directory as a whole.

        Failures of single replicas' files are excluded.
        """
        return self._checkpoint_error or (self._probe_error if self.failures.count else "")

    def error(self) -> str:
        """Return the error of the disk or of replicas' files for BrokerStatus, empty without
        one.
        """
        if self._checkpoint_error:
            return self._checkpoint_error
        if self._logs.failures:
            failure = self._logs.failures[0]
            return f"{failure.topic}-{failure.partition} cannot be opened: {failure.reason}"
        return self.failures.summary()

    def found(self) -> list[FoundLog]:
        """Return the logs that were found at the start, with their stored states.

        Later calls return none.
        """
        found, self._found = self._found, []
        return found

    # ------------------------------------------------------------ logs

    def create(
        self,
        *,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
        config: LogConfig,
        state: StoredState,
    ) -> PartitionLog:
        """Create an empty, durable log for a replica, or return the existing one (blocking).

        Its directory contains ``partition.metadata`` and ``partition.state`` from the start.
        """
        # The state is in the directory from the start, so that no crash leaves a log without it.
        return self._logs.create(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            config=config,
            state=to_json(state),
        )

    def delete(self, log: PartitionLog) -> None:
        """Remove a log and its directory (blocking)."""
        self._logs.delete(log.topic, log.partition)

    def unopened(self) -> list[UnopenedLog]:
        """Return the logs that were found at the start and do not open."""
        return [
            UnopenedLog(TopicPartition(failure.topic, failure.partition), failure.topic_id)
            for failure in self._logs.failures
        ]

    def state_of(self, unopened: UnopenedLog) -> StoredState | None:
        """Return the stored state of an unopened log (blocking)."""
        failure = self._failure_of(unopened.tp)
        if failure is None or unopened.topic_id is None:
            return None
        return _state_in(failure.directory, unopened.topic_id)

    def retry_opening(self, tp: TopicPartition) -> FoundLog | None:
        """Retry an unopened log (blocking). None if it is not unopened any more."""
        failure = self._failure_of(tp)
        if failure is None:
            return None
        log = self._logs.retry_opening(*tp)
        if log is None:
            failure = self._failure_of(tp) or failure
            raise StorageError(f"{failure.directory} cannot be opened: {failure.reason}")
        logger.info("%s could be opened, its end is %d", log.directory, log.next_offset)
        return FoundLog(log, _state_of(log))

    def probe(self) -> None:
        """Probe for disk space: write a file durably and remove it (blocking).

        All logs are on one disk.
        """
        try:
            probe_room(self._logs.directory, _ROOM_BYTES)
        except StorageError as error:
            self._probe_error = str(error)
            raise
        self._probe_error = ""

    def discard(self, tp: TopicPartition) -> None:
        """Remove the directory of an unopened log (blocking)."""
        failure = self._failure_of(tp)
        if failure is not None:
            self._logs.discard(failure)

    def misses_records(self, tp: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Return whether it is a failed log of that topic whose records are missing or damaged,
        so that only another replica can help.
        """
        failure = self._failure_of(tp)
        return failure is not None and failure.misses_records and failure.topic_id == topic_id

    def set_aside(self, tp: TopicPartition) -> None:
        """Rename the directory of a failed log (blocking)."""
        failure = self._failure_of(tp)
        if failure is not None:
            self._logs.set_aside(failure)
            self._reasons[failure.topic_id, failure.partition] = failure.reason

    def give_up(self, log: PartitionLog, reason: str) -> None:
        """Count an open log that failed and lacks records as a failed log from now on."""
        self._logs.give_up(log, reason)

    def strays(self) -> dict[TopicIdPartition, str]:
        """Return replicas whose former directory is kept, its name, and the reason if known."""
        return {
            key: f"{paths[-1].name}: {self._reasons.get(key, 'set aside before the last start')}"
            for key, paths in self._logs.strays().items()
        }

    def remove_strays(self, key: TopicIdPartition) -> None:
        """Delete the former directories of a replica that is in sync or deleted (blocks)."""
        self._logs.remove_strays(*key)
        self._reasons.pop(key, None)

    def _failure_of(self, tp: TopicPartition) -> OpenFailure | None:
        return next((e for e in self._logs.failures if (e.topic, e.partition) == tp), None)

    async def persist(self, directory: Path, state: StoredState) -> None:
        """Write a replica's state file; durable on return."""
        await in_role_thread(write_state, directory, to_json(state))

    # ------------------------------------------------------------ checkpoints

    def checkpoint_log_start(self, partition: Partition) -> "asyncio.Future[None]":
        """Request that the current log start becomes durable soon; many requests share one
        write.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((partition, future))
        self._requested.set()
        return future

    async def run_log_start_checkpoints(self) -> None:
        """Make requested log start offsets durable, many in one checkpoint, until cancelled.

        The futures of :meth:`checkpoint_log_start` complete once the checkpoint is written.
        """
        while True:
            await self._requested.wait()
            self._requested.clear()
            # All requests so far share one write; those that arrive during it wait for the next.
            batch, self._waiting = self._waiting, []
            try:
                await in_thread(
                    self._logs.record_log_starts, {partition.log for partition, _ in batch}
                )
            except StorageError as error:
                logger.warning("log starts are not durable yet: %s", error)
                # Keep the requests: their futures must not complete before the starts are durable.
                self._waiting += batch
                await asyncio.sleep(_RETRY_S)
                self._requested.set()
                continue
            # The log starts are durable: clients may see them now.
            for partition, future in batch:
                log_start.after_checkpoint(partition)
                if not future.done():
                    future.set_result(None)

    async def checkpoint(self) -> None:
        """Write recovery points, high watermarks and log starts."""
        try:
            await in_thread(self._logs.checkpoint)
        except StorageError as error:
            self._checkpoint_error = str(error)
            raise
        self._checkpoint_error = ""

    # ------------------------------------------------------------ the end

    async def close(self, broker_epoch: int) -> bool:
        """Flush and close everything. Return whether the shutdown was clean."""
        return await self._logs.close(broker_epoch, in_thread)


def _state_of(log: PartitionLog) -> StoredState | None:
    return _state_in(log.directory, log.topic_id)


def _state_in(directory: Path, topic_id: uuid.UUID) -> StoredState | None:
    """Return the stored state of the replica in a directory, None if it is missing or unreadable.

    A replica without it waits for the controller's next snapshot.
    """
    try:
        state = read_state(directory)
        stored = None if state is None else from_json(state)
    except (StorageError, ValueError) as error:
        logger.warning("%s: %s; waiting for the controller's state", directory, error)
        return None
    # A directory name may have been reused; its state must not be.
    if stored is not None and stored.topic_id != topic_id:
        logger.error("%s: partition.state has another topic id and is ignored", directory)
        return None
    return stored
