"""Metrics of the broker.

Partition metrics are sums, because a label per partition would grow without limit. Topic metrics
have a page of their own for scrapers that accept that number of series. The functions
only read, so the page's thread may call them.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.core import Metric

from tidemark.metrics import broker_table, topic_table
from tidemark.metrics.families import Values, family, single, singles
from tidemark.tls.files import CERTIFICATE
from tidemark_broker.groups.core.values import GroupState
from tidemark_broker.groups.group_coordinator import GroupCoordinator
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.remote import RemoteSummary, WaitingRecords
from tidemark_broker.transactions.coordinator import TransactionCoordinator


def broker_metrics(
    manager: ReplicaManager, *, fenced: bool, connected: bool, loop_age_ms: int
) -> Iterator[Metric]:
    """Return the metrics ``tidemark_broker_*``: replicas, failures, session and event loop."""
    partitions = manager.partitions
    led = [partition for partition in partitions if partition.is_leader]
    # Led partitions whose ISR lacks some of the assigned replicas.
    short = [
        partition
        for partition in led
        if partition.row and len(partition.isr) < len(partition.row.replicas)
    ]
    context = manager.context
    # Sums, because a label per partition would grow without limit.
    return singles(
        {
            broker_table.REPLICAS: len(partitions),
            broker_table.LEADERS: len(led),
            broker_table.OFFLINE_REPLICAS: manager.offline_count,
            broker_table.FAILING_REPLICAS: context.failures.count,
            broker_table.UNDER_REPLICATED: len(short),
            broker_table.UNDER_MIN_ISR: sum(partition.under_min_isr for partition in led),
            broker_table.LOG_BYTES: sum(partition.log.size_bytes for partition in partitions),
            broker_table.PRODUCER_IDS: sum(
                len(partition.log.producers) for partition in partitions
            ),
            broker_table.PRODUCERS_REFUSED: context.refused.of_new_producers,
            broker_table.PURGATORY: context.purgatory.size,
            broker_table.FENCED: float(fenced),
            broker_table.CONTROLLER_CONNECTED: float(connected),
            broker_table.LOOP_AGE: loop_age_ms / 1000,
            broker_table.STORAGE_FAILURES: context.failures.total,
        }
    )


def certificate_metrics(folders: Mapping[str, Sequence[Path]]) -> Iterator[Metric]:
    """Yield the earliest expiry of the certificates in folders, by purpose.

    A certificate that cannot be read has no sample. The broker's log contains the cause.
    """
    ends: Values = {
        (name,): min(found) for name, folders in folders.items() if (found := list(_ends(folders)))
    }
    yield family(broker_table.CERTIFICATE_EXPIRY, ends)


# The import is slow, so only a broker whose page is scraped pays for it.
def _ends(folders: Iterable[Path]) -> Iterator[float]:
    from cryptography import x509

    for folder in folders:
        try:
            certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
        # A missing file must not hide the expiry of the others.
        except (OSError, ValueError):
            continue
        yield certificate.not_valid_after_utc.timestamp()


# ---------------------------------------------------------------- topics


@dataclass(slots=True)
class _TopicSums:
    """Sums over the partitions of a topic that this broker leads."""

    tiering: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    remote_only: int = 0
    in_both: int = 0
    local_only: int = 0
    end_offsets: int = 0
    local_bytes: int = 0
    remote_bytes: int = 0
    remote_segments: int = 0
    remaining_bytes: int = 0
    waiting_bytes: int = 0
    #: Append time of the oldest record that waits for the tier, None if none waits.
    waiting_since_ms: int | None = None
    errors: int = 0

    def add_waiting(self, records: WaitingRecords) -> None:
        """Add the records of one partition that wait for the tier."""
        self.waiting_bytes += records.size_bytes
        since_ms = self.waiting_since_ms
        if since_ms is None or records.since_ms < since_ms:
            self.waiting_since_ms = records.since_ms

    def lag_seconds(self, now_ms: int) -> float:
        """Return the age of the oldest record that waits for the tier."""
        since_ms = self.waiting_since_ms
        return 0.0 if since_ms is None else max(0, now_ms - since_ms) / 1000

    def add(self, partition: Partition, remote: RemoteSummary) -> None:
        """Add one partition to the sums.

        Offsets are counted by place: only in the tier, in both, only local. They approximate the
        number of records.
        """
        log = partition.log
        start, local, end = log.log_start_offset, log.local_log_start_offset, log.next_offset
        # Offsets below the log start may still be in the tier, but no client can read them.
        tier_end = max(start, remote.highest_remote_offset + 1)
        self.tiering[partition.tiering.state.name.capitalize()] += 1
        self.remote_only += max(0, local - start)
        self.in_both += max(0, tier_end - local)
        self.local_only += max(0, end - max(tier_end, local))
        self.end_offsets += end
        self.local_bytes += log.size_bytes
        self.remote_bytes += remote.size_bytes
        self.remote_segments += remote.segments
        self.remaining_bytes += remote.remaining_bytes
        self.errors += bool(remote.error_reason)

    @property
    def size_bytes(self) -> int:
        """Bytes in both tiers, which decide which topics are shown."""
        return self.local_bytes + self.remote_bytes


def topic_metrics(manager: ReplicaManager, most: int = topic_table.TOPICS_MAX) -> Iterator[Metric]:
    """Yield the metrics ``tidemark_topic_*`` of the largest topics.

    A topic's values are sums over the partitions that this broker leads.
    """
    # The page is bounded: small topics are left out, and LEFT_OUT counts them.
    topics = _sums(manager)
    shown = dict(heapq.nlargest(most, topics.items(), key=lambda item: item[1].size_bytes))

    # One sample for each topic.
    def of_each(value: Callable[[_TopicSums], float]) -> Values:
        return {(name,): value(topic) for name, topic in shown.items()}

    tiering: Values = {
        (name, state): number
        for name, topic in shown.items()
        for state, number in topic.tiering.items()
    }
    # Number of offsets of each topic by place: only remote, both, only local.
    offsets: Values = {
        (name, where): value
        for name, topic in shown.items()
        for where, value in (
            ("remote", topic.remote_only),
            ("both", topic.in_both),
            ("local", topic.local_only),
        )
    }
    yield family(topic_table.PARTITIONS, tiering)
    yield family(topic_table.OFFSETS, offsets)
    yield family(topic_table.END_OFFSETS, of_each(lambda topic: topic.end_offsets))
    yield family(topic_table.LOCAL_BYTES, of_each(lambda topic: topic.local_bytes))
    yield family(topic_table.REMOTE_BYTES, of_each(lambda topic: topic.remote_bytes))
    yield family(topic_table.REMOTE_SEGMENTS, of_each(lambda topic: topic.remote_segments))
    yield family(topic_table.REMAINING_BYTES, of_each(lambda topic: topic.remaining_bytes))
    now_ms = manager.context.wall_ms()
    yield family(topic_table.COPY_LAG_SECONDS, of_each(lambda topic: topic.lag_seconds(now_ms)))
    yield family(topic_table.WAITING_BYTES, of_each(lambda topic: topic.waiting_bytes))
    yield family(topic_table.TIER_ERRORS, of_each(lambda topic: topic.errors))
    yield single(topic_table.LEFT_OUT, len(topics) - len(shown))


def _sums(manager: ReplicaManager) -> dict[str, _TopicSums]:
    # Only leaders report, so each partition counts once in the cluster.
    topics: dict[str, _TopicSums] = {}
    remote = manager.context.remote
    for partition in manager.partitions:
        if partition.is_leader:
            summary = RemoteSummary() if remote is None else remote.summary(partition)
            sums = topics.setdefault(partition.topic, _TopicSums())
            sums.add(partition, summary)
            records = None if remote is None else remote.waiting(partition)
            if records is not None:
                sums.add_waiting(records)
    return topics


# ------------------------------------------------------------ coordinators


def group_metrics(groups: GroupCoordinator) -> Iterator[Metric]:
    """Yield metrics of groups by state, because a label per group would grow without limit.

    Dead groups do not count.
    """
    (label,) = broker_table.GROUPS.labels
    counts = dict.fromkeys(label.values, 0)
    members = 0
    # A snapshot for each shard, since the loop changes groups meanwhile.
    for shard in groups.coordinators.active():
        for group in shard.all_groups():
            if group.state is not GroupState.DEAD:
                counts[group.state.value] += 1
            members += len(group.members)
    yield family(broker_table.GROUPS, {(state,): number for state, number in counts.items()})
    yield single(broker_table.GROUP_MEMBERS, members)
    yield single(broker_table.GROUPS_BYTES, groups.room.used_bytes)


def transaction_metrics(coordinator: TransactionCoordinator) -> Iterator[Metric]:
    """Yield sums over the partitions of ``__transaction_state`` that this broker leads."""
    shards = list(coordinator.coordinators.active())
    yield single(broker_table.TRANSACTIONAL_IDS, sum(len(shard.table) for shard in shards))
    yield single(broker_table.TRANSACTIONS_BYTES, sum(shard.table.weight_bytes for shard in shards))
    yield single(broker_table.WITHOUT_MARKERS, coordinator.markers.queue.unfinished)
