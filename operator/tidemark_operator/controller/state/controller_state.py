"""In-memory state of the controller, with the indexes that its decisions need.

Rows, tombstones and broker registrations change only by commits that are known to be stored
(:mod:`commit`). Topics and the cluster are as last read from the API server. Everything else here
(health, leaders' reports, ends of logs) may be lost in a takeover. Every look-up costs O(result),
so thousands of unchanged topics cost nothing.
"""

import dataclasses
import uuid
from collections.abc import Iterable, Iterator, KeysView, Mapping

from tidemark.wire.control import (
    PartitionStatesRequest,
    PartitionStatesResponse,
    PartitionStatus,
    ReplicaLog,
    TopicState,
)
from tidemark_operator.controller.state.acknowledgements import Acknowledgements
from tidemark_operator.controller.state.export_values import Exports
from tidemark_operator.controller.state.model import (
    NO_LEADER,
    BrokerHealth,
    BrokerInfo,
    ClusterInfo,
    EngineNotes,
    ExternalAddresses,
    LogEnd,
    PartitionRow,
    PersistedTiering,
    PodState,
    RowKey,
    Tombstone,
    TopicInfo,
    min_insync_replicas,
)
from tidemark_operator.controller.state.partition_index import PartitionIndex
from tidemark_operator.controller.state.replica_state_reports import (
    FailedReplicas,
    ReplicaStateReports,
)
from tidemark_operator.controller.state.rows import SliceContent, slice_of
from tidemark_operator.controller.state.topic_index import TopicIndex
from tidemark_operator.controller.state.users import ClusterUsers

_NO_ROWS: Mapping[int, PartitionRow] = {}
_NO_TOMBSTONES: Mapping[int, Tombstone] = {}


class ControllerState:
    """State from which the controller decides.

    ``controller_epoch`` is this leader's own. ``commit`` is the highest commit number in any slice.
    """

    #: Every live broker has had time to report: one that has not reported is down.
    had_time_to_report = True
    #: CustomResourceDefinitions of Tidemark that are being deleted or do not exist.
    leaving_definitions: frozenset[str] = frozenset()
    #: Why this process cannot renew its certificate for the control listener; "" if it can.
    own_certificate_problem = ""

    def __init__(self, *, controller_id: str, controller_epoch: int, cluster: ClusterInfo) -> None:
        # Everything is empty at first: a takeover loads the PartitionSlices and all objects.
        # A "row" below is a partition's persisted state (replicas, leader, ISR, epochs). A "slice"
        # is a PartitionSlice object, which stores the rows of many partitions.
        self.controller_id = controller_id
        #: Fencing token of this term, above that of all former controllers.
        self.controller_epoch = controller_epoch
        self.cluster = cluster
        #: Number of the last commit to the slices; each group of writes increases it.
        self.commit = 0
        #: The last commit that is known to be stored.
        self.stored_commit = 0
        #: The previous controller's epoch, and the last commit that the takeover found.
        self.found = (0, 0)
        self._planned = 0  # Last commit number that was given to a draft.
        #: By node id: Broker objects, with their registrations.
        self.brokers: dict[int, BrokerInfo] = {}
        #: By node id: storage figures and errors that the broker last reported.
        self.health: dict[int, BrokerHealth] = {}
        self.pods: dict[int, PodState] = {}  # By node id: the broker's pod.
        self.external_addresses = ExternalAddresses()
        #: By partition: the leader's last report of offsets and remote data.
        self.reports: dict[RowKey, PartitionStatus] = {}
        self.topics = TopicIndex()
        self._rows: dict[uuid.UUID, dict[int, PartitionRow]] = {}  # By topic id and partition.
        #: Index of the rows.
        self.partitions = PartitionIndex()
        self.slices = [SliceContent() for _ in range(cluster.slices)]
        #: Deleted topics, by topic id and slice.
        self.tombstones: dict[uuid.UUID, dict[int, Tombstone]] = {}
        #: Topics whose partitions have another number of replicas than the spec.
        self.resizing: set[uuid.UUID] = set()
        #: By partition and node id: reported log ends, each with the broker's epoch. A report is
        #: valid while this epoch and the leader epoch in it are current.
        self.log_reports: dict[RowKey, dict[int, tuple[int, ReplicaLog]]] = {}
        #: Replica states that brokers reported when they registered.
        self.replica_reports = ReplicaStateReports()
        #: Rows that may be older than the states that brokers received (:mod:`rebuilding`).
        #: They are neither changed nor sent to brokers.
        self.unverified_rows: set[RowKey] = set()
        #: Rows that this term has changed, as they were at its start.
        self.at_first: dict[RowKey, PartitionRow] = {}
        #: Topics to restore from the tier that are not in it, with the reason.
        self.not_in_tier: dict[uuid.UUID, str] = {}
        self.storage_failures = FailedReplicas()
        #: Which leaders and replicas have not acknowledged their state yet.
        self.acknowledgements = Acknowledgements()
        #: No broker has connected to this controller, though it has led for a while.
        self.unreached = False
        #: Why Broker objects or their shared objects cannot be managed; "" if they can.
        self.brokers_problem = ""
        self.broker_epoch_max = 0  # Highest broker epoch that was ever assigned.
        self.users, self.exports = ClusterUsers(), Exports()
        self.engine = EngineNotes()  # Facts about an external Kafka cluster.
        #: Key with which brokers answer unknown user names; never compared nor shown.
        self.strangers_key = b""

    def next_commit(self) -> int:
        """Return a number above those of all stored and all planned commits."""
        self._planned = max(self.commit, self._planned) + 1
        return self._planned

    # ---- topics

    def put_topic(self, topic: TopicInfo) -> None:
        """Take a Topic as it is in the API server, also after each status write of the operator.

        Three facts may be newer than its status: a stored record of its placement, the tiering
        state that brokers have received (a higher tiering epoch), and whether a deletion with a
        grace period has something to keep.
        """
        recorded = self.slices[self.record_home(topic.id)].records.get(topic.id, 0)
        if recorded > topic.partitions_placed:
            topic = dataclasses.replace(topic, partitions_placed=recorded)
        # A restored backup may have an older tiering than the one that brokers already obey.
        reported = self.replica_reports.tiering(topic.id)
        if reported.epoch > topic.tiering.epoch:
            tiering_status = PersistedTiering(
                tiering=reported, since_ms=topic.tiering_status.since_ms
            )
            topic = dataclasses.replace(topic, tiering_status=tiering_status)
        # The end of the grace period only replaces the time of the deletion, which paces statuses.
        if topic.deletion_due_ms is not None and not self._can_be_kept(topic):
            topic = dataclasses.replace(
                topic, deletion_ms=topic.deletion_due_ms, deletion_due_ms=None
            )
        self.topics.put(topic)

    def _can_be_kept(self, topic: TopicInfo) -> bool:
        """Return whether a deleted topic exists and its deletion has not started.

        Tombstones prove a start: a grace period that is set later, or by another version of the
        operator, cannot stop brokers that already delete. A lost status proves nothing, so rows and
        the record of a placement count as well as an id. Apache Kafka may have a topic whose id was
        never recorded, because the answer to the request was lost.
        """
        if topic.id in self.tombstones:
            return False
        recorded = topic.id in self.slices[self.record_home(topic.id)].records
        is_known = topic.topic_id is not None or topic.partitions_placed > 0
        return is_known or recorded or bool(self.rows_of(topic.id))

    def take_replica_report(self, node_id: int, states: Iterable[TopicState]) -> None:
        """Take a broker's report of the replica states that it has received.

        Topics with a tombstone are dropped from the report: they are being deleted, and the broker
        receives a removal.
        """
        self.replica_reports.take(node_id, states)
        for topic_id in {topic_id for topic_id, _ in self.replica_reports.keys_on(node_id)}:
            if topic_id in self.tombstones:
                self.replica_reports.forget_topic(topic_id)
                continue
            # A report with a newer tiering state than the Topic's status replaces it.
            topic = self.topics.by_id(topic_id)
            if (
                topic is not None
                and self.replica_reports.tiering(topic_id).epoch > topic.tiering.epoch
            ):
                self.put_topic(topic)

    def row_name(self, topic_id: uuid.UUID) -> str:
        """Return the name of a topic in its rows, "" for none."""
        row = self.row((topic_id, 0))
        return "" if row is None else row.name

    # ---- rows

    def row(self, key: RowKey) -> PartitionRow | None:
        return self._rows.get(key[0], _NO_ROWS).get(key[1])

    def rows_of(self, topic_id: uuid.UUID) -> Mapping[int, PartitionRow]:
        """Return the rows of a topic by partition."""
        return self._rows.get(topic_id, _NO_ROWS)

    def row_topic_ids(self) -> KeysView[uuid.UUID]:
        """Return the ids of the topics that have rows."""
        return self._rows.keys()

    def partitions_of(self, topic: TopicInfo) -> int:
        """Return the number of a topic's partitions, those in doubt included.

        It is the highest number in its status, its record and the brokers' reports. Partitions are
        never removed, so the highest number is right even after a restored backup.
        """
        reported = 0
        if topic.id not in self.tombstones:
            reported = self.replica_reports.partitions(topic.id)
        return max(topic.partitions_placed, reported)

    def has_unknown_hosts(self) -> bool:
        """Return whether rows name brokers without a Broker object."""
        return not self.partitions.hosts() <= self.brokers.keys()

    def all_rows(self) -> Iterator[PartitionRow]:
        """Yield all rows. This is O(partitions): periodic work must not call it."""
        for rows in self._rows.values():
            yield from rows.values()

    def short_of_replicas(self) -> int:
        """Return how many partitions have fewer reliable in-sync members than replicas."""
        partitions = self.partitions
        short = partitions.offline | partitions.behind | partitions.with_placeholders
        # The indexes do not see storage that fails or replicas that no broker has acknowledged.
        doubted = {key for _, key in self.storage_failures.all()}.union(
            self.acknowledgements.unacknowledged()
        )
        rows = (self.row(key) for key in doubted - short)
        return len(short) + sum(
            len(self.in_sync(row)) < len(row.replicas) for row in rows if row is not None
        )

    def min_isr(self, row: PartitionRow) -> int:
        """Return the effective min.insync.replicas of a partition; 1 without a Topic."""
        topic = self.topics.by_id(row.topic_id)
        if topic is None:
            return 1
        # Placeholders of an internal topic do not count: one broker alone serves groups and
        # transactions.
        places = row.hosts if topic.is_internal else row.replicas
        # Replicas being added do not count before they are in place, or a move would stop
        # producers.
        present = sum(replica not in row.adding for replica in places)
        return min_insync_replicas(topic, self.cluster, present)

    def logs_of(self, row: PartitionRow) -> dict[int, LogEnd | None]:
        """Return the log ends that registered brokers reported for the row's leader epoch.

        The end is None if the broker's storage fails.
        """
        reports = self.log_reports.get(row.key, {})
        return {
            node_id: None if log.error_code else LogEnd(log.last_epoch, log.next_offset)
            for node_id, (broker_epoch, log) in reports.items()
            if log.leader_epoch == row.leader_epoch
            and (broker := self.brokers.get(node_id)) is not None
            and broker.broker_epoch == broker_epoch
        }

    def slice_index(self, key: RowKey) -> int:
        return slice_of(key[0], key[1], self.cluster.slices)

    def record_home(self, topic_id: uuid.UUID) -> int:
        """Return the slice with the record of a topic's placement.

        It is slice 0 for almost all topics, so that records share a write. Topics whose own rows
        start in slice 0 use another slice.
        """
        return int(self.slice_index((topic_id, 0)) == 0) % self.cluster.slices

    def put_records(self, index: int, records: Mapping[uuid.UUID, int]) -> None:
        """Take the records of one slice, which are known to be persisted."""
        content = self.slices[index]
        fresh = [id_ for id_ in records if records[id_] != content.records.get(id_)]
        content.records = dict(records)
        for topic_id in fresh:
            topic = self.topics.by_id(topic_id)
            if topic is not None:
                self.put_topic(topic)

    def put_row(self, row: PartitionRow) -> None:
        """Put a partition's row into the state and all indexes. The row must be persisted.

        Only the loading of slices and :mod:`commit` call it.
        """
        # Remove the former row first, so that no counter counts the partition twice.
        self._unindex(row.key)
        self._rows.setdefault(row.topic_id, {})[row.partition] = row
        self.slices[self.slice_index(row.key)].add(row)
        self.partitions.add(row)
        # Reports of log ends are only useful while the partition waits for them.
        if row.key not in self.partitions.awaiting_logs:
            self.log_reports.pop(row.key, None)

    def remove_row(self, key: RowKey) -> None:
        """Forget a row whose removal is known to be persisted, and everything reported about it."""
        self.storage_failures.forget_row(key)
        self.reports.pop(key, None)
        self.log_reports.pop(key, None)
        self.unverified_rows.discard(key)
        self.at_first.pop(key, None)
        self._unindex(key)

    def forget_reports(self, topic_id: uuid.UUID) -> None:
        """Forget what leaders reported of a topic whose Topic object has disappeared.

        Its rows stay, but the reports are not renewed.
        """
        for partition in self.rows_of(topic_id):
            self.reports.pop((topic_id, partition), None)

    def _unindex(self, key: RowKey) -> None:
        """Remove a row from all indexes; no effect if the row does not exist."""
        row = self.row(key)
        if row is None:
            return
        rows = self._rows[key[0]]
        del rows[key[1]]
        if not rows:
            del self._rows[key[0]]
        self.slices[self.slice_index(key)].remove(row)
        self.partitions.remove(row)

    # ---- brokers and tombstones

    def put_broker(self, broker: BrokerInfo) -> None:
        former = self.brokers.get(broker.node_id)
        if former is not None and former.broker_epoch != broker.broker_epoch:
            # Another process: it reports for itself.
            self.storage_failures.put(broker.node_id, frozenset())
            self.acknowledgements.broker_gone(broker.node_id)
        self.brokers[broker.node_id] = broker
        self.broker_epoch_max = max(self.broker_epoch_max, broker.broker_epoch)

    def drop_broker(self, node_id: int) -> None:
        """Forget a Broker object that has disappeared.

        :mod:`registration` has changed its rows before.
        """
        self.brokers.pop(node_id, None)
        self.replica_reports.forget_broker(node_id)
        self.health.pop(node_id, None)
        self.pods.pop(node_id, None)
        self.external_addresses.brokers.pop(node_id, None)
        self.storage_failures.put(node_id, frozenset())
        self.acknowledgements.broker_gone(node_id)

    def directory_of(self, node_id: int, index: int) -> uuid.UUID | None:
        """Return the log directory with a broker's replicas of one slice.

        None if it is not known.
        """
        broker = self.brokers.get(node_id)
        return (
            self.slices[index].directories.get(node_id) or (broker and broker.directory_id) or None
        )

    def refuses(self, row: PartitionRow, node_id: int) -> bool:
        """Return whether the storage of one replica fails, by its broker's report or
        acknowledgement.
        """
        return row.key in self.storage_failures.on(
            node_id
        ) or self.acknowledgements.storage_refuses(row, node_id)

    def in_sync(self, row: PartitionRow) -> tuple[int, ...]:
        """Return the reliable members of an ISR; none without a leader.

        A member does not count if it has not acknowledged the partition, or its storage fails.
        """
        if row.leader == NO_LEADER:
            return ()
        known = self.acknowledgements
        return tuple(
            node_id
            for node_id in row.isr
            if known.has_replica(row, node_id) and not self.refuses(row, node_id)
        )

    def take_states(
        self, node_id: int, request: PartitionStatesRequest, response: PartitionStatesResponse
    ) -> set[uuid.UUID]:
        """Take a broker's response to a PartitionStates request.

        Return topics whose status may change. With a broker's first snapshot of a term, these
        include the topics that it leads and that were not Ready, because nothing could be
        acknowledged before.
        """
        broker = self.brokers.get(node_id)
        if broker is None:
            return set()
        keys = (
            (topic.topic_id, row.partition) for topic in request.topics for row in topic.partitions
        )
        present = [row for row in map(self.row, keys) if row is not None]
        # Before a broker's first answer of this term its partitions could not be reported Ready.
        had_snapshot = self.acknowledgements.has_snapshot(broker)
        news = self.acknowledgements.take(broker, present, request, response)
        if not had_snapshot and self.acknowledgements.has_snapshot(broker):
            led = {row.topic_id for row in present if row.leader == node_id}
            topics = ((topic_id, self.topics.by_id(topic_id)) for topic_id in led)
            news.update(id_ for id_, topic in topics if topic is not None and not topic.was_ready)
        return news

    def live_brokers(self) -> list[BrokerInfo]:
        """Return the brokers that may lead and take replicas, by node id."""
        return [broker for _, broker in sorted(self.brokers.items()) if broker.live]

    def is_live(self, node_id: int) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and broker.live

    def tombstones_of(self, topic_id: uuid.UUID) -> Mapping[int, Tombstone]:
        """Return the tombstones of a deleted topic by slice."""
        return self.tombstones.get(topic_id, _NO_TOMBSTONES)

    def put_tombstone(self, topic_id: uuid.UUID, index: int, tombstone: Tombstone | None) -> None:
        """Take a tombstone, or its removal (None), that is known to be persisted."""
        content = self.slices[index]
        if tombstone is not None:
            self.replica_reports.forget_topic(topic_id)
            self.tombstones.setdefault(topic_id, {})[index] = tombstone
            content.tombstones[topic_id] = tombstone
            return
        content.tombstones.pop(topic_id, None)
        found = self.tombstones.get(topic_id, {})
        found.pop(index, None)
        if not found:
            self.tombstones.pop(topic_id, None)
