"""BrokerStatus: state of this broker and of the partitions that it leads, or is elected for and
cannot lead yet.

Level-based: at most one report a second, with the partitions that differ from the last acknowledged
report. After a reconnect all are reported. An unchanged partition is only compared by a cheap key.
Storage failures and recoveries of replicas are reported at once, because the controller moves
leaders away.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from tidemark.reasons import Reason
from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark_broker.control.session import ControllerSession, check
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.partition import Partition, Role, log_start
from tidemark_broker.replication.remote import RemoteSummary
from tidemark_broker.replication.types import TopicIdPartition
from tidemark_broker.tasks import set_within

PARTITIONS_MAX = 5000
INTERVAL_S = 1.0
#: Maximum age of the broker's total size, whose computation reads every log.
_BYTES_AGE_S = 10.0
_LEAST_PAUSE_S = 0.1
_TIMEOUT_S = 10.0
_MESSAGE_MAX = 1000
_REPORTED = frozenset({Role.LEADER, Role.TAKING_OVER})


@dataclass(frozen=True, slots=True)
class _Health:
    """Part of a report about the broker itself."""

    log_bytes: int
    replicas: int
    storage_error: str
    remote_error: str
    store_id: str
    failed_replicas: tuple[control.TopicPartitions, ...]
    directory_error: str
    set_aside: tuple[control.SetAsideReplica, ...]


def partition_status(partition: Partition) -> control.PartitionStatus:
    """Return the status of a partition for the controller's BrokerStatus report.

    This broker leads the partition, or is elected for it and cannot lead yet (``offline``). Without
    remote storage all remote figures are those of an empty summary.
    """
    remote = partition.context.remote
    summary = RemoteSummary() if remote is None else remote.summary(partition)
    reason, message = summary.error_reason, summary.error_message
    # An error of the tier takes precedence, since it names the object that failed.
    if not reason and partition.context.failures.has_failed(partition.tp):
        reason, message = Reason.STORAGE_ERROR, partition.context.failures.message(partition.tp)
    # Elected as leader but not leading yet, for example while the log is rebuilt from remote
    # storage.
    offline = partition.role is Role.TAKING_OVER
    if offline:
        reason, message = partition.offline_reason, partition.offline_message
    log = partition.log
    return control.PartitionStatus(
        topic_id=partition.topic_id,
        partition=partition.partition,
        leader_epoch=partition.leader_epoch,
        log_start_offset=log.log_start_offset,
        local_log_start_offset=log.local_log_start_offset,
        high_watermark=log.high_watermark,
        next_offset=log.next_offset,
        highest_remote_offset=summary.highest_remote_offset,
        low_watermark=log_start.low_watermark(partition),
        local_bytes=log.size_bytes,
        remote_segments=summary.segments,
        remote_bytes=summary.size_bytes,
        remaining_segments=summary.remaining_segments,
        remaining_bytes=summary.remaining_bytes,
        error_reason=reason,
        error_message=message[:_MESSAGE_MAX],
        offline=offline,
        lagging_since_ms=-1 if offline else summary.lagging_since_ms,
    )


def fingerprint(partition: Partition) -> Hashable:
    """Return a cheap key that stays equal as long as the result of :func:`partition_status` would.

    It contains everything that the status is computed from, except for the size (which only changes
    with the log's bounds) and the liveness of brokers (which the caller compares).
    """
    leader, log = partition.leader, partition.log
    remote, failures = partition.context.remote, partition.context.failures
    tiered = remote is not None and partition.tiering.ever_tiered
    return (
        partition.role,
        partition.row,
        log.bounds,
        log.durable_log_start_offset,
        None if leader is None else tuple(leader.followers.values()),
        remote.summary(partition) if remote is not None and tiered else None,
        failures.has_failed(partition.tp) and failures.message(partition.tp),
        partition.offline_message,
    )


class StatusReporter:
    """Reporter of this broker's and its partitions' state to the controller, for one session.

    A new session uses a new reporter and therefore reports everything again. ``storage_error`` and
    ``directory_error`` return the current error text, "" for none.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        storage_error: Callable[[], str],
        directory_error: Callable[[], str] = str,
    ) -> None:
        """Create the reporter of one session, for which nothing is acknowledged yet."""
        self._manager = manager
        self._storage_error = storage_error
        self._directory_error = directory_error
        #: Last status of each partition that the controller has acknowledged.
        self._acknowledged: dict[TopicIdPartition, control.PartitionStatus] = {}
        #: :func:`fingerprint` of each partition when its status was last acknowledged.
        self._fingerprints: dict[Partition, Hashable] = {}
        #: Broker states at the last report, to detect that a broker became alive or dead.
        self._brokers: Mapping[int, control.BrokerState] | None = None
        #: Last acknowledged state of the broker itself, None before the first report.
        self._health: _Health | None = None
        self._kicked = asyncio.Event()
        self._log_bytes = 0
        #: Time in seconds at which ``_log_bytes`` was computed.
        self._added_up_s = -inf

    def kick(self) -> None:
        """Send a report now."""
        self._kicked.set()

    async def run(self, connection: KafkaConnection, session: ControllerSession) -> None:
        """Report until the session ends (raises) or the task is cancelled."""
        while True:
            self._kicked.clear()
            changed = self._changed()
            health = self._measured()
            if changed or health != self._health:
                await self._send(connection, session, health, changed)
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the next report.

        The minimum pause collects failures of a full disk, which affect many replicas.
        """
        await asyncio.sleep(_LEAST_PAUSE_S)
        await set_within(self._kicked, INTERVAL_S - _LEAST_PAUSE_S)

    def _changed(self) -> list[control.PartitionStatus]:
        """Return the statuses that differ from the last acknowledged ones.

        At most :data:`PARTITIONS_MAX`. The rest is in the next report.
        """
        # The low watermark depends on which followers are alive. A change of that does not change
        # the keys, so all partitions are compared completely.
        if self._brokers is not self._manager.metadata.brokers:
            self._brokers = self._manager.metadata.brokers
            self._fingerprints.clear()
        before, self._fingerprints = self._fingerprints, {}
        led = [partition for partition in self._manager.partitions if partition.role in _REPORTED]
        # Partitions that moved away must be reported again if they return.
        if len(led) < len(self._acknowledged):
            self._forget_all_but(led)
        # The cheap key excludes most partitions. Only the others are computed and compared in full.
        changed = []
        for partition in led:
            current = fingerprint(partition)
            if before.get(partition) != current:
                status = partition_status(partition)
                if self._acknowledged.get(partition.key) != status:
                    changed.append(status)
                    continue
            # Stored only for acknowledged partitions. A lost report is therefore found again.
            self._fingerprints[partition] = current
        return changed[:PARTITIONS_MAX]

    def _forget_all_but(self, led: Iterable[Partition]) -> None:
        keys = {partition.key for partition in led}
        for key in [key for key in self._acknowledged if key not in keys]:
            del self._acknowledged[key]

    def _measured(self) -> _Health:
        partitions = self._manager.partitions
        remote = self._manager.remote
        status = None if remote is None else remote.status()
        return _Health(
            log_bytes=self._bytes_of(partitions),
            replicas=len(partitions),
            storage_error=self._storage_error()[:_MESSAGE_MAX],
            remote_error="" if status is None else status.error[:_MESSAGE_MAX],
            store_id="" if status is None else status.store_id,
            failed_replicas=self._manager.failed_replicas(),
            directory_error=self._directory_error()[:_MESSAGE_MAX],
            set_aside=self._manager.set_aside(),
        )

    def _bytes_of(self, partitions: Collection[Partition]) -> int:
        now_s = asyncio.get_running_loop().time()
        # Summing reads every log, so it is done rarely.
        if now_s - self._added_up_s >= _BYTES_AGE_S:
            self._log_bytes = sum(partition.log.size_bytes for partition in partitions)
            self._added_up_s = now_s
        return self._log_bytes

    async def _send(
        self,
        connection: KafkaConnection,
        session: ControllerSession,
        health: _Health,
        changed: list[control.PartitionStatus],
    ) -> None:
        """Send one BrokerStatus report and record it as acknowledged.

        ``health`` is about the broker itself. ``changed`` contains only the partitions that differ
        from the last acknowledged report.
        """
        # Fields of the broker itself are complete in each report.
        request = control.BrokerStatusRequest(
            broker_id=session.broker_id,
            broker_epoch=session.broker_epoch,
            session_token=session.token,
            log_bytes=health.log_bytes,
            replicas=health.replicas,
            storage_error=health.storage_error,
            remote_error=health.remote_error,
            store_id=health.store_id,
            partitions=tuple(changed),
            failed_replicas=health.failed_replicas,
            directory_error=health.directory_error,
            set_aside=health.set_aside,
        )
        # Recorded only after the acknowledgement, so that a lost report is sent again.
        answer = await connection.request(request, control.BrokerStatusResponse, _TIMEOUT_S)
        check(answer.error_code, "BrokerStatus")
        self._health = health
        self._acknowledged.update(
            {(status.topic_id, status.partition): status for status in changed}
        )
