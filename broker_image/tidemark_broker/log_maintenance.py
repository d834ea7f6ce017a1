"""What is done to every hosted log now and then: checkpoints, flushing, retention.

All of it blocks, so it runs in threads. A disk that refuses is reported and tried again; nothing
here ends the broker once it runs.
"""

import asyncio
import logging
from collections.abc import Callable

from tidemark_broker.flush_ages import FlushAges
from tidemark_broker.log import StorageError
from tidemark_broker.purgatory import Change
from tidemark_broker.replication.hosting.log_directory import LogDirectory
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.partition import Partition, log_start
from tidemark_broker.replication.threads import in_thread

logger = logging.getLogger(__name__)


class Upkeep:
    """The loop thread owns it."""

    def __init__(self, log_directory: LogDirectory, manager: ReplicaManager) -> None:
        self._log_directory = log_directory
        self._manager = manager
        self._failed: set[Partition] = set()
        self._flush_ages = FlushAges()

    async def checkpoint(self) -> None:
        """Write recovery points, high watermarks and log starts; wake who waits for a log start."""
        await self._log_directory.checkpoint()
        for partition in self._manager.partitions:
            log_start.after_checkpoint(partition)

    async def flush(self) -> None:
        """Make durable what ``flush.messages`` and ``flush.ms`` ask for, and closed segments, so
        that recovery has little to read."""
        unflushed = [each for each in self._manager.partitions if each.log.is_unflushed]
        logs = {each.tp: each.log for each in unflushed}
        overdue = self._flush_ages.overdue(logs, asyncio.get_running_loop().time())
        due = [each for each in unflushed if each.log.needs_flush or each.tp in overdue]
        for partition in due:
            if not partition.removed:
                await self._guarded(partition, partition.log.flush)

    async def expire_producers(self, idle_ms: int) -> None:
        """Forget producers that wrote nothing for so long."""
        for partition in self._manager.partitions:
            partition.log.expire_producers(partition.context.wall_ms(), idle_ms)
            await asyncio.sleep(0)

    async def apply_retention(self) -> None:
        """Let go of what each topic's configuration and the state of its tiering allow."""
        for partition in self._manager.partitions:
            if not partition.removed and partition.row is not None:
                await self._retain(partition)

    async def _retain(self, partition: Partition) -> None:
        if partition.tiering.ever_tiered:
            try:
                await partition.write_changes()
            except StorageError as error:  # retention then uses the state in the file
                logger.info("%s: its state file is not up to date: %s", partition.tp, error)
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
            partition.context.checkpoint_log_start(partition)

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
                self._failed.add(partition)
                partition.storage_failed(error)
            return
        if partition in self._failed:
            self._failed.discard(partition)
            context.failures.succeeded(partition.tp)


def _tier_available(partition: Partition) -> bool:
    remote = partition.context.remote
    return remote is not None and not remote.status().error
