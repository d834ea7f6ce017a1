"""All replicas of this broker: the states the controller pushes become logs and roles.

*Absence never deletes*: a replica goes only for a tombstone of its topic id or a newer partition
epoch without this broker; what a snapshot does not name is kept as it is and logged. Opening and
creating logs happens in threads, a state file is durable before its role is taken, and a replica
whose storage fails is tried again later while the others go on.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark_broker.log import LogConfig, PartitionLog, StorageError
from tidemark_broker.replication import roles, topic_config
from tidemark_broker.replication.context import ReplicaContext
from tidemark_broker.replication.fetchers import Fetchers
from tidemark_broker.replication.logs import LogStore
from tidemark_broker.replication.metadata import MetadataCache, TopicView
from tidemark_broker.replication.partition import Partition, Role
from tidemark_broker.replication.remote import RemoteLog
from tidemark_broker.replication.state_file import StoredState, from_json
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.replication.types import TopicPartition

logger = logging.getLogger(__name__)

_AT_ONCE = 8

Key = tuple[uuid.UUID, int]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A replica that the controller wants here, under which controller epoch."""

    view: TopicView
    row: control.PartitionState
    controller_epoch: int


class ReplicaManager:
    """The loop thread owns it. ``logs`` creates and deletes on disk."""

    def __init__(
        self,
        context: ReplicaContext,
        *,
        logs: LogStore,
        fetchers: Fetchers,
        broker_config: Mapping[str, str],
    ) -> None:
        self.context = context
        self.metadata: MetadataCache = context.metadata
        self._logs = logs
        self._fetchers = fetchers
        self._broker_config = broker_config
        self._partitions: dict[Key, Partition] = {}
        self._by_name: dict[TopicPartition, Partition] = {}
        self._offline: dict[Key, _Wanted] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)

    # ------------------------------------------------------------ look-ups

    @property
    def remote(self) -> RemoteLog | None:
        """The remote log manager, None for a broker without a tier."""
        return self.context.remote

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Every hosted replica."""
        return tuple(self._partitions.values())

    @property
    def offline_count(self) -> int:
        """Replicas that should be here and whose storage does not open."""
        return len(self._offline)

    def get(self, topic: str, partition: int) -> Partition | None:
        """A hosted replica by name."""
        return self._by_name.get(TopicPartition(topic, partition))

    def by_id(self, topic_id: uuid.UUID, partition: int) -> Partition | None:
        """A hosted replica by topic id."""
        return self._partitions.get((topic_id, partition))

    def error_of(self, topic: str, partition: int) -> ErrorCode:
        """Why :meth:`get` found nothing."""
        view = self.metadata.topics.get(topic)
        if view is None or partition not in view.partitions:
            return ErrorCode.unknown_topic_or_partition
        if (view.topic_id, partition) in self._offline:
            return ErrorCode.kafka_storage_error
        return ErrorCode.not_leader_or_follower

    # ------------------------------------------------------------ start

    def load(self, logs: Iterable[tuple[PartitionLog, dict[str, object] | None]]) -> None:
        """Take over what was found on disk; nothing has a role until a snapshot gives it one."""
        for log, state in logs:
            self._add(Partition(self.context, log, stored=_stored(log, state), view=None))

    def _add(self, partition: Partition) -> None:
        self._partitions[partition.topic_id, partition.partition] = partition
        self._by_name[partition.tp] = partition

    # ------------------------------------------------------------ states

    async def apply(self, request: control.PartitionStatesRequest) -> list[control.PartitionError]:
        """Apply a snapshot or a delta whose controller epoch was accepted already."""
        cluster = (self.metadata.brokers, self.metadata.cluster_config)
        self.metadata.apply(request)
        if self.context.remote is not None:
            self.context.remote.configure(
                request.remote_storage, request.store_id, request.cluster_id
            )
        errors = await self._remove_all(request.removals)
        if request.full or self.metadata.cluster_config != cluster[1]:
            self._reconfigure(self.partitions)
        errors += await self._place_all(request)
        if request.full:
            self._log_unknown(request)
        if self.metadata.brokers != cluster[0]:
            for partition in self.partitions:
                partition.after_change()
        return errors

    async def _place_all(
        self, request: control.PartitionStatesRequest
    ) -> list[control.PartitionError]:
        wanted = []
        for topic in request.topics:
            view = self.metadata.by_id(topic.topic_id)
            if view is not None:
                wanted += [
                    _Wanted(view, row, request.controller_epoch)
                    for row in self._rows_for(view, topic)
                ]
        return await self._gather(self._place(each) for each in wanted)

    def _rows_for(self, view: TopicView, topic: control.TopicState) -> list[control.PartitionState]:
        """Rows that concern this broker: of the message, and every hosted one, as the topic's
        tiering or configuration may have changed alone."""
        named = {row.partition for row in topic.partitions}
        return [
            row
            for row in view.partitions.values()
            if (row.partition in named and self.context.node_id in row.replicas)
            or (view.topic_id, row.partition) in self._partitions
        ]

    async def _place(self, wanted: _Wanted) -> control.PartitionError | None:
        """One replica: open or create it, persist its state, give it its role."""
        key = (wanted.view.topic_id, wanted.row.partition)
        tp = TopicPartition(wanted.view.name, wanted.row.partition)
        async with self._limit:
            try:
                partition = self._partitions.get(key)
                if partition is None:
                    other = self._by_name.get(tp)
                    if other is not None:
                        return _error(key, ErrorCode.inconsistent_topic_id, _name_taken(other))
                    partition = await self._create(wanted)
                else:
                    self._reconfigure((partition,))
                await partition.apply(wanted.view, wanted.row, wanted.controller_epoch)
            except StorageError as error:
                self.context.failures.failed(tp, error, self.context.monotonic())
                self._offline[key] = wanted
                return _error(key, ErrorCode.kafka_storage_error, str(error))
        self._offline.pop(key, None)
        self._follow(partition)
        return None

    async def _create(self, wanted: _Wanted) -> Partition:
        view, row = wanted.view, wanted.row
        state = StoredState.of(view, row, wanted.controller_epoch)
        log = await in_thread(
            self._logs.create,
            topic=view.name,
            topic_id=view.topic_id,
            partition=row.partition,
            config=self._config(view),
            state=state,
        )
        partition = Partition(self.context, log, stored=None, view=view, on_disk=state)
        self._add(partition)
        self.context.failures.succeeded(partition.tp)
        logger.info("%s: created, topic id %s", partition.tp, view.topic_id)
        return partition

    def _follow(self, partition: Partition) -> None:
        if partition.role is Role.FOLLOWER and partition.leader_id >= 0:
            self._fetchers.follow(partition, partition.leader_id)
        else:
            self._fetchers.unfollow(partition.tp)

    def _config(self, view: TopicView) -> LogConfig:
        return LogConfig.of(
            topic_config.effective(self._broker_config, self.metadata.cluster_config, view.config)
        )

    def _reconfigure(self, partitions: Iterable[Partition]) -> None:
        """Give hosted logs the configuration that now holds for them."""
        for partition in partitions:
            view = self.metadata.by_id(partition.topic_id)
            if view is None:
                continue
            try:
                config = self._config(view)
            except ValueError as error:
                logger.warning("%s: configuration kept as it was: %s", partition.tp, error)
                continue
            if config != partition.log.config:
                partition.log.config = config
                logger.info("%s: configuration changed", partition.tp)

    def _log_unknown(self, request: control.PartitionStatesRequest) -> None:
        named = {topic.topic_id for topic in request.topics}
        for partition in self.partitions:
            if partition.topic_id not in named:
                logger.warning(
                    "%s (topic id %s) is not in the controller's snapshot: kept as it is",
                    partition.tp,
                    partition.topic_id,
                )

    # ------------------------------------------------------------ removal

    async def _remove_all(
        self, removals: Iterable[control.Removal]
    ) -> list[control.PartitionError]:
        doomed: list[Partition] = []
        for removal in removals:
            for key in [key for key in self._offline if _names(removal, key)]:
                del self._offline[key]
            doomed += [each for each in self.partitions if self._must_go(each, removal)]
        return await self._gather(self._remove(each) for each in doomed)

    def _must_go(self, partition: Partition, removal: control.Removal) -> bool:
        """A tombstone takes all; else only a newer partition epoch without this broker."""
        if not _names(removal, (partition.topic_id, partition.partition)):
            return False
        if removal.partition < 0 or removal.partition_epoch > partition.partition_epoch:
            return True
        row = partition.row
        return (
            row is not None
            and removal.partition_epoch == row.partition_epoch
            and self.context.node_id not in row.replicas
        )

    async def _remove(self, partition: Partition) -> control.PartitionError | None:
        key = (partition.topic_id, partition.partition)
        self._fetchers.unfollow(partition.tp)
        if self.context.remote is not None:
            await self.context.remote.on_stop(partition, deleted=True)
        async with partition.lock:
            partition.retire()
            try:
                await in_thread(self._logs.delete, partition.log)
            except StorageError as error:
                self.context.failures.failed(partition.tp, error, self.context.monotonic())
                return _error(key, ErrorCode.kafka_storage_error, str(error))
        self._partitions.pop(key, None)
        self._by_name.pop(partition.tp, None)
        self.context.failures.succeeded(partition.tp)
        logger.info("%s (topic id %s): removed", partition.tp, partition.topic_id)
        return None

    # ------------------------------------------------------------ now and then

    async def retry(self) -> None:
        """Try again what could not be done: logs that did not open, take-overs from the tier."""
        now_s = self.context.monotonic()
        for key, wanted in list(self._offline.items()):
            tp = TopicPartition(wanted.view.name, wanted.row.partition)
            if self.context.failures.may_try(tp, now_s):
                view = self.metadata.by_id(wanted.view.topic_id) or wanted.view
                row = view.partitions.get(wanted.row.partition, wanted.row)
                self._offline[key] = latest = _Wanted(view, row, wanted.controller_epoch)
                await self._place(latest)
        for partition in self.partitions:
            if partition.role is Role.TAKING_OVER:
                await roles.take_over(partition)

    def shrink_isrs(self) -> None:
        """Every lag/2: leaders drop followers that fell behind."""
        for partition in self.partitions:
            partition.shrink_isr()

    async def close(self) -> None:
        """Stop fetching and every role; logs stay open for the storage to close."""
        for partition in self.partitions:
            async with partition.lock:
                partition.retire()
        await self._fetchers.close()
        if self.context.remote is not None:
            for partition in self.partitions:
                await self.context.remote.on_stop(partition, deleted=False)

    async def _gather(
        self, work: Iterable[Awaitable[control.PartitionError | None]]
    ) -> list[control.PartitionError]:
        return [error for error in await asyncio.gather(*work) if error is not None]


def _stored(log: PartitionLog, state: dict[str, object] | None) -> StoredState | None:
    """A state file that cannot be read is as good as none: epochs come with the next snapshot."""
    if state is None:
        return None
    try:
        stored = from_json(state)
    except ValueError as error:
        logger.warning("%s: %s; waiting for the controller's state", log.directory, error)
        return None
    if stored.topic_id != log.topic_id:
        logger.error("%s: partition.state is of another topic id; ignored", log.directory)
        return None
    return stored


def _names(removal: control.Removal, key: Key) -> bool:
    return removal.topic_id == key[0] and removal.partition in (-1, key[1])


def _name_taken(other: Partition) -> str:
    return f"{other.tp} exists here under topic id {other.topic_id}; it is kept until its tombstone"


def _error(key: Key, code: ErrorCode, message: str) -> control.PartitionError:
    return control.PartitionError(
        topic_id=key[0], partition=key[1], error_code=int(code.value), message=message
    )
