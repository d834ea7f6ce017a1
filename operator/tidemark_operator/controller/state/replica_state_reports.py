"""Reports of brokers about their replicas, in memory: states before admission, and failures.

Before a broker is admitted it reports the state of its replicas (``ReplicaStates``).

Each replica's broker stores the last state from the controller beside the log. If the slices are
lost, or older than that (API data restored from a backup), these reports are what is left of later
decisions. A report is the state at registration; what this controller has sent since is newer, and
in the slices. A row that no controller can have written counts as none: the replica exists, but its
state is not known.
"""

import dataclasses
import uuid
from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping

from tidemark.leader_epochs import GENERATION
from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.logfiles.names import parse_partition_directory, partition_directory_name
from tidemark.tiering import NEVER_TIERED, DisablePolicy, Tiering, TieringState
from tidemark.wire.control import PartitionState, TopicState
from tidemark_operator.controller.state.model import NO_EPOCH, NO_LEADER, PartitionRow, RowKey

#: Limits as in the resources.
PARTITIONS_MAX = 10_000
REPLICAS_MAX = 100
#: Highest epoch that leaves room for another rebuilding; no controller writes a higher one.
EPOCH_MAX = 2**31 - 1 - 2 * GENERATION
_NODE_ID_MAX = 2**31 - 1
_NOBODY: Mapping[int, PartitionRow] = {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTopic:
    """A topic as one broker reports it.

    ``partitions`` is its number of partitions as far as that broker knows, its own replicas
    included.
    """

    name: str
    tiering: Tiering
    partitions: int = 0


class ReplicaStateReports:
    """Reports of all brokers in this term, by topic, partition and broker."""

    def __init__(self) -> None:
        self._rows: dict[uuid.UUID, dict[int, dict[int, PartitionRow]]] = {}
        self._topics: dict[uuid.UUID, dict[int, ReportedTopic]] = {}
        self._reporting: set[int] = set()
        #: Brokers, by partition, whose log may have lost records since they received its state. A
        #: later report of such a broker does not remove it.
        self._torn: dict[RowKey, set[int]] = {}
        self._ids_by_name: dict[str, set[uuid.UUID]] = {}
        #: Brokers that a report of this term names as a replica.
        self._named: set[int] = set()

    # ------------------------------------------------------------ reports

    def take(self, node_id: int, topics: Iterable[TopicState]) -> None:
        """Replace a broker's report by a new one, with all replica states that it has received."""
        self.forget_broker(node_id)
        self._reporting.add(node_id)
        for topic in topics:
            # A name that Kafka does not allow cannot be of a topic: ignore it.
            if parse_partition_directory(partition_directory_name(topic.name, 0)) is None:
                continue  # not a valid topic name
            self._take_topic(node_id, topic)
            partitions = self._rows.setdefault(topic.topic_id, {})
            for reported in topic.partitions:
                # Equal rows of several brokers share one object, which saves memory.
                if _is_number(reported.partition):
                    by_node = partitions.setdefault(reported.partition, {})
                    row = _shared(_row(topic.topic_id, reported), by_node.values())
                    by_node[node_id] = row
                    self._named.update(row.hosts)
                    # This replica may have lost records in a crash.
                    if not reported.has_all_records:
                        key = topic.topic_id, reported.partition
                        self._torn.setdefault(key, set()).add(node_id)

    def _take_topic(self, node_id: int, topic: TopicState) -> None:
        """Take one topic of a broker's report.

        A large topic is reported on several pages, each with its part of the replicas.
        """
        # The reported number of partitions may be missing or implausible, so the replicas count
        # too.
        by_node, tiering = self._topics.setdefault(topic.topic_id, {}), _tiering(topic)
        numbers = [state.partition for state in topic.partitions if _is_number(state.partition)]
        counted = topic.partition_count if _is_number(topic.partition_count - 1) else 0
        partitions = max([counted, *(number + 1 for number in numbers)])
        former = by_node.get(node_id)
        if former is None:
            by_node[node_id] = ReportedTopic(
                name=topic.name, tiering=tiering, partitions=partitions
            )
            self._ids_by_name.setdefault(topic.name, set()).add(topic.topic_id)
            return
        # A later page: the highest epoch and number of all pages count.
        by_node[node_id] = dataclasses.replace(
            former,
            tiering=max(former.tiering, tiering, key=lambda state: state.epoch),
            partitions=max(former.partitions, partitions),
        )

    def forget_broker(self, node_id: int) -> None:
        """Forget a broker's report, when a new one replaces it or its Broker object is deleted."""
        self._reporting.discard(node_id)
        # Remove the broker from each topic and partition, and drop what no other broker reports.
        for topic_id, by_node in list(self._topics.items()):
            former = by_node.pop(node_id, None)
            if former is None:
                continue
            if all(other.name != former.name for other in by_node.values()):
                self._forget_name(topic_id, former.name)
            partitions = self._rows.get(topic_id, {})
            for partition, rows in list(partitions.items()):
                rows.pop(node_id, None)
                if not rows:
                    del partitions[partition]
            if not by_node:
                self.forget_topic(topic_id)

    def forget_topic(self, topic_id: uuid.UUID) -> None:
        """Forget all reports of a topic that is being deleted."""
        for partition in self._rows.pop(topic_id, {}):
            self._torn.pop((topic_id, partition), None)
        for name in {topic.name for topic in self._topics.pop(topic_id, {}).values()}:
            self._forget_name(topic_id, name)

    def _forget_name(self, topic_id: uuid.UUID, name: str) -> None:
        ids = self._ids_by_name.get(name, set())
        ids.discard(topic_id)
        if not ids:
            self._ids_by_name.pop(name, None)

    # ------------------------------------------------------------ queries

    def has_reported(self, node_id: int) -> bool:
        """Return whether a broker has reported in this term."""
        return node_id in self._reporting

    def names(self, node_id: int) -> bool:
        """Return whether any broker reported a replica on this one."""
        return node_id in self._named

    def of(self, key: RowKey) -> Mapping[int, PartitionRow]:
        """Return the reported states of a partition by broker."""
        return self._rows.get(key[0], {}).get(key[1], _NOBODY)

    def is_intact(self, key: RowKey, node_id: int) -> bool:
        """Return whether a broker's replica has lost nothing since it received its state."""
        return node_id in self.of(key) and node_id not in self._torn.get(key, ())

    def keys_on(self, node_id: int) -> list[RowKey]:
        """Return the replicas of one broker."""
        return [
            (topic_id, partition)
            for topic_id, by_node in self._topics.items()
            if node_id in by_node
            for partition, rows in self._rows.get(topic_id, {}).items()
            if node_id in rows
        ]

    def numbers(self, topic_id: uuid.UUID) -> Collection[int]:
        """Return the partitions of a topic of which any broker has a replica."""
        return self._rows.get(topic_id, {}).keys()

    def partitions(self, topic_id: uuid.UUID) -> int:
        """Return the highest number of a topic's partitions in any broker's report."""
        reported = self._topics.get(topic_id, {}).values()
        return max((topic.partitions for topic in reported), default=0)

    def brokers_of(self, topic_id: uuid.UUID) -> frozenset[int]:
        """Return the brokers that report a topic."""
        return frozenset(self._topics.get(topic_id, ()))

    def topic_ids(self) -> KeysView[uuid.UUID]:
        """Return the ids of all reported topics."""
        return self._topics.keys()

    def ids_named(self, name: str) -> list[uuid.UUID]:
        """Return the ids of the topics that are reported under a name."""
        ids = self._ids_by_name.get(name, ())
        return sorted(topic_id for topic_id in ids if self.name(topic_id) == name)

    def name(self, topic_id: uuid.UUID) -> str:
        """Return the reported name of a topic; of several, which is an error, the first."""
        return min((topic.name for topic in self._topics.get(topic_id, {}).values()), default="")

    def tiering(self, topic_id: uuid.UUID) -> Tiering:
        """Return a topic's tiering with the highest epoch that any broker reports."""
        reported = (topic.tiering for topic in self._topics.get(topic_id, {}).values())
        return max(reported, key=lambda tiering: tiering.epoch, default=NEVER_TIERED)


def _is_number(partition: int) -> bool:
    return 0 <= partition < PARTITIONS_MAX


def _shared(row: PartitionRow, others: Iterable[PartitionRow]) -> PartitionRow:
    """Return the equal row of another broker if there is one, to save memory."""
    return next((other for other in others if other == row), row)


def _row(topic_id: uuid.UUID, reported: PartitionState) -> PartitionRow:
    """Return a reported replica state as a row.

    An implausible state becomes a row without replicas.
    """
    # The replica exists, but nothing can be decided from a state that no controller wrote.
    if not _can_be(reported):
        return PartitionRow(
            topic_id=topic_id,
            partition=reported.partition,
            replicas=(),
            isr=(),
            leader_epoch=NO_EPOCH,
            partition_epoch=NO_EPOCH,
        )
    return PartitionRow(
        topic_id=topic_id,
        partition=reported.partition,
        replicas=reported.replicas,
        isr=reported.isr,
        leader=reported.leader,
        leader_epoch=reported.leader_epoch,
        partition_epoch=reported.partition_epoch,
        adding=reported.adding,
        removing=reported.removing,
        manifest=reported.manifest,
        leader_recovery_state=LeaderRecoveryState(reported.leader_recovery_state),
        elr=reported.elr,
        last_known_elr=reported.last_known_elr,
    )


def _can_be(reported: PartitionState) -> bool:
    """Return whether a reported state is plausible, that is, a controller may have written it."""
    replicas = set(reported.replicas)
    parts = (
        reported.isr,
        reported.adding,
        reported.removing,
        reported.elr,
        reported.last_known_elr,
    )
    # Epochs and replicas within limits, and every other list a part of the replicas.
    return (
        0 <= reported.leader_epoch <= EPOCH_MAX
        and 0 <= reported.partition_epoch <= EPOCH_MAX
        and 0 < len(replicas) == len(reported.replicas) <= REPLICAS_MAX
        and all(-REPLICAS_MAX <= node_id <= _NODE_ID_MAX for node_id in replicas)
        and reported.leader in (NO_LEADER, *replicas)
        and all(set(part) <= replicas and len(set(part)) == len(part) for part in parts)
        and all(
            node_id >= 0 for node_id in (*reported.isr, *reported.elr, *reported.last_known_elr)
        )
        and reported.leader_recovery_state in tuple(LeaderRecoveryState)
    )


def _tiering(topic: TopicState) -> Tiering:
    try:
        state, policy = TieringState(topic.tiering_state), DisablePolicy(topic.disable_policy)
    except ValueError:
        return NEVER_TIERED
    if state is TieringState.NONE or not 0 <= topic.tiered_epoch <= EPOCH_MAX:
        return NEVER_TIERED
    return Tiering(state, topic.tiered_epoch, policy).in_force


class FailedReplicas:
    """Replicas whose storage fails, by their broker's last report.

    Invariant: a broker has an entry only while its present process reports at least one failed
    replica, and an entry names only partitions that have a row.
    """

    def __init__(self) -> None:
        self._failed: dict[int, frozenset[RowKey]] = {}

    def put(self, node_id: int, keys: frozenset[RowKey]) -> frozenset[RowKey]:
        """Take a broker's report; return the replicas that changed."""
        former = self.on(node_id)
        if keys:
            self._failed[node_id] = keys
        else:
            self._failed.pop(node_id, None)
        return former ^ keys

    def forget_row(self, key: RowKey) -> None:
        for node_id in [node_id for node_id, failed in self._failed.items() if key in failed]:
            self.put(node_id, self._failed[node_id] - {key})

    def on(self, node_id: int) -> frozenset[RowKey]:
        """Return the failed replicas of a broker."""
        return self._failed.get(node_id, frozenset())

    def all(self) -> Iterator[tuple[int, RowKey]]:
        """Yield every failed replica: its broker and its partition."""
        return ((node_id, key) for node_id, keys in self._failed.items() for key in keys)

    def has_replica(self, key: RowKey) -> bool:
        """Return whether any replica of a partition has failed."""
        return any(key in keys for keys in self._failed.values())
