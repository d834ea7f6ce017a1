"""The broker's disk: one log folder, its checkpoints, flushing and retention, in threads.

A disk that refuses is reported and tried again; nothing here ends the broker once it runs.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tidemark.configuration.layers import effective
from tidemark_broker.config import BrokerConfig, ConfigError
from tidemark_broker.flush_ages import FlushAges
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
from tidemark_broker.purgatory import Change
from tidemark_broker.replication.context import StorageFailures
from tidemark_broker.replication.logs import FoundLog, UnopenedLog
from tidemark_broker.replication.manager import ReplicaManager
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.state_file import StoredState, from_json, to_json
from tidemark_broker.replication.threads import in_role_thread, in_thread
from tidemark_broker.replication.types import TopicPartition

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
#: A disk that was full has room again when it takes a batch of the largest usual size.
_ROOM_BYTES = 1024 * 1024


class Storage:
    """Implements the replica manager's :class:`LogStore`; made by :meth:`open`."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self._manager: ReplicaManager | None = None
        self._found: list[FoundLog] = []
        self._waiting: list[tuple[Partition, asyncio.Future[None]]] = []
        self._wanted = asyncio.Event()
        self._checkpoint_error = ""
        self._upkeep_failed: set[Partition] = set()
        self._flush_ages = FlushAges()
        self.failures = StorageFailures()

    @classmethod
    def open(cls, config: BrokerConfig) -> Self:
        """Lock the folder, recover every log (blocks). Raises :class:`StorageError` where the folder
        is another broker's or in use, :class:`ConfigError` for defaults that cannot be read."""
        try:
            defaults = LogConfig.of(effective(config.entries))
        except ValueError as error:
            raise ConfigError(str(error)) from error
        logs = LogManager.open(config.log_dir, node_id=config.node_id, cluster_id=config.cluster_id)
        logs.open_all(lambda _: defaults)
        storage = cls(logs)
        storage._found = [
            FoundLog(log, _state_of(log), logs.clean_shutdown and not log.truncated_at_open)
            for log in logs.logs()
        ]
        return storage

    # ------------------------------------------------------------ what it is

    @property
    def directory_id(self) -> uuid.UUID:
        """The folder's id; another one means that the data is gone."""
        return self._logs.directory_id

    @property
    def clean_broker_epoch(self) -> int:
        """The broker epoch of a run that ended cleanly, else -1."""
        epoch = self._logs.previous_broker_epoch
        return -1 if epoch is None else epoch

    @property
    def log_count(self) -> int:
        """Logs that are here, those that do not open included."""
        return len(self._logs.logs()) + len(self._logs.failures)

    def error(self) -> str:
        """For BrokerStatus: what is wrong with the disk, empty when all is well."""
        if self._checkpoint_error:
            return self._checkpoint_error
        if self._logs.failures:
            failure = self._logs.failures[0]
            return f"{failure.topic}-{failure.partition} cannot be opened: {failure.reason}"
        return self.failures.summary()

    def found(self) -> list[FoundLog]:
        """The logs that were there at the start, with their stored states; given out once."""
        found, self._found = self._found, []
        return found

    def attach(self, manager: ReplicaManager) -> None:
        """The replicas whose logs are looked after."""
        self._manager = manager

    def _partitions(self) -> tuple[Partition, ...]:
        return () if self._manager is None else self._manager.partitions

    # ------------------------------------------------------------ LogStore

    def create(
        self,
        *,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
        config: LogConfig,
        state: StoredState,
    ) -> PartitionLog:
        """A log that may be there already (blocks)."""
        return self._logs.create(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            config=config,
            state=to_json(state),
        )

    def delete(self, log: PartitionLog) -> None:
        """Remove a log and its folder (blocks)."""
        self._logs.delete(log.topic, log.partition)

    def unopened(self) -> list[UnopenedLog]:
        """The logs that were found at the start and do not open."""
        return [
            UnopenedLog(TopicPartition(each.topic, each.partition), each.topic_id)
            for each in self._logs.failures
        ]

    def state_of(self, unopened: UnopenedLog) -> StoredState | None:
        """What the folder of one of them says of it (blocks)."""
        failure = self._failure_of(unopened.tp)
        if failure is None or unopened.topic_id is None:
            return None
        return _state_in(failure.directory, unopened.topic_id)

    def open_again(self, tp: TopicPartition) -> FoundLog | None:
        """Try one of them once more (blocks)."""
        failure = self._failure_of(tp)
        if failure is None:
            return None
        log = self._logs.open_again(*tp)
        if log is None:
            failure = self._failure_of(tp) or failure
            raise StorageError(f"{failure.directory} cannot be opened: {failure.reason}")
        logger.info("%s is open after all, its end is %d", log.directory, log.next_offset)
        return FoundLog(log, _state_of(log))

    def probe(self) -> None:
        """See :class:`LogStore` (blocks). All logs lie on one disk."""
        probe_room(self._logs.directory, _ROOM_BYTES)

    def discard(self, tp: TopicPartition) -> None:
        """Remove one of them (blocks)."""
        failure = self._failure_of(tp)
        if failure is not None:
            self._logs.discard(failure)

    def _failure_of(self, tp: TopicPartition) -> OpenFailure | None:
        return next((e for e in self._logs.failures if (e.topic, e.partition) == tp), None)

    async def persist(self, directory: Path, state: StoredState) -> None:
        """Write a replica's state file; durable on return."""
        await in_role_thread(write_state, directory, to_json(state))

    # ------------------------------------------------------------ checkpoints

    def checkpoint_log_start(self, partition: Partition) -> "asyncio.Future[None]":
        """Have the present log start made durable soon; many requests share one write."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((partition, future))
        self._wanted.set()
        return future

    async def run_log_start_checkpoints(self) -> None:
        """Write whenever somebody waits for it, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            batch, self._waiting = self._waiting, []
            try:
                await in_thread(
                    self._logs.record_log_starts, {partition.log for partition, _ in batch}
                )
            except StorageError as error:
                logger.warning("log starts are not durable yet: %s", error)
                self._waiting += batch
                await asyncio.sleep(_RETRY_S)
                self._wanted.set()
                continue
            for partition, future in batch:
                partition.after_checkpoint()
                if not future.done():
                    future.set_result(None)

    async def checkpoint(self) -> None:
        """Write recovery points, high watermarks and log starts; wake who waits for a log start."""
        try:
            await in_thread(self._logs.checkpoint)
        except StorageError as error:
            self._checkpoint_error = str(error)
            raise
        self._checkpoint_error = ""
        for partition in self._partitions():
            partition.after_checkpoint()

    # ------------------------------------------------------------ now and then

    async def flush(self) -> None:
        """Make durable what ``flush.messages`` and ``flush.ms`` ask for, and closed segments, so that
        recovery has little to read."""
        hosted = {each.tp: each for each in self._partitions() if not each.removed}
        logs = {tp: each.log for tp, each in hosted.items()}
        overdue = self._flush_ages.overdue(logs, asyncio.get_running_loop().time())
        for tp, partition in hosted.items():
            if (partition.log.needs_flush or tp in overdue) and not partition.removed:
                await self._guarded(partition, partition.log.flush)

    async def apply_retention(self) -> None:
        """Let go of what each topic's configuration and the state of its tiering allow."""
        for partition in self._partitions():
            if not partition.removed and partition.row is not None:
                await self._retain(partition)

    async def _retain(self, partition: Partition) -> None:
        if partition.tiering.ever_tiered:
            await partition.write_changes()
        async with partition.retention_lock:
            await self._retain_locked(partition)

    async def _retain_locked(self, partition: Partition) -> None:
        now_ms = partition.context.wall_ms()
        mode = partition.local_retention(tier_available=_tier_available(partition))
        before, active = partition.log_start_offset, partition.log.active_base_offset
        await self._guarded(partition, lambda: partition.log.apply_retention(now_ms, tiered=mode))
        if partition.log.active_base_offset != active:
            partition.context.purgatory.notify((Change.SEGMENT_ROLLED, partition.tp))
        if partition.log_start_offset > before:
            partition.wake_all()
            self.checkpoint_log_start(partition)

    async def _guarded(self, partition: Partition, work: Callable[[], object]) -> None:
        """One partition's disk trouble must not keep the others waiting."""
        context = partition.context
        if partition.log.failure is not None:
            return  # until it was opened again
        if not context.failures.may_try(partition.tp, context.monotonic()):
            return
        try:
            await in_thread(work)
        except StorageError as error:
            if not partition.removed:
                self._upkeep_failed.add(partition)
                partition.storage_failed(error)
            return
        if partition in self._upkeep_failed:
            self._upkeep_failed.discard(partition)
            context.failures.succeeded(partition.tp)

    def close(self, broker_epoch: int) -> bool:
        """Flush and close everything; was it clean (blocks)?"""
        return self._logs.close(broker_epoch)


def _tier_available(partition: Partition) -> bool:
    remote = partition.context.remote
    return remote is not None and not remote.status().error


def _state_of(log: PartitionLog) -> StoredState | None:
    return _state_in(log.directory, log.topic_id)


def _state_in(directory: Path, topic_id: uuid.UUID) -> StoredState | None:
    """A state file that cannot be read is as good as none: epochs come with the next snapshot."""
    try:
        state = read_state(directory)
        stored = None if state is None else from_json(state)
    except (StorageError, ValueError) as error:
        logger.warning("%s: %s; waiting for the controller's state", directory, error)
        return None
    if stored is not None and stored.topic_id != topic_id:
        logger.error("%s: partition.state is of another topic id; ignored", directory)
        return None
    return stored
