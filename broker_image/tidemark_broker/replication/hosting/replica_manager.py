"""All replicas of this broker: turns the states that the controller sends into logs and roles.

*Absence never deletes*: a replica is removed only by a tombstone of its topic id or a newer
partition epoch without this broker. A replica that a snapshot does not name stays unchanged and is
logged. Replicas are created by :mod:`placement`, removed by :mod:`remover`, and their storage is
retried by :mod:`repair`.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter

from kio.schema.errors import ErrorCode

from tidemark.leader_epochs import same_generation
from tidemark.records.batch import NO_TIMESTAMP
from tidemark.tiering import Tiering
from tidemark.wire import control
from tidemark_broker.replication.following.fetchers import Fetchers
from tidemark_broker.replication.hosting.hosted_replicas import Hosted, TakeoverTasks
from tidemark_broker.replication.hosting.log_directory import FoundLog, LogDirectory
from tidemark_broker.replication.hosting.placement import Placement, ReplicaAssignment
from tidemark_broker.replication.hosting.remover import Removals, Remover
from tidemark_broker.replication.hosting.repair import Repairs
from tidemark_broker.replication.metadata import CHANGED, MetadataCache, TopicMetadata
from tidemark_broker.replication.partition import (
    Partition,
    ReplicaContext,
    Role,
    isr_and_high_watermark,
    roles,
)
from tidemark_broker.replication.partition.state_file import StoredState
from tidemark_broker.replication.remote import RemoteLog
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.replication.types import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

_LOCKS_TIMEOUT_S = 5.0
#: Leaderships that start together. Each takes turns with the disk twice. With more of them, the
#: first one would start to serve after the first turns of all.
_LED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class StoredReplica:
    """Replica on the disk with its last state from the controller; None if there is none or it is
    unreadable.

    ``has_all_records``: nothing of its log was lost since. ``partition_count``: partitions of its
    topic, as far as this process knows.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int
    row: control.PartitionState | None
    tiering: Tiering | None
    has_all_records: bool = False
    partition_count: int = -1


#: Processing of one replica's part of a message; returns its error.
Change = Awaitable[control.PartitionError | None]


class ReplicaManager:
    """Replicas of a broker, owned by the loop thread. ``logs`` creates and deletes on disk."""

    def __init__(
        self,
        context: ReplicaContext,
        *,
        logs: LogDirectory,
        fetchers: Fetchers,
        broker_config: Mapping[str, str],
    ) -> None:
        """Create it without replicas; :meth:`load` adds those on the disk.

        ``broker_config``: the broker's properties, which topics' configurations override.
        """
        self.context = context
        self.metadata: MetadataCache = context.metadata
        self._logs = logs
        self._fetchers = fetchers
        self._hosted = Hosted()
        #: Topic ids of each message that is being applied.
        self._applied: list[Container[uuid.UUID]] = []
        self._takeovers = TakeoverTasks()
        self._leading = asyncio.Semaphore(_LED_AT_ONCE)
        self._placement = Placement(
            context,
            logs=logs,
            fetchers=fetchers,
            hosted=self._hosted,
            takeovers=self._takeovers,
            broker_config=broker_config,
        )
        #: Retries of logs whose disk failed.
        self._repairs = Repairs(context, logs)
        #: Removal of replicas that the controller has deleted or moved away.
        self._remover = Remover(context, logs=logs, fetchers=fetchers, hosted=self._hosted)

    # ------------------------------------------------------------ look-ups

    @property
    def remote(self) -> RemoteLog[Partition] | None:
        """Remote log manager, None for a broker without a tier."""
        return self.context.remote

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(self._hosted.by_key.values())

    @property
    def is_reader(self) -> bool:
        """Whether this broker serves as a Reader.

        A Reader with replicas of a former broker of its id serves them until they have moved.
        """
        return self.metadata.is_reader(self.context.node_id) and not self._hosted.by_key

    @property
    def offline_count(self) -> int:
        """Number of assigned replicas whose storage does not open."""
        return len(self._placement.offline)

    def unresponsive_leaders(self) -> tuple[int, ...]:
        """Return the brokers that owe this one the response to a fetch."""
        return self._fetchers.unresponsive()

    def failed_replicas(self) -> tuple[control.TopicPartitions, ...]:
        """Return the replicas whose storage fails now, by topic.

        These are replicas whose last disk access failed, and those whose log is not open.
        """
        hosted = (self._hosted.by_name.get(tp) for tp in self.context.failures.partitions)
        failed = {(item.topic_id, item.partition) for item in hosted if item is not None}
        failed.update(self._placement.offline)
        failed.update(
            (item.topic_id, item.tp.partition)
            for item in self._logs.unopened()
            if item.topic_id is not None
        )
        # Grouped as the wire format needs it.
        by_topic: dict[uuid.UUID, list[int]] = {}
        for topic_id, partition in sorted(failed):
            by_topic.setdefault(topic_id, []).append(partition)
        return tuple(
            control.TopicPartitions(topic_id=topic_id, partitions=tuple(numbers))
            for topic_id, numbers in by_topic.items()
        )

    def get(self, topic: str, partition: int) -> Partition | None:
        """Return a hosted replica by name, or None."""
        return self._hosted.by_name.get(TopicPartition(topic, partition))

    def by_id(self, topic_id: uuid.UUID, partition: int) -> Partition | None:
        """Return a hosted replica by topic id, or None."""
        return self._hosted.by_key.get((topic_id, partition))

    def open_replicas(self) -> list[StoredReplica]:
        """Return every open replica."""
        return [
            replace(
                _stored_replica(partition.tp, partition.topic_id, partition.stored),
                has_all_records=partition.doubt is None and partition.log.failure is None,
                partition_count=self.metadata.partition_count(partition.topic_id),
            )
            for partition in self.partitions
        ]

    def unopened_replicas(self) -> list[StoredReplica]:
        """Return the replicas that were found at the start and do not open (blocking)."""
        return [
            _stored_replica(item.tp, item.topic_id, self._logs.state_of(item))
            for item in self._logs.unopened()
            if item.topic_id is not None
        ]

    def is_led(self, topic_id: uuid.UUID, row: control.PartitionState) -> bool:
        """Return whether the broker that the row names leads.

        For itself this broker knows: the metadata has the controller's decision before the log is
        open.
        """
        if row.leader != self.context.node_id:
            return row.leader >= 0
        hosted = self.by_id(topic_id, row.partition)
        return hosted is not None and hosted.role is Role.LEADER

    def is_opening(self, topic: TopicMetadata) -> bool:
        """Return whether a partition of the topic is about to be led here, before CHANGED is
        notified.
        """
        me = self.context.node_id
        return any(topic.topic_id in item for item in self._applied) and not all(
            row.leader != me or self.is_led(topic.topic_id, row)
            for row in topic.partitions.values()
        )

    def is_offline(self, topic_id: uuid.UUID, partition: int) -> bool:
        """Whether a replica is assigned here and its storage does not open."""
        return (topic_id, partition) in self._placement.offline

    def error_of(self, topic: str, partition: int) -> ErrorCode:
        """Return the reason why :meth:`get` found nothing."""
        view = self.metadata.topics.get(topic)
        if view is None or partition not in view.partitions:
            return ErrorCode.unknown_topic_or_partition
        if (view.topic_id, partition) in self._placement.offline:
            return ErrorCode.kafka_storage_error
        return ErrorCode.not_leader_or_follower

    # ------------------------------------------------------------ start

    def load(self, logs: Iterable[FoundLog]) -> None:
        """Host the logs that were found on disk; none has a role until a snapshot assigns one."""
        for found in logs:
            self._placement.host(found)

    # ------------------------------------------------------------ states

    async def apply(self, request: control.PartitionStatesRequest) -> list[control.PartitionError]:
        """Apply a snapshot or a delta of the controller to this broker's replicas.

        The caller has accepted the controller epoch. Return the errors of replicas that could not
        be placed or removed. A failed replica does not stop the others.
        """
        # Remember the former state: only changes are passed on below.
        brokers, cluster_config = self.metadata.brokers, self.metadata.cluster_config
        views = {topic.topic_id: self.metadata.by_id(topic.topic_id) for topic in request.topics}
        self.metadata.apply(request)
        if self.context.remote is not None and not request.storage_as_before:
            self.context.remote.configure(
                request.remote_storage, request.store_id, request.cluster_id
            )
        # Removals first: a topic that was recreated needs the name of its predecessor.
        reassigned_away = self._reassigned_away(request) if request.full else ()
        removals = Removals((*request.removals, *reassigned_away), self.context.node_id)
        going = self._remove_all(removals)
        if request.full or self.metadata.cluster_config != cluster_config:
            self._placement.reconfigure(self.partitions)
        # The quick ones first: states that need no disk, then leaders, for which clients wait.
        at_once, led, others = self._by_urgency(self._assignments(request, views, removals))
        # While this message is applied, is_opening reports its partitions.
        self._applied.append(views)
        try:
            with self.context.states.held():
                work = [*going, *map(self._placement.place, at_once), *map(self._lead, led)]
                errors = await self._gather(work)
            self.context.purgatory.notify(CHANGED)
            errors += await self._gather(map(self._placement.place, others))
        finally:
            self._applied.remove(views)
        if request.full:
            self._log_unknown(request)
        # Fenced or new brokers affect partitions that the message does not name.
        self._brokers_changed(brokers)
        self.context.purgatory.notify(CHANGED)
        return errors

    def _brokers_changed(self, before: Mapping[int, control.BrokerState]) -> None:
        """Recompute the ISR of partitions with followers that joined, left or were fenced."""
        now = self.metadata.brokers
        if now is before:
            return
        changed = {node for node in now.keys() | before.keys() if now.get(node) != before.get(node)}
        for partition in self.partitions if changed else ():
            if partition.leader is not None and not changed.isdisjoint(partition.leader.followers):
                isr_and_high_watermark.after_change(partition)

    def _by_urgency(
        self, assignments: Iterable[ReplicaAssignment]
    ) -> tuple[list[ReplicaAssignment], list[ReplicaAssignment], list[ReplicaAssignment]]:
        """Return the assignments that need no disk, those that this broker is to lead, and the
        others.

        Partitions with the newest records are led first: their producers wait. A leadership takes
        a few fsyncs, and a failing broker passes on hundreds of them together.
        """
        at_once, others = [], []
        led: list[tuple[int, ReplicaAssignment]] = []
        # A state of a replica that is not hosted yet always needs the disk.
        for item in assignments:
            hosted = self.by_id(item.view.topic_id, item.row.partition)
            if hosted is not None and roles.may_be_persisted_later(
                hosted, item.view, item.row, item.controller_epoch
            ):
                at_once.append(item)
            elif item.row.leader == self.context.node_id:
                led.append((_newest_timestamp_ms(hosted), item))
            else:
                others.append(item)
        led.sort(key=itemgetter(0), reverse=True)
        return at_once, [item for _, item in led], others

    def _assignments(
        self,
        request: control.PartitionStatesRequest,
        before: Mapping[uuid.UUID, TopicMetadata | None],
        removals: Removals,
    ) -> list[ReplicaAssignment]:
        """Return each replica that a message assigns to this broker or changes.

        ``before``: the metadata of the message's topics as known until now. Replicas that the same
        message removes are left out.
        """
        assignments = []
        for topic in request.topics:
            view = self.metadata.by_id(topic.topic_id)
            if view is not None:
                # A changed topic may affect hosted replicas that the message does not name.
                include_hosted = request.full or view is not before[topic.topic_id]
                assignments += [
                    ReplicaAssignment(view, row, request.controller_epoch)
                    for row in self._rows_for(view, topic, include_hosted=include_hosted)
                    if not self._is_removed(removals, (view.topic_id, row.partition))
                ]
        return assignments

    def _is_removed(self, removals: Removals, key: TopicIdPartition) -> bool:
        """Return whether the same message removes the replica."""
        hosted = self._hosted.by_key.get(key)
        return hosted is not None and removals.take(key, hosted.row)

    def _rows_for(
        self, view: TopicMetadata, topic: control.TopicState, *, include_hosted: bool
    ) -> list[control.PartitionState]:
        """Return the states of a topic's partitions that concern this broker.

        They are those of the message's partitions with a replica here. With ``include_hosted`` (the
        topic's tiering or configuration has changed) every hosted partition's state is returned
        too.
        """
        numbers = {row.partition for row in topic.partitions}
        if include_hosted:
            numbers |= self._hosted.by_topic.get(view.topic_id, {}).keys()
        # The controller does not know these partitions at present: their replicas keep their roles.
        in_doubt = {n for n in numbers if self.metadata.is_in_doubt(view.topic_id, n)}
        numbers = numbers.intersection(view.partitions).difference(in_doubt)
        rows = [view.partitions[number] for number in sorted(numbers)]
        return [
            row
            for row in rows
            if self.context.node_id in row.replicas
            or (view.topic_id, row.partition) in self._hosted.by_key
        ]

    def _reassigned_away(self, request: control.PartitionStatesRequest) -> list[control.Removal]:
        """Return removals for replicas that a reassignment moved away while this broker was down:
        their newest row does not name it.
        """
        rows = ((topic.topic_id, row) for topic in request.topics for row in topic.partitions)
        return [
            control.Removal(
                topic_id=topic_id, partition=row.partition, partition_epoch=row.partition_epoch
            )
            for topic_id, row in rows
            if self.context.node_id not in row.replicas
            and self._knew_an_older_row((topic_id, row.partition), row)
        ]

    def _knew_an_older_row(self, key: TopicIdPartition, row: control.PartitionState) -> bool:
        """Return whether ``row`` proves that a reassignment has moved a hosted replica away.

        It does if the replica's stored partition state is older, and the controller has not rebuilt
        the partition from brokers' reports since.
        """
        hosted = self._hosted.by_key.get(key)
        known = None if hosted is None else hosted.row
        if known is None or known.partition_epoch >= row.partition_epoch:
            return False
        # A controller that rebuilt the partition from reports may have missed this replica.
        if not same_generation(known.leader_epoch, row.leader_epoch):
            logger.warning(
                "%s-%d: this broker is no replica in the rebuilt partition; its log is kept", *key
            )
            return False
        return True

    def _log_unknown(self, request: control.PartitionStatesRequest) -> None:
        named = {topic.topic_id for topic in request.topics}
        for partition in self.partitions:
            if partition.topic_id not in named:
                logger.warning(
                    "%s (topic id %s) is not in the controller's snapshot; its log is kept",
                    partition.tp,
                    partition.topic_id,
                )

    def _remove_all(self, removals: Removals) -> list[Change]:
        if not removals.topic_ids:
            return []
        self._placement.forget(removals)
        return self._remover.begin(removals)

    # ------------------------------------------------------------ now and then

    async def retry(self) -> None:
        """Retry everything that waits for a disk or the tier; called periodically.

        These are logs that did not open, offline replicas, failed logs, and takeovers from the
        tier.
        """
        for tp in self._repairs.due():
            await self._retry_opening(tp)
        # Offline replicas are placed with the partition state that the controller sent last.
        now_s = self.context.monotonic()
        for key in list(self._placement.offline):
            await self._placement.place_again(key, now_s)
        # A reopened log that lacks records is copied again from its leader.
        for partition, reason in (await self._repairs.reopen(self.partitions)).items():
            await self._copy_again(partition, reason)
        # Logs that are complete, but whose last write failed, for example on a full disk.
        await self._repairs.probe_room(self.partitions)
        await self._remove_strays()
        # Elected leaders that could not query the tier yet.
        for partition in self.partitions:
            self._takeovers.begin(partition)

    async def _copy_again(self, partition: Partition, reason: str) -> None:
        """Replace a log that lacks records by a new one that copies them from the leader, if
        the leader has them.
        """
        row, stored = partition.row, partition.stored
        view = self.metadata.by_id(partition.topic_id)
        if row is None or stored is None or view is None or not self._placement.may_copy(row):
            return
        await self._remover.give_up(partition, reason)
        await self._placement.place(ReplicaAssignment(view, row, stored.controller_epoch))

    async def _remove_strays(self) -> None:
        """Delete directories that were set aside for replicas that are in sync again."""
        for key in self._logs.strays():
            partition = self._hosted.by_key.get(key)
            if partition is not None and self.context.node_id in partition.isr:
                await in_thread(self._logs.remove_strays, key)

    def set_aside(self) -> tuple[control.SetAsideReplica, ...]:
        """Return replicas that copy their whole log while their former directory is kept."""
        return tuple(
            control.SetAsideReplica(topic_id=key[0], partition=key[1], message=reason[:1000])
            for key, reason in sorted(self._logs.strays().items())
        )

    async def _retry_opening(self, tp: TopicPartition) -> None:
        """Retry one log.

        Its role comes with the next attempt to place it, if it is assigned here.
        """
        async with self._hosted.lock(tp), self._hosted.at_work:
            found = await self._repairs.retry_opening(tp)
            if found is not None:
                self._placement.reconfigure((self._placement.host(found),))

    def on_reregistration(self) -> None:
        """Note that the controller knows of this broker's lost records: it may lead again in a
        later epoch.
        """
        for partition in self.partitions:
            roles.confirm_loss(partition)

    def shrink_isrs(self) -> None:
        """Drop lagging followers from the ISR; called every lag/2."""
        for partition in self.partitions:
            isr_and_high_watermark.shrink_isr(partition)

    async def close(self) -> None:
        """Stop fetching and end the role of every replica, at the broker's shutdown.

        The logs stay open; :meth:`LogDirectory.close` closes them.
        """
        # State files first: a role change below must not queue another write.
        await self.context.states.close()
        if self.context.remote is not None:
            for partition in self.partitions:
                self.context.remote.on_stop(partition)
        await asyncio.gather(
            self._retire_all(),
            self._fetchers.close(),
            self._takeovers.close(),
            return_exceptions=True,
        )

    async def _retire_all(self) -> None:
        """Retire all replicas, after a role change in progress if it ends in time."""
        retired = [asyncio.create_task(self._retire(item)) for item in self.partitions]
        if retired:
            await asyncio.wait(retired, timeout=_LOCKS_TIMEOUT_S)
        for partition in self.partitions:
            if not partition.removed:
                logger.warning("%s: stops in the middle of a role change", partition.tp)
                roles.retire(partition)

    async def _retire(self, partition: Partition) -> None:
        async with partition.lock:
            roles.retire(partition)

    async def _lead(self, assignment: ReplicaAssignment) -> control.PartitionError | None:
        """Place a replica that is to lead, in the order of the calls."""
        async with self._leading:
            return await self._placement.place(assignment)

    async def _gather(self, work: Iterable[Change]) -> list[control.PartitionError]:
        return [error for error in await asyncio.gather(*work) if error is not None]


def _newest_timestamp_ms(partition: Partition | None) -> int:
    """Return the largest timestamp near the log end."""
    if partition is None:
        return NO_TIMESTAMP
    # The active segment may have no records yet.
    return max(segment.largest_timestamp_ms for segment in partition.log.segments.items[-2:])


def _stored_replica(
    tp: TopicPartition, topic_id: uuid.UUID, stored: StoredState | None
) -> StoredReplica:
    return StoredReplica(
        topic=tp.topic,
        topic_id=topic_id,
        partition=tp.partition,
        row=None if stored is None else stored.row,
        tiering=None if stored is None else stored.tiering,
    )
