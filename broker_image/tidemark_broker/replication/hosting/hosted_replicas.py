"""The replicas that are here, by id and by name, and a lock for each name."""

import asyncio
import uuid
import weakref

from tidemark_broker.lock_order import LockRank, ordered_async_lock
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.types import TopicIdPartition, TopicPartition

AT_ONCE = 8


class Hosted:
    """The loop thread owns it."""

    def __init__(self) -> None:
        self.by_key: dict[TopicIdPartition, Partition] = {}
        self.by_topic: dict[uuid.UUID, dict[int, Partition]] = {}
        self.by_name: dict[TopicPartition, Partition] = {}
        #: Bounds how many logs are made or opened at a time.
        self.at_work = asyncio.Semaphore(AT_ONCE)
        self._locks: weakref.WeakValueDictionary[TopicPartition, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    def lock(self, tp: TopicPartition) -> asyncio.Lock:
        """Held while the replica of that name is made, opened again or removed."""
        return self._locks.setdefault(tp, ordered_async_lock(LockRank.REPLICA_NAME))

    def add(self, partition: Partition) -> None:
        """It is here."""
        self.by_key[partition.topic_id, partition.partition] = partition
        self.by_topic.setdefault(partition.topic_id, {})[partition.partition] = partition
        self.by_name[partition.tp] = partition

    def drop(self, partition: Partition) -> None:
        """It is gone."""
        self.by_key.pop((partition.topic_id, partition.partition), None)
        of_topic = self.by_topic.get(partition.topic_id, {})
        of_topic.pop(partition.partition, None)
        if not of_topic:
            self.by_topic.pop(partition.topic_id, None)
        self.by_name.pop(partition.tp, None)
