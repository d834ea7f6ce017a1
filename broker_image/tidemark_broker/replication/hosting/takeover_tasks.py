"""Elected leaders that ask the tier first, each in a task of its own: nobody waits for the tier."""

import asyncio
from collections.abc import Iterable

from tidemark_broker.replication.partition import Partition, Role, takeover
from tidemark_broker.replication.types import TopicPartition

AT_ONCE = 8


class TakeOvers:
    """The loop thread owns it. At most :data:`AT_ONCE` replicas ask the store at a time."""

    def __init__(self) -> None:
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)

    def begin(self, partition: Partition) -> None:
        """One try, where the replica waits for the tier and none is under way."""
        if partition.role is Role.TAKING_OVER and partition.tp not in self._tasks:
            task = asyncio.create_task(self._once(partition))
            self._tasks[partition.tp] = task
            task.add_done_callback(lambda _: self._tasks.pop(partition.tp))

    async def _once(self, partition: Partition) -> None:
        async with self._limit:
            await takeover.take_over(partition)

    def cancel(self) -> Iterable[asyncio.Task[None]]:
        """End all of them; what is to be awaited."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        return tasks
