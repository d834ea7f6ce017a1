"""Background writer of state files that follow the state in effect, a few at a time.

Most of a replica's state is durable before it takes effect (persist before acting). Two parts are
not: the row of an AlterPartition answer, which the controller has persisted already, and the end of
the tier as it advances. Their file follows in the background, so that no fetch and no other answer
waits for an fsync. Code that must rely on the disk uses the durable values. However often a replica
changes, it is queued once, so the disk's speed bounds the writes.
"""

import asyncio
import logging
from typing import Protocol

from tidemark_broker.log import StorageError
from tidemark_broker.replication.types import TopicPartition

logger = logging.getLogger(__name__)

_AT_ONCE = 4
_RETRY_S = 1.0


class Replica(Protocol):
    """Replica with a state file."""

    tp: TopicPartition

    async def write_changes(self) -> None:
        """Write the current state. Raises :class:`StorageError`."""

    def storage_failed(self, error: BaseException) -> None:
        """Record a failure of the replica's disk."""


class StateWriter:
    """Queue of replicas, owned by the loop thread.

    ``retry_s``: pause before a failed write is retried.
    """

    def __init__(self, retry_s: float = _RETRY_S) -> None:
        self._retry_s = retry_s
        self._waiting: dict[Replica, None] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._retries: dict[Replica, asyncio.TimerHandle] = {}
        self._closed = False

    def soon(self, replica: Replica) -> None:
        """Queue a write of the replica's current state."""
        if self._closed:
            return
        self._waiting[replica] = None
        # A few fsyncs at once are as fast as a disk gets.
        if len(self._workers) < _AT_ONCE:
            task = asyncio.get_running_loop().create_task(self._work(), name="state files")
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)

    async def written(self) -> None:
        """Wait until every file was written, or has failed and will be retried."""
        while self._workers:
            await asyncio.wait(self._workers)

    async def close(self) -> None:
        """Write the queued states, then nothing more."""
        self._closed = True
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()
        await self.written()

    async def _work(self) -> None:
        while self._waiting:
            replica = next(iter(self._waiting))
            del self._waiting[replica]
            try:
                await replica.write_changes()
            except StorageError as error:
                replica.storage_failed(error)
                self._again_later(replica)
            except Exception:
                logger.exception("%s: its state file cannot be written", replica.tp)

    def _again_later(self, replica: Replica) -> None:
        if not self._closed and replica not in self._retries:
            loop = asyncio.get_running_loop()
            # The replica is queued once, however often it changes meanwhile.
            self._retries[replica] = loop.call_later(self._retry_s, self._retry, replica)

    def _retry(self, replica: Replica) -> None:
        del self._retries[replica]
        self.soon(replica)
