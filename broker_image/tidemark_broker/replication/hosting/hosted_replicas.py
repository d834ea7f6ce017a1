"""Registry of hosted replicas by id and by name, with a lock for each name, and takeovers.

A takeover is the task of an elected leader that queries the tier first; nothing else waits for the
tier.
"""

import asyncio
import uuid
import weakref

from tidemark_broker.lock_order import LockRank, ordered_async_lock
from tidemark_broker.replication.partition import Partition, Role, takeover
from tidemark_broker.replication.types import TopicIdPartition, TopicPartition
from tidemark_broker.tasks import cancel

AT_ONCE = 8


class Hosted:
    """Hosted replicas, owned by the loop thread."""

    def __init__(self) -> None:
        self.by_key: dict[TopicIdPartition, Partition] = {}
        self.by_topic: dict[uuid.UUID, dict[int, Partition]] = {}
        self.by_name: dict[TopicPartition, Partition] = {}
        #: Limits the number of logs that are created or opened at a time.
        self.at_work = asyncio.Semaphore(AT_ONCE)
        self._locks: weakref.WeakValueDictionary[TopicPartition, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    def lock(self, tp: TopicPartition) -> asyncio.Lock:
        """Return the lock held while the replica of that name is created, reopened or removed."""
        return self._locks.setdefault(tp, ordered_async_lock(LockRank.REPLICA_NAME))

    def add(self, partition: Partition) -> None:
        """Register a hosted replica."""
        self.by_key[partition.topic_id, partition.partition] = partition
        self.by_topic.setdefault(partition.topic_id, {})[partition.partition] = partition
        self.by_name[partition.tp] = partition

    def drop(self, partition: Partition) -> None:
        """Unregister a replica that was removed or given up."""
        self.by_key.pop(partition.key, None)
        of_topic = self.by_topic.get(partition.topic_id, {})
        of_topic.pop(partition.partition, None)
        if not of_topic:
            self.by_topic.pop(partition.topic_id, None)
        self.by_name.pop(partition.tp, None)


# ------------------------------------------------------------ takeovers

TAKEOVERS_AT_ONCE = 8


class TakeoverTasks:
    """Takeovers in progress, owned by the loop thread.

    At most :data:`TAKEOVERS_AT_ONCE` replicas query the store at a time.
    """

    def __init__(self) -> None:
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._limit = asyncio.Semaphore(TAKEOVERS_AT_ONCE)

    def begin(self, partition: Partition) -> None:
        """Start an attempt, if the replica waits for the tier and none is in progress."""
        if partition.role is Role.TAKING_OVER and partition.tp not in self._tasks:
            task = asyncio.create_task(self._once(partition))
            self._tasks[partition.tp] = task
            task.add_done_callback(lambda _: self._tasks.pop(partition.tp))

    async def _once(self, partition: Partition) -> None:
        async with self._limit:
            await takeover.take_over(partition)

    async def close(self) -> None:
        await cancel(self._tasks.values())
