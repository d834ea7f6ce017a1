"""State files that follow what is in force: written soon, a few at a time, nobody waits for them.

Most of what a replica remembers is durable before it is in force (persist before acting). Two
things are not: the row that an AlterPartition answer brings, which is in the slices already, and
the end of the tier as it advances. Their file follows in the background, so that no fetch and no
other answer stands behind an fsync; whatever must not rely on more than the disk has asks for what
is durable. However often a replica changes, it waits here once, so the writes are bounded by what
the disk takes.
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
    """Whose file follows."""

    tp: TopicPartition

    async def write_changes(self) -> None:
        """Have the file say what is in force; raises :class:`StorageError`."""

    def storage_failed(self, error: BaseException) -> None:
        """Its disk refused."""


class StateWriter:
    """The loop thread owns it. ``retry_s``: pause before a write that failed is tried again."""

    def __init__(self, retry_s: float = _RETRY_S) -> None:
        self._retry_s = retry_s
        self._waiting: dict[Replica, None] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._retries: dict[Replica, asyncio.TimerHandle] = {}
        self._closed = False

    def soon(self, replica: Replica) -> None:
        """Have the file say what is in force."""
        if self._closed:
            return
        self._waiting[replica] = None
        if len(self._workers) < _AT_ONCE:
            task = asyncio.get_running_loop().create_task(self._work(), name="state files")
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)

    async def written(self) -> None:
        """Until every file was written, or has failed and is tried again later."""
        while self._workers:
            await asyncio.wait(self._workers)

    async def close(self) -> None:
        """Write what waits, then nothing more."""
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
            self._retries[replica] = loop.call_later(self._retry_s, self._retry, replica)

    def _retry(self, replica: Replica) -> None:
        del self._retries[replica]
        self.soon(replica)
