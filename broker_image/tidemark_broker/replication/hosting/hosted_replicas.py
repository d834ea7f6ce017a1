"""Registry of hosted replicas by id and by name, with a lock for each name."""

import asyncio
import uuid
import weakref

from tidemark_broker.lock_order import LockRank, ordered_async_lock
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.types import TopicIdPartition, TopicPartition

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
        self.by_key.pop((partition.topic_id, partition.partition), None)
        of_topic = self.by_topic.get(partition.topic_id, {})
        of_topic.pop(partition.partition, None)
        if not of_topic:
            self.by_topic.pop(partition.topic_id, None)
        self.by_name.pop(partition.tp, None)
