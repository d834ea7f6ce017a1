"""Periodic maintenance of every hosted log: checkpoints, flushing, retention.

All of it blocks, so it runs in threads. A storage failure is reported and the work is repeated
later. No failure here ends a running broker.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from tidemark.configuration.values import INT64_MAX
from tidemark_broker.log import LogConfig, PartitionLog, StorageError, flushing, retention
from tidemark_broker.purgatory import PartitionChange
from tidemark_broker.replication.hosting.log_directory import LogDirectory
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.partition import Partition, log_start
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.replication.types import TopicPartition

# ------------------------------------------------------------ flush.ms

# Age of the unflushed records of each log, for ``flush.ms``.
#
# A log does not record append times, only its recovery point. The age of unflushed records is
# counted from the first look that found them, so it is too small by at most the interval between
# two looks.


class Flushable(Protocol):
    """Properties of a log that decide whether a flush is due. Offsets are exclusive."""

    config: LogConfig

    @property
    def recovery_point(self) -> int:
        """End of the durable part of the log."""

    @property
    def next_offset(self) -> int:
        """Offset of the next record."""


class FlushAges:
    """Start of the waiting time of each log's unflushed records. Used from the loop thread only."""

    def __init__(self) -> None:
        #: Recovery point and time in seconds at which records above it were first seen unflushed.
        self._since: dict[TopicPartition, tuple[int, float]] = {}

    def overdue(
        self, logs: Mapping[TopicPartition, Flushable], now_s: float
    ) -> frozenset[TopicPartition]:
        """Return the logs that must be flushed now, because records have waited for ``flush.ms``.

        Called periodically with all logs. A log that is not in ``logs`` is forgotten.
        """
        since: dict[TopicPartition, tuple[int, float]] = {}
        for tp, log in logs.items():
            if log.config.flush_ms == INT64_MAX:
                continue  # Kafka's default: leave flushing to the operating system
            point = log.recovery_point
            if point < log.next_offset:
                # The time continues as long as the recovery point is unchanged since the last call.
                # If a flush has moved it, the age of what is still unflushed restarts.
                known_point, began_s = self._since.get(tp, (-1, now_s))
                since[tp] = (point, began_s if known_point == point else now_s)
        self._since = since
        return frozenset(
            tp
            for tp, (_, began_s) in since.items()
            if (now_s - began_s) * 1000 >= logs[tp].config.flush_ms
        )


logger = logging.getLogger(__name__)


class LogMaintenance:
    """Maintenance jobs over all hosted logs. Used from the loop thread only."""

    def __init__(self, log_directory: LogDirectory, manager: ReplicaManager) -> None:
        self._log_directory = log_directory
        self._manager = manager
        #: Partitions whose last maintenance failed, so that a success is reported once.
        self._failed: set[Partition] = set()
        self._flush_ages = FlushAges()

    async def checkpoint(self) -> None:
        """Write recovery points, high watermarks and log starts, then wake those who wait for a
        log start.
        """
        await self._log_directory.checkpoint()
        for partition in self._manager.partitions:
            log_start.after_checkpoint(partition)

    async def flush(self) -> None:
        """Flush logs that exceed ``flush.messages`` or ``flush.ms``, and closed segments.

        Flushed segments shorten the recovery after a crash.
        """
        unflushed = [
            partition for partition in self._manager.partitions if partition.log.is_unflushed
        ]
        logs = {partition.tp: partition.log for partition in unflushed}
        overdue = self._flush_ages.overdue(logs, asyncio.get_running_loop().time())
        due = [
            partition
            for partition in unflushed
            if flushing.needs_flush(partition.log) or partition.tp in overdue
        ]
        for partition in due:
            # Each flush awaits a thread. Meanwhile partitions that follow may have been removed.
            if not partition.removed:
                await self._guarded(partition, flushing.flush)

    async def expire_producers(self, idle_ms: int) -> None:
        """Forget producers that have not written for ``idle_ms``."""
        for partition in self._manager.partitions:
            partition.log.expire_producers(partition.context.wall_ms(), idle_ms)
            # Yield between logs so that a broker with many logs keeps serving.
            await asyncio.sleep(0)

    async def apply_retention(self) -> None:
        """Delete segments as each topic's retention and the state of its tiering allow."""
        for partition in self._manager.partitions:
            if not partition.removed and partition.row is not None:
                await self._retain(partition)
                # Yield between logs: most need no thread, so nothing else yields.
                await asyncio.sleep(0)

    async def _retain(self, partition: Partition) -> None:
        # Retention of a tiered log reads partition.state, so pending changes are written first.
        if partition.tiering.ever_tiered:
            try:
                await partition.write_changes()
            except StorageError as error:  # retention then uses the state in the file
                logger.info("%s: its state file is not up to date: %s", partition.tp, error)
        async with partition.retention_lock:
            await self._retain_locked(partition)

    async def _retain_locked(self, partition: Partition) -> None:
        now_ms = partition.context.wall_ms()
        # Segments that are not in the tier yet must stay while the tier is unavailable.
        mode = partition.local_retention(tier_available=_tier_available(partition))
        # In most runs nothing is due, which needs no thread. A reported failure ends only with a
        # successful call, though.
        if partition not in self._failed and not retention.may_be_due(
            partition.log, now_ms, tiered=mode
        ):
            return
        before, active = partition.log_start_offset, partition.log.active_base_offset
        await self._guarded(
            partition, lambda log: retention.apply_retention(log, now_ms, tiered=mode)
        )
        # The copier waits for rolled segments, which are the ones it may copy.
        if partition.log.active_base_offset != active:
            partition.context.purgatory.notify((PartitionChange.SEGMENT_ROLLED, partition.tp))
        # Fetches below the new log start must fail now instead of at their time-out.
        if partition.log_start_offset > before:
            partition.wake_all()
            partition.context.checkpoint_log_start(partition)

    async def _guarded(self, partition: Partition, work: Callable[[PartitionLog], object]) -> None:
        """Run blocking ``work`` on a partition's log in a thread, and report a storage failure.

        Never raises :class:`StorageError`, so that a failing disk of one partition does not stop
        the maintenance of the others.
        """
        context = partition.context
        if partition.log.failure is not None:
            return  # a failed log is unusable until it is reopened
        # A failed partition is retried with back-off, so a broken disk is not hit every second.
        if not context.failures.may_try(partition.tp, context.monotonic()):
            return
        try:
            await in_thread(work, partition.log)
        except StorageError as error:
            if not partition.removed:
                self._failed.add(partition)
                partition.storage_failed(error)
            return
        if partition in self._failed:
            self._failed.discard(partition)
            context.failures.succeeded(partition.tp)


def _tier_available(partition: Partition) -> bool:
    remote = partition.context.remote
    return remote is not None and not remote.status().error
