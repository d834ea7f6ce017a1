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

from tidemark.configuration.layers import effective
from tidemark.wire import control
from tidemark_broker.log import LogConfig, StorageError
from tidemark_broker.replication import prefix, roles
from tidemark_broker.replication.context import ReplicaContext
from tidemark_broker.replication.fetchers import Fetchers
from tidemark_broker.replication.hosted import Hosted
from tidemark_broker.replication.logs import FoundLog, LogStore
from tidemark_broker.replication.metadata import MetadataCache, TopicView
from tidemark_broker.replication.partition import Partition, Role
from tidemark_broker.replication.remote import RemoteLog
from tidemark_broker.replication.removal import Key, Removals
from tidemark_broker.replication.removing import Remover, partition_error
from tidemark_broker.replication.repair import Repairs
from tidemark_broker.replication.state_file import StoredState
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.replication.types import TopicPartition

logger = logging.getLogger(__name__)

_AT_ONCE = 8
_LOCKS_TIMEOUT_S = 5.0

#: One replica's part of a message; gives what went wrong with it.
Change = Awaitable[control.PartitionError | None]


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
        self._hosted = Hosted()
        self._offline: dict[Key, _Wanted] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._take_over_limit = asyncio.Semaphore(_AT_ONCE)
        self._repairs = Repairs(context, logs)
        self._taking_over: dict[TopicPartition, asyncio.Task[None]] = {}
        self._remover = Remover(context, logs=logs, fetchers=fetchers, hosted=self._hosted)

    # ------------------------------------------------------------ look-ups

    @property
    def remote(self) -> RemoteLog | None:
        """The remote log manager, None for a broker without a tier."""
        return self.context.remote

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Every hosted replica."""
        return tuple(self._hosted.by_key.values())

    @property
    def offline_count(self) -> int:
        """Replicas that should be here and whose storage does not open."""
        return len(self._offline)

    def failed_replicas(self) -> tuple[control.TopicPartitions, ...]:
        """Those whose storage refuses at present: that failed when last tried, or are not open."""
        hosted = (self._hosted.by_name.get(tp) for tp in self.context.failures.partitions)
        failed = {(each.topic_id, each.partition) for each in hosted if each is not None}
        failed.update(self._offline)
        failed.update(
            (each.topic_id, each.tp.partition)
            for each in self._logs.unopened()
            if each.topic_id is not None
        )
        by_topic: dict[uuid.UUID, list[int]] = {}
        for topic_id, partition in sorted(failed):
            by_topic.setdefault(topic_id, []).append(partition)
        return tuple(
            control.TopicPartitions(topic_id=topic_id, partitions=tuple(numbers))
            for topic_id, numbers in by_topic.items()
        )

    def get(self, topic: str, partition: int) -> Partition | None:
        """A hosted replica by name."""
        return self._hosted.by_name.get(TopicPartition(topic, partition))

    def by_id(self, topic_id: uuid.UUID, partition: int) -> Partition | None:
        """A hosted replica by topic id."""
        return self._hosted.by_key.get((topic_id, partition))

    def is_offline(self, topic_id: uuid.UUID, partition: int) -> bool:
        """Whether a replica should be here and its storage does not open."""
        return (topic_id, partition) in self._offline

    def error_of(self, topic: str, partition: int) -> ErrorCode:
        """Why :meth:`get` found nothing."""
        view = self.metadata.topics.get(topic)
        if view is None or partition not in view.partitions:
            return ErrorCode.unknown_topic_or_partition
        if (view.topic_id, partition) in self._offline:
            return ErrorCode.kafka_storage_error
        return ErrorCode.not_leader_or_follower

    # ------------------------------------------------------------ start

    def load(self, logs: Iterable[FoundLog]) -> None:
        """Take over what was found on disk; nothing has a role until a snapshot gives it one."""
        for found in logs:
            self._hosted.add(self._found(found))

    def _found(self, found: FoundLog) -> Partition:
        doubt = None if found.whole else prefix.UNCLEAN_SHUTDOWN
        return Partition(self.context, found.log, stored=found.state, view=None, doubt=doubt)

    # ------------------------------------------------------------ states

    async def apply(self, request: control.PartitionStatesRequest) -> list[control.PartitionError]:
        """Apply a snapshot or a delta whose controller epoch was accepted already."""
        brokers, cluster_config = self.metadata.brokers, self.metadata.cluster_config
        views = {each.topic_id: self.metadata.by_id(each.topic_id) for each in request.topics}
        self.metadata.apply(request)
        if self.context.remote is not None:
            self.context.remote.configure(
                request.remote_storage, request.store_id, request.cluster_id
            )
        removals = Removals(request.removals, self.context.node_id)
        going = self._remove_all(removals)
        if request.full or self.metadata.cluster_config != cluster_config:
            self._reconfigure(self.partitions)
        errors = await self._gather([*going, *self._place_all(request, views, removals)])
        if request.full:
            self._log_unknown(request)
        self._brokers_changed(brokers)
        return errors

    def _brokers_changed(self, before: Mapping[int, control.BrokerState]) -> None:
        """Leaders look again at what the brokers that came, went or were fenced have to do with."""
        now = self.metadata.brokers
        if now is before:
            return
        changed = {node for node in now.keys() | before.keys() if now.get(node) != before.get(node)}
        for partition in self.partitions if changed else ():
            if partition.leader is not None and not changed.isdisjoint(partition.leader.followers):
                partition.after_change()

    def _place_all(
        self,
        request: control.PartitionStatesRequest,
        before: Mapping[uuid.UUID, TopicView | None],
        removals: Removals,
    ) -> list[Change]:
        """``before``: the topics as they were known until now."""
        wanted = []
        for topic in request.topics:
            view = self.metadata.by_id(topic.topic_id)
            if view is not None:
                whole = request.full or view is not before[topic.topic_id]
                wanted += [
                    _Wanted(view, row, request.controller_epoch)
                    for row in self._rows_for(view, topic, whole=whole)
                    if not self._goes(removals, (view.topic_id, row.partition))
                ]
        return [self._place(each) for each in wanted]

    def _goes(self, removals: Removals, key: Key) -> bool:
        """Is it removed by the same message?"""
        hosted = self._hosted.by_key.get(key)
        return hosted is not None and removals.take(key, hosted.row)

    def _rows_for(
        self, view: TopicView, topic: control.TopicState, *, whole: bool
    ) -> list[control.PartitionState]:
        """Rows that concern this broker: those that the message names; and with ``whole`` (the
        topic's tiering or configuration is another) every hosted one."""
        numbers = {row.partition for row in topic.partitions}
        if whole:
            numbers |= self._hosted.by_topic.get(view.topic_id, {}).keys()
        rows = [view.partitions[number] for number in sorted(numbers) if number in view.partitions]
        return [
            row
            for row in rows
            if self.context.node_id in row.replicas
            or (view.topic_id, row.partition) in self._hosted.by_key
        ]

    async def _place(self, wanted: _Wanted) -> control.PartitionError | None:
        """One replica: open or create it, persist its state, give it its role."""
        key = (wanted.view.topic_id, wanted.row.partition)
        tp = TopicPartition(wanted.view.name, wanted.row.partition)
        async with self._hosted.lock(tp), self._limit:
            try:
                partition = self._hosted.by_key.get(key)
                if partition is None:
                    other = self._hosted.by_name.get(tp)
                    if other is not None:
                        return partition_error(
                            key, ErrorCode.inconsistent_topic_id, _name_taken(other)
                        )
                    partition = await self._create(wanted)
                else:
                    self._reconfigure((partition,))
                await partition.apply(wanted.view, wanted.row, wanted.controller_epoch)
            except StorageError as error:
                self.context.failures.failed(tp, error, self.context.monotonic())
                self._offline[key] = wanted
                return partition_error(key, ErrorCode.kafka_storage_error, str(error))
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
        doubt = prefix.BEGUN_ANEW if row.manifest else None
        partition = Partition(self.context, log, stored=None, view=view, on_disk=state, doubt=doubt)
        self._hosted.add(partition)
        self.context.failures.succeeded(partition.tp)
        logger.info("%s: created, topic id %s", partition.tp, view.topic_id)
        return partition

    def _follow(self, partition: Partition) -> None:
        if partition.role is Role.FOLLOWER and partition.leader_id >= 0:
            self._fetchers.follow(partition, partition.leader_id)
        else:
            self._fetchers.unfollow(partition.tp)
        self._take_over(partition)

    def _take_over(self, partition: Partition) -> None:
        """Have an elected leader ask the tier, in a task of its own: nobody waits for the tier."""
        if partition.role is Role.TAKING_OVER and partition.tp not in self._taking_over:
            task = asyncio.create_task(self._take_over_once(partition))
            self._taking_over[partition.tp] = task
            task.add_done_callback(lambda _: self._taking_over.pop(partition.tp))

    async def _take_over_once(self, partition: Partition) -> None:
        async with self._take_over_limit:
            await roles.take_over(partition)

    def _config(self, view: TopicView) -> LogConfig:
        return LogConfig.of(
            effective(self._broker_config, self.metadata.cluster_config, view.config)
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

    def _remove_all(self, wanted: Removals) -> list[Change]:
        if not wanted.topic_ids:
            return []
        for key in [key for key in self._offline if wanted.name(key)]:
            del self._offline[key]
        return self._remover.begin(wanted)

    # ------------------------------------------------------------ now and then

    async def retry(self) -> None:
        """Try again what could not be done: logs that did not open, take-overs from the tier."""
        for tp in self._repairs.due():
            await self._open_again(tp)
        now_s = self.context.monotonic()
        for key in list(self._offline):
            await self._place_again(key, now_s)
        await self._repairs.reopen(self.partitions)
        await self._repairs.look_for_room(self.partitions)
        for partition in self.partitions:
            self._take_over(partition)

    async def _open_again(self, tp: TopicPartition) -> None:
        """Its role comes with the next try to place it, if the controller wants it here."""
        async with self._hosted.lock(tp), self._limit:
            found = await self._repairs.open_again(tp)
            if found is not None:
                partition = self._found(found)
                self._hosted.add(partition)
                self._reconfigure((partition,))

    async def _place_again(self, key: Key, now_s: float) -> None:
        wanted = self._offline.get(key)
        if wanted is None:  # removed meanwhile
            return
        tp = TopicPartition(wanted.view.name, wanted.row.partition)
        if self.context.failures.may_try(tp, now_s):
            view = self.metadata.by_id(wanted.view.topic_id) or wanted.view
            row = view.partitions.get(wanted.row.partition, wanted.row)
            self._offline[key] = latest = _Wanted(view, row, wanted.controller_epoch)
            await self._place(latest)

    def registered_anew(self) -> None:
        """The controller knows that this broker's disk lost records: it leads what it lost them of
        again in a later epoch, if it is told to."""
        for partition in self.partitions:
            partition.loss_is_known()

    def shrink_isrs(self) -> None:
        """Every lag/2: leaders drop followers that fell behind."""
        for partition in self.partitions:
            partition.shrink_isr()

    async def close(self) -> None:
        """Stop fetching and every role, of all at once; logs stay open for the storage to close."""
        await self.context.states.close()
        for task in tuple(self._taking_over.values()):
            task.cancel()
        if self.context.remote is not None:
            for partition in self.partitions:
                self.context.remote.on_stop(partition)
        await asyncio.gather(
            self._retire_all(),
            self._fetchers.close(),
            *self._taking_over.values(),
            return_exceptions=True,
        )

    async def _retire_all(self) -> None:
        """Not in the middle of a change of role, if that ends in time."""
        retired = [asyncio.create_task(self._retire(each)) for each in self.partitions]
        if retired:
            await asyncio.wait(retired, timeout=_LOCKS_TIMEOUT_S)
        for partition in self.partitions:
            if not partition.removed:
                logger.warning("%s: stops in the middle of a change", partition.tp)
                partition.retire()

    async def _retire(self, partition: Partition) -> None:
        async with partition.lock:
            partition.retire()

    async def _gather(self, work: Iterable[Change]) -> list[control.PartitionError]:
        return [error for error in await asyncio.gather(*work) if error is not None]


def _name_taken(other: Partition) -> str:
    return f"{other.tp} exists here under topic id {other.topic_id}; it is kept until its tombstone"
