"""Removal of replicas: role, tasks, log, in this order.

A failed removal is reported as an error, and the controller repeats it until it succeeds.
"""

import logging
import uuid
from collections.abc import Awaitable, Collection, Iterable

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark_broker.log import StorageError
from tidemark_broker.replication.following.fetchers import Fetchers
from tidemark_broker.replication.hosting.hosted_replicas import Hosted
from tidemark_broker.replication.hosting.log_directory import LogDirectory, UnopenedLog
from tidemark_broker.replication.partition import Partition, ReplicaContext, roles
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.replication.types import TopicIdPartition, TopicPartition


class Removals:
    """Removals of one message, for one broker.

    Absence is no reason to delete. Only a tombstone of the topic's id, or a newer partition epoch
    without this broker, removes a replica.
    """

    def __init__(self, removals: Iterable[control.Removal], node_id: int) -> None:
        self._by_topic: dict[uuid.UUID, list[control.Removal]] = {}
        for removal in removals:
            self._by_topic.setdefault(removal.topic_id, []).append(removal)
        self._node_id = node_id

    @property
    def topic_ids(self) -> Collection[uuid.UUID]:
        """Ids of the topics with removals."""
        return self._by_topic.keys()

    def name(self, key: TopicIdPartition) -> bool:
        """Return whether any removal names the replica (partition -1: every one of the topic)."""
        return any(_names(item, key) for item in self._by_topic.get(key[0], ()))

    def take(self, key: TopicIdPartition, row: control.PartitionState | None) -> bool:
        """Return whether the replica must be removed.

        ``row`` is its last state, None if unknown.
        """
        return any(_takes(item, key, row, self._node_id) for item in self._by_topic.get(key[0], ()))


def _names(removal: control.Removal, key: TopicIdPartition) -> bool:
    return removal.topic_id == key[0] and removal.partition in (-1, key[1])


def _takes(
    removal: control.Removal,
    key: TopicIdPartition,
    row: control.PartitionState | None,
    node_id: int,
) -> bool:
    """Return whether one removal of the controller removes this broker's replica.

    ``row``: the replica's last known state, None if unknown.
    """
    if not _names(removal, key):
        return False
    # A tombstone removes every replica of the topic id.
    if removal.partition < 0:
        return True
    # A newer epoch without this broker is a completed reassignment.
    known_epoch = -1 if row is None else row.partition_epoch
    if removal.partition_epoch > known_epoch:
        return True
    # The same epoch: the replica has stored the reassignment already, but was not removed yet.
    return (
        row is not None
        and removal.partition_epoch == row.partition_epoch
        and node_id not in row.replicas
    )


logger = logging.getLogger(__name__)

Removal = Awaitable[control.PartitionError | None]


class Remover:
    """Removal of replicas, owned by the loop thread; ``logs`` removes in threads."""

    def __init__(
        self, context: ReplicaContext, *, logs: LogDirectory, fetchers: Fetchers, hosted: Hosted
    ) -> None:
        self._context = context
        self._logs = logs
        self._fetchers = fetchers
        self._hosted = hosted

    def begin(self, removals: Removals) -> list[Removal]:
        """Return an awaitable for each replica that may have to be removed.

        Each takes the lock of its name in its first step, before a new replica of that name can.
        """
        return [*self._hosted_ones(removals), *self._unopened_ones(removals)]

    def _hosted_ones(self, removals: Removals) -> Iterable[Removal]:
        for topic_id in removals.topic_ids:
            for partition in tuple(self._hosted.by_topic.get(topic_id, {}).values()):
                key = (topic_id, partition.partition)
                if removals.take(key, partition.row):
                    yield self._remove(partition, key)

    def _unopened_ones(self, removals: Removals) -> Iterable[Removal]:
        for item in self._logs.unopened():
            if item.topic_id is not None and removals.name((item.topic_id, item.tp.partition)):
                yield self._discard(item, (item.topic_id, item.tp.partition), removals)

    async def _remove(
        self, partition: Partition, key: TopicIdPartition
    ) -> control.PartitionError | None:
        """Remove a hosted replica: stop fetching, end its tasks and role, delete its log.

        Return None, or the storage error to report to the controller, which repeats the removal.
        """
        self._fetchers.unfollow(partition.tp)
        # Tasks of the tier end before the log is closed under them.
        if self._context.remote is not None:
            self._context.remote.on_stop(partition)
        async with self._hosted.lock(partition.tp), partition.lock:
            roles.retire(partition)
            # Another topic's log may soon get the directory's name: no late write may hit it.
            await partition.wait_for_last_write()
            try:
                await in_thread(self._logs.delete, partition.log)
            except StorageError as error:
                return self._failed(partition.tp, key, error)
            self._hosted.drop(partition)
            await in_thread(self._logs.remove_strays, key)
        self._succeeded(partition.tp, key)
        return None

    async def give_up(self, partition: Partition, reason: str) -> None:
        """Stop a hosted replica whose log lacks records. Its directory stays unchanged."""
        self._fetchers.unfollow(partition.tp)
        if self._context.remote is not None:
            self._context.remote.on_stop(partition)
        async with self._hosted.lock(partition.tp), partition.lock:
            roles.retire(partition)
            await partition.wait_for_last_write()
            self._logs.give_up(partition.log, reason)
            self._hosted.drop(partition)

    async def _discard(
        self, unopened: UnopenedLog, key: TopicIdPartition, removals: Removals
    ) -> control.PartitionError | None:
        """Delete the directory of a replica whose log does not open, if the removals apply to it.

        Return None, or the storage error to report to the controller.
        """
        async with self._hosted.lock(unopened.tp):
            try:
                # No replica is open, so the state file tells which partition epoch it had.
                state = await in_thread(self._logs.state_of, unopened)
                if not removals.take(key, None if state is None else state.row):
                    return None
                await in_thread(self._logs.discard, unopened.tp)
                await in_thread(self._logs.remove_strays, key)
            except StorageError as error:
                return self._failed(unopened.tp, key, error)
        self._succeeded(unopened.tp, key)
        return None

    def _failed(
        self, tp: TopicPartition, key: TopicIdPartition, error: StorageError
    ) -> control.PartitionError:
        self._context.failures.failed(tp, error, self._context.monotonic())
        return partition_error(key, ErrorCode.kafka_storage_error, str(error))

    def _succeeded(self, tp: TopicPartition, key: TopicIdPartition) -> None:
        self._context.failures.succeeded(tp)
        logger.info("%s (topic id %s): removed", tp, key[0])


def partition_error(key: TopicIdPartition, code: ErrorCode, message: str) -> control.PartitionError:
    """Return the error of one replica for the controller."""
    return control.PartitionError(
        topic_id=key[0], partition=key[1], error_code=int(code.value), message=message
    )
