"""Tasks of elected leaders that query the tier first; nothing else waits for the tier."""

import asyncio
from collections.abc import Iterable

from tidemark_broker.replication.partition import Partition, Role, takeover
from tidemark_broker.replication.types import TopicPartition

AT_ONCE = 8


class TakeoverTasks:
    """Takeovers in progress, owned by the loop thread.

    At most :data:`AT_ONCE` replicas query the store at a time.
    """

    def __init__(self) -> None:
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)

    def begin(self, partition: Partition) -> None:
        """Start an attempt, if the replica waits for the tier and none is in progress."""
        if partition.role is Role.TAKING_OVER and partition.tp not in self._tasks:
            task = asyncio.create_task(self._once(partition))
            self._tasks[partition.tp] = task
            task.add_done_callback(lambda _: self._tasks.pop(partition.tp))

    async def _once(self, partition: Partition) -> None:
        async with self._limit:
            await takeover.take_over(partition)

    def cancel(self) -> Iterable[asyncio.Task[None]]:
        """Cancel all attempts; return the tasks to await."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        return tasks
