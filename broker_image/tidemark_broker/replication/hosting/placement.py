"""Placement of one replica on this broker: its log opened or created, its state, its role.

A log is opened or created in a thread. Its state is durable before it starts to lead. A replica
whose storage fails stays *offline* and is retried later, while the others continue.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tidemark.configuration.layers import effective
from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.wire import control
from tidemark_broker.log import LogConfig, StorageError
from tidemark_broker.purgatory import PartitionChange
from tidemark_broker.replication.following.fetchers import Fetchers
from tidemark_broker.replication.hosting.hosted_replicas import Hosted, TakeoverTasks
from tidemark_broker.replication.hosting.log_directory import FoundLog, LogDirectory
from tidemark_broker.replication.hosting.remover import Removals, partition_error
from tidemark_broker.replication.metadata import TopicMetadata
from tidemark_broker.replication.partition import (
    Partition,
    ReplicaContext,
    Role,
    isr_and_high_watermark,
    prefix_rule,
    roles,
)
from tidemark_broker.replication.partition.state_file import StoredState
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.replication.types import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Replica that the controller assigned to this broker, with the controller's epoch."""

    view: TopicMetadata
    row: control.PartitionState
    controller_epoch: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.view.name, self.row.partition)


class Placement:
    """Placement of replicas, owned by the loop thread."""

    def __init__(
        self,
        context: ReplicaContext,
        *,
        logs: LogDirectory,
        fetchers: Fetchers,
        hosted: Hosted,
        takeovers: TakeoverTasks,
        broker_config: Mapping[str, str],
    ) -> None:
        """Create it without replicas.

        ``takeovers``: tasks of elected leaders that query the tier first. ``broker_config``: the
        broker's properties, which topics' configurations override.
        """
        self._context = context
        self._logs = logs
        self._fetchers = fetchers
        self._hosted = hosted
        self._takeovers = takeovers
        self._broker_config = broker_config
        #: Assigned replicas whose storage failed, to be retried.
        self._offline: dict[TopicIdPartition, ReplicaAssignment] = {}

    @property
    def offline(self) -> Collection[TopicIdPartition]:
        """Assigned replicas whose storage does not open."""
        return self._offline.keys()

    def forget(self, removals: Removals) -> None:
        """Drop offline replicas that the removals name."""
        for key in [key for key in self._offline if removals.name(key)]:
            self._context.failures.forget(self._offline.pop(key).tp)

    def host(self, found: FoundLog) -> Partition:
        """Host a log that was found on the disk; it has no role yet."""
        doubt = None if found.whole else prefix_rule.UNCLEAN_SHUTDOWN
        partition = Partition(self._context, found.log, stored=found.state, view=None, doubt=doubt)
        self._hosted.add(partition)
        return partition

    async def place(self, assignment: ReplicaAssignment) -> control.PartitionError | None:
        """Open or create one assigned replica and apply its state (:func:`roles.apply`).

        Return None, or the error to report to the controller. A replica whose storage fails is
        offline and retried by :meth:`place_again`.
        """
        key = (assignment.view.topic_id, assignment.row.partition)
        tp = assignment.tp
        async with self._hosted.lock(tp), self._hosted.at_work:
            try:
                partition = self._hosted.by_key.get(key)
                if partition is None:
                    # The replica of a deleted topic of that name is still here: it is removed only
                    # once the controller announces the deletion (a tombstone).
                    other = self._hosted.by_name.get(tp)
                    if other is not None:
                        return partition_error(
                            key, ErrorCode.inconsistent_topic_id, _name_taken(other)
                        )
                    # Only another replica can restore a log without its records: copy it into a new
                    # directory.
                    if self._logs.misses_records(tp, key[0]) and self.may_copy(assignment.row):
                        await in_thread(self._logs.set_aside, tp)
                    partition = await self._create(assignment)
                # The topic's object is another one if its configuration has changed.
                elif partition.view is not assignment.view:
                    self.reconfigure((partition,))
                await roles.apply(
                    partition, assignment.view, assignment.row, assignment.controller_epoch
                )
            # One failing disk or directory must not stop the other replicas.
            except StorageError as error:
                self._context.failures.failed(tp, error, self._context.monotonic())
                self._offline[key] = assignment
                return partition_error(key, ErrorCode.kafka_storage_error, str(error))
        self._offline.pop(key, None)
        self._follow(partition)
        return None

    def may_copy(self, row: control.PartitionState) -> bool:
        """Return whether a replica that lost records may copy the whole log from its leader again.

        It may if the leader was elected cleanly, so that it has all committed records, and if this
        replica is in neither the ISR nor the eligible leader replicas (KIP-966), so that no record
        is counted as stored here.
        """
        # The copy must not replace the only remaining copy of any committed record.
        node_id = self._context.node_id
        return (
            row.leader >= 0
            and row.leader != node_id
            and row.leader_recovery_state == LeaderRecoveryState.RECOVERED
            and node_id not in row.isr
            and node_id not in row.elr
        )

    async def _create(self, assignment: ReplicaAssignment) -> Partition:
        """Create the empty log of an assigned replica on disk and host it, without a role."""
        view, row = assignment.view, assignment.row
        state = StoredState.of(view, row, assignment.controller_epoch)
        log = await in_thread(
            self._logs.create,
            topic=view.name,
            topic_id=view.topic_id,
            partition=row.partition,
            config=self._config(view),
            state=state,
        )
        # The new log lacks records that may exist only in the tier. If this replica is elected, it
        # must query the tier before it leads.
        doubt = prefix_rule.LOG_RESTARTED if row.manifest else None
        partition = Partition(
            self._context, log, stored=None, view=view, on_disk=state, doubt=doubt
        )
        self._hosted.add(partition)
        self._context.failures.succeeded(partition.tp)
        logger.info("%s: created, topic id %s", partition.tp, view.topic_id)
        return partition

    def _follow(self, partition: Partition) -> None:
        if partition.role is Role.FOLLOWER and partition.leader_id >= 0:
            self._fetchers.follow(partition, partition.leader_id)
        else:
            self._fetchers.unfollow(partition.tp)
        # A leader that waits for the tier gets its first attempt at once.
        self._takeovers.begin(partition)

    async def place_again(self, key: TopicIdPartition, now_s: float) -> None:
        """Retry an offline replica with the controller's latest state."""
        assignment = self._offline.get(key)
        if assignment is None:  # removed meanwhile
            return
        if self._context.failures.may_try(assignment.tp, now_s):
            view = self._context.metadata.by_id(assignment.view.topic_id) or assignment.view
            row = view.partitions.get(assignment.row.partition, assignment.row)
            # The last state from the controller is better than a placeholder.
            if self._context.metadata.is_in_doubt(*key):
                row = assignment.row
            self._offline[key] = latest = ReplicaAssignment(view, row, assignment.controller_epoch)
            await self.place(latest)

    def _config(self, view: TopicMetadata) -> LogConfig:
        return LogConfig.of(
            effective(self._broker_config, self._context.metadata.cluster_config, view.config)
        )

    def reconfigure(self, partitions: Iterable[Partition]) -> None:
        """Apply the effective configuration of broker, cluster and topic to hosted logs.

        An invalid configuration is logged, and the log keeps its former one.
        """
        for partition in partitions:
            view = self._context.metadata.by_id(partition.topic_id)
            if view is None:
                continue
            try:
                config = self._config(view)
            except ValueError as error:
                logger.warning("%s: the former configuration stays: %s", partition.tp, error)
                continue
            if config != partition.log.config:
                partition.log.config = config
                logger.info("%s: configuration changed", partition.tp)
                # A lower min.insync.replicas may release the high watermark.
                isr_and_high_watermark.advance_high_watermark(partition)
                # A copier may wait for less, or for nothing, now.
                self._context.purgatory.notify((PartitionChange.CONFIG, partition.tp))


def _name_taken(other: Partition) -> str:
    return f"{other.tp} exists here under topic id {other.topic_id}; it is kept until its tombstone"
