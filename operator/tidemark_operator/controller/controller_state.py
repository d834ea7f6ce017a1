"""The controller's picture of the world, with the look-ups that decisions need.

Rows, tombstones and broker registrations advance only by commits known to have succeeded
(:mod:`commit`); topics and the cluster are what the API server last said. Everything else here
(health, leaders' reports, ends of logs) is memory that a take-over may lose. All look-ups are
O(answer), so that thousands of topics cost nothing until they change.
"""

import dataclasses
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Mapping

from tidemark.tiering import TieringState
from tidemark.wire.control import (
    PartitionStatesRequest,
    PartitionStatesResponse,
    PartitionStatus,
    TopicState,
)
from tidemark_operator.controller.acknowledgements import Acknowledgements
from tidemark_operator.controller.eligible_leaders import awaits_logs
from tidemark_operator.controller.exports import Exports
from tidemark_operator.controller.external_addresses import WaysIn
from tidemark_operator.controller.model import (
    NO_LEADER,
    BrokerHealth,
    BrokerInfo,
    ClusterInfo,
    EngineNotes,
    LogEnd,
    LogReport,
    PartitionRow,
    RowKey,
    TieringStatus,
    Tombstone,
    TopicInfo,
    min_insync_replicas,
)
from tidemark_operator.controller.pod_state import PodState
from tidemark_operator.controller.replica_state_reports import HeldStates
from tidemark_operator.controller.rows import encode_row, slice_of
from tidemark_operator.controller.users import Users

#: JSON around a string of a list: two quotes and a comma.
JSON_BYTES = 3
_NO_ROWS: Mapping[int, PartitionRow] = {}
_NO_TOMBSTONES: Mapping[int, Tombstone] = {}


def collision_key(topic: str) -> str:
    """Names with the same one cannot be told apart in names of metrics (Kafka's
    ``Topic.unifyCollisionChars``)."""
    return topic.replace(".", "_")


class ControllerState:
    """Everything the core knows. ``controller_epoch`` is this leader's own; ``commit`` the number
    of the last commit that any slice carries."""

    #: Whether every live broker has had time to report. One that has not reported is down.
    had_time_to_report = True
    #: Definitions of our kinds that are being deleted or do not exist.
    leaving_definitions: frozenset[str] = frozenset()
    #: Why this process cannot renew its certificate for the control listener; "": it can.
    own_certificate_problem = ""

    def __init__(self, *, controller_id: str, controller_epoch: int, cluster: ClusterInfo) -> None:
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch
        self.cluster = cluster
        self.commit = 0
        #: The last commit that is known to be stored.
        self.landed = 0
        #: The epoch of the controller before, and the last commit that the take-over found.
        self.found = (0, 0)
        self._planned = 0
        self.brokers: dict[int, BrokerInfo] = {}
        self.health: dict[int, BrokerHealth] = {}
        self.pods: dict[int, PodState] = {}
        self.ways_in = WaysIn()
        self.reports: dict[RowKey, PartitionStatus] = {}
        self.topics: dict[str, TopicInfo] = {}
        #: How many topics are in each state of tiering, and which are being disabled.
        self.tierings: Counter[TieringState] = Counter()
        self.disabling: set[str] = set()
        self.encoded: list[dict[RowKey, str]] = [{} for _ in range(cluster.slices)]
        self.row_bytes = [0] * cluster.slices
        self._tombstones: dict[uuid.UUID, dict[int, Tombstone]] = {}
        self._tombstones_in: list[dict[uuid.UUID, Tombstone]] = [{} for _ in range(cluster.slices)]
        #: The log directory of each broker as a slice has it, and how many rows of the slice name
        #: it.
        self.directories: list[dict[int, uuid.UUID]] = [{} for _ in range(cluster.slices)]
        self.hosted: list[Counter[int]] = [Counter() for _ in range(cluster.slices)]
        #: By slice: placements that no status counts yet (:mod:`placement_records`).
        self.records: list[dict[uuid.UUID, int]] = [{} for _ in range(cluster.slices)]
        self.with_placeholders: set[RowKey] = set()
        #: Partitions that nobody leads.
        self.offline: set[RowKey] = set()
        #: Partitions of which a reassignment is under way.
        self.moving: set[RowKey] = set()
        #: Partitions of which a replica is on a broker and not in the ISR.
        self.behind: set[RowKey] = set()
        #: Partitions that are led, and not by their preferred leader.
        self.unbalanced: set[RowKey] = set()
        #: Topics whose partitions are to have another number of replicas, by their manifests.
        self.resizing: set[uuid.UUID] = set()
        #: Offline partitions whose replicas are asked how far their logs reach.
        self.awaiting_logs: set[RowKey] = set()
        self.log_reports: dict[RowKey, dict[int, LogReport]] = {}
        #: What brokers said of their replicas as they registered.
        self.held = HeldStates()
        #: Rows that may be older than what brokers were told (:mod:`rebuilding`): nothing is
        #: written on them, and nobody is told of them.
        self.doubted: set[RowKey] = set()
        #: Rows that this term has changed, as they were before.
        self.at_first: dict[RowKey, PartitionRow] = {}
        #: Topics that the tier was asked for, to begin with them, and why that cannot be.
        self.not_in_tier: dict[uuid.UUID, str] = {}
        self._failed: dict[int, frozenset[RowKey]] = {}
        self.acknowledgements = Acknowledgements()
        #: No broker has reached this controller, though it has led for a while.
        self.unreached = False
        #: Why brokers are not made, or what they have in common is not kept; "": they are.
        self.brokers_problem = ""
        self.broker_epoch_max = 0
        self.users, self.exports = Users(), Exports()
        self.engine = EngineNotes()
        #: By which brokers answer names that nobody has; no part of what is compared or shown.
        self.strangers_key = b""
        self._rows: dict[uuid.UUID, dict[int, PartitionRow]] = {}
        self._by_broker: dict[int, set[RowKey]] = {}
        self._preferred: dict[int, int] = {}
        self._led: Counter[int] = Counter()
        self._key_by_id: dict[uuid.UUID, str] = {}
        self._keys_by_name: dict[str, set[str]] = {}
        #: Names with a character that another may be taken for.
        self._alike: dict[str, set[str]] = {}
        self._ids_by_row_name: dict[str, set[uuid.UUID]] = {}

    def next_commit(self) -> int:
        """A number above every commit that any slice carries and every one planned before."""
        self._planned = max(self.commit, self._planned) + 1
        return self._planned

    # ---- topics

    def put_topic(self, topic: TopicInfo) -> None:
        """Take a Topic as the API server now has it (also after each own status write). What is on
        record of its placement counts as if its status said so; and so does what brokers were told
        of its tiering, where that is more than an old status says."""
        self.drop_topic(topic.key)
        on_record = self.records[self.record_home(topic.id)].get(topic.id, 0)
        if on_record > topic.partitions_placed:
            topic = dataclasses.replace(topic, partitions_placed=on_record)
        told = self.held.tiering(topic.id)
        if told.epoch > topic.tiering.epoch:
            tiering_status = TieringStatus(tiering=told, since_ms=topic.tiering_status.since_ms)
            topic = dataclasses.replace(topic, tiering_status=tiering_status)
        self.topics[topic.key] = topic
        self.tierings[topic.tiering.state] += 1
        if topic.tiering.is_disabling:
            self.disabling.add(topic.key)
        self._key_by_id.setdefault(topic.id, topic.key)
        self._keys_by_name.setdefault(topic.name, set()).add(topic.key)
        if "." in topic.name or "_" in topic.name:
            self._alike.setdefault(collision_key(topic.name), set()).add(topic.name)

    def take_held(self, node_id: int, told: Iterable[TopicState]) -> None:
        """A broker says what it was told of its replicas. Those of deleted topics it is told to
        delete: nothing that is said of them outlives the tombstone."""
        self.held.take(node_id, told)
        for topic_id in {topic_id for topic_id, _ in self.held.keys_on(node_id)}:
            if topic_id in self._tombstones:
                self.held.forget_topic(topic_id)
                continue
            topic = self.topic_by_id(topic_id)
            if topic is not None and self.held.tiering(topic_id).epoch > topic.tiering.epoch:
                self.put_topic(topic)

    def drop_topic(self, key: str) -> None:
        """The Topic object is gone. Its rows stay: absence never deletes."""
        old = self.topics.pop(key, None)
        if old is None:
            return
        self.tierings[old.tiering.state] -= 1
        self.disabling.discard(key)
        if self._key_by_id.get(old.id) == key:
            del self._key_by_id[old.id]
        names = self._keys_by_name[old.name]
        names.discard(key)
        if not names:
            del self._keys_by_name[old.name]
            self._forget_alike(old.name)

    def _forget_alike(self, name: str) -> None:
        key = collision_key(name)
        alike = self._alike.get(key, set())
        alike.discard(name)
        if not alike:
            self._alike.pop(key, None)

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicInfo | None:
        key = self._key_by_id.get(topic_id)
        return None if key is None else self.topics[key]

    def topic_ids(self) -> KeysView[uuid.UUID]:
        """Return the ids of all Topics."""
        return self._key_by_id.keys()

    def topics_named(self, name: str) -> list[TopicInfo]:
        """Every Topic object that claims this Kafka name."""
        return [self.topics[key] for key in sorted(self._keys_by_name.get(name, ()))]

    def names_like(self, name: str) -> list[str]:
        """Names of Topics that differ from this one in ``.`` and ``_`` alone, itself included."""
        return sorted(self._alike.get(collision_key(name), ()))

    def row_ids_named(self, name: str) -> frozenset[uuid.UUID]:
        """Topic ids under which rows know this name, with or without a Topic object."""
        return frozenset(self._ids_by_row_name.get(name, ()))

    def row_name(self, topic_id: uuid.UUID) -> str:
        """Return the name of a topic in its rows, "" for none."""
        row = self.row((topic_id, 0))
        return "" if row is None else row.name

    # ---- rows

    def row(self, key: RowKey) -> PartitionRow | None:
        return self._rows.get(key[0], _NO_ROWS).get(key[1])

    def rows_of(self, topic_id: uuid.UUID) -> Mapping[int, PartitionRow]:
        """The rows of a topic by partition."""
        return self._rows.get(topic_id, _NO_ROWS)

    def row_topic_ids(self) -> KeysView[uuid.UUID]:
        """Return the ids of the topics that have rows."""
        return self._rows.keys()

    def partitions_of(self, topic: TopicInfo) -> int:
        """Return the number of a topic's partitions, those in doubt included: the highest number
        in its status, its record and the brokers' reports. Partitions are never removed, so the
        highest number is right even after a restored backup."""
        reported = 0
        if topic.id not in self._tombstones:
            reported = self.held.partitions(topic.id)
        return max(topic.partitions_placed, reported)

    def keys_on(self, node_id: int) -> frozenset[RowKey]:
        """Keys of the rows that have a replica on a broker."""
        return frozenset(self._by_broker.get(node_id, ()))

    def has_unknown_hosts(self) -> bool:
        """Return whether rows name brokers without a Broker object."""
        return any(
            keys and node_id not in self.brokers for node_id, keys in self._by_broker.items()
        )

    def all_rows(self) -> Iterator[PartitionRow]:
        """Nothing that comes again looks at all of them."""
        for rows in self._rows.values():
            yield from rows.values()

    def replica_count(self, node_id: int) -> int:
        return len(self._by_broker.get(node_id, ()))

    def leader_count(self, node_id: int) -> int:
        """Partitions that a broker leads; of :data:`NO_LEADER`, those that nobody does."""
        return self._led[node_id]

    @property
    def partition_count(self) -> int:
        return self._led.total()

    def short_of_replicas(self) -> int:
        """Partitions whose members in sync, as far as anybody can count on them, are fewer than
        their replicas."""
        short = self.offline | self.behind | self.with_placeholders
        doubted = {key for _, key in self.failed()}.union(self.acknowledgements.doubted())
        rows = (self.row(key) for key in doubted - short)
        return len(short) + sum(
            len(self.in_sync(row)) < len(row.replicas) for row in rows if row is not None
        )

    def preferred_count(self, node_id: int) -> int:
        """Partitions whose preferred leader is this broker."""
        return self._preferred.get(node_id, 0)

    def min_isr(self, row: PartitionRow) -> int:
        """The effective min.insync.replicas of a partition; 1 for one without a Topic. Replicas
        that are being added do not count before they are there, or a move would stop producers. Of
        an internal topic no more than the replicas that are brokers: one broker alone serves groups
        and transactions, too."""
        topic = self.topic_by_id(row.topic_id)
        if topic is None:
            return 1
        places = row.hosts if topic.is_internal else row.replicas
        there = sum(replica not in row.adding for replica in places)
        return min_insync_replicas(topic, self.cluster, there)

    def logs_of(self, row: PartitionRow) -> dict[int, LogEnd | None]:
        """What the present brokers said of their logs of this row as it is; None: it refuses."""
        reports = self.log_reports.get(row.key, {})
        return {
            node_id: report.end
            for node_id, report in reports.items()
            if report.leader_epoch == row.leader_epoch
            and (broker := self.brokers.get(node_id)) is not None
            and broker.broker_epoch == report.broker_epoch
        }

    def slice_index(self, key: RowKey) -> int:
        return slice_of(key[0], key[1], self.cluster.slices)

    def record_home(self, topic_id: uuid.UUID) -> int:
        """The slice with the record of a topic's placement: one for all, so that many share a
        write; for those whose rows begin in it, another."""
        return int(self.slice_index((topic_id, 0)) == 0) % self.cluster.slices

    def put_records(self, index: int, records: Mapping[uuid.UUID, int]) -> None:
        """Take the records of one slice that are known to be persisted."""
        fresh = [id_ for id_ in records if records[id_] != self.records[index].get(id_)]
        self.records[index] = dict(records)
        for topic_id in fresh:
            topic = self.topic_by_id(topic_id)
            if topic is not None:
                self.put_topic(topic)

    def put_row(self, row: PartitionRow) -> None:
        """Index a row that is known to be persisted. Callers: loading, and :mod:`commit`."""
        self._unindex(row.key)
        self._rows.setdefault(row.topic_id, {})[row.partition] = row
        index, text = self.slice_index(row.key), encode_row(row)
        self.encoded[index][row.key] = text
        self.row_bytes[index] += len(text) + JSON_BYTES
        for node_id in row.hosts:
            self._by_broker.setdefault(node_id, set()).add(row.key)
            self.hosted[index][node_id] += 1
        if row.hosts:
            self._preferred[row.hosts[0]] = self._preferred.get(row.hosts[0], 0) + 1
        self._led[row.leader] += 1
        if row.leader == NO_LEADER:
            self.offline.add(row.key)
        if row.placeholders:
            self.with_placeholders.add(row.key)
        if row.adding or row.removing:
            self.moving.add(row.key)
        if len(row.isr) < len(row.hosts):
            self.behind.add(row.key)
        if row.leader not in (NO_LEADER, *row.hosts[:1]):
            self.unbalanced.add(row.key)
        if awaits_logs(row):
            self.awaiting_logs.add(row.key)
        else:
            self.log_reports.pop(row.key, None)
        if row.name:
            self._ids_by_row_name.setdefault(row.name, set()).add(row.topic_id)

    def remove_row(self, key: RowKey) -> None:
        """Forget a row that is known to be persisted as gone, and all that was reported of it."""
        for node_id, failed in list(self._failed.items()):
            if key in failed:
                self.put_failed(node_id, failed - {key})
        self.reports.pop(key, None)
        self.log_reports.pop(key, None)
        self.doubted.discard(key)
        self.at_first.pop(key, None)
        self._unindex(key)

    def forget_reports(self, topic_id: uuid.UUID) -> None:
        """A Topic is gone, and its rows stay: what leaders reported of them is not renewed."""
        for partition in self.rows_of(topic_id):
            self.reports.pop((topic_id, partition), None)

    def _unindex(self, key: RowKey) -> None:
        row = self.row(key)
        if row is None:
            return
        rows = self._rows[key[0]]
        del rows[key[1]]
        if not rows:
            del self._rows[key[0]]
        index = self.slice_index(key)
        self.row_bytes[index] -= len(self.encoded[index].pop(key)) + JSON_BYTES
        for node_id in row.hosts:
            self._by_broker[node_id].discard(key)
            self.hosted[index][node_id] -= 1
        if row.hosts:
            self._preferred[row.hosts[0]] -= 1
        self._led[row.leader] -= 1
        self.offline.discard(key)
        self.with_placeholders.discard(key)
        self.moving.discard(key)
        self.behind.discard(key)
        self.unbalanced.discard(key)
        self.awaiting_logs.discard(key)
        self._forget_row_name(row)

    def _forget_row_name(self, row: PartitionRow) -> None:
        if row.name:
            ids = self._ids_by_row_name[row.name]
            ids.discard(row.topic_id)
            if not ids:
                del self._ids_by_row_name[row.name]

    # ---- brokers and tombstones

    def put_broker(self, broker: BrokerInfo) -> None:
        former = self.brokers.get(broker.node_id)
        if former is not None and former.broker_epoch != broker.broker_epoch:
            self._failed.pop(broker.node_id, None)  # another process: it reports for itself
            self.acknowledgements.broker_gone(broker.node_id)
        self.brokers[broker.node_id] = broker
        self.broker_epoch_max = max(self.broker_epoch_max, broker.broker_epoch)

    def drop_broker(self, node_id: int) -> None:
        """The Broker object is gone (its rows were changed before, see :mod:`registration`)."""
        self.brokers.pop(node_id, None)
        self.held.forget_broker(node_id)
        self.health.pop(node_id, None)
        self.pods.pop(node_id, None)
        self.ways_in.brokers.pop(node_id, None)
        self._failed.pop(node_id, None)
        self.acknowledgements.broker_gone(node_id)

    def directory_of(self, node_id: int, index: int) -> uuid.UUID | None:
        """The log directory that held a broker's replicas of one slice; None: not known."""
        broker = self.brokers.get(node_id)
        return self.directories[index].get(node_id) or (broker and broker.directory_id) or None

    def put_failed(self, node_id: int, keys: frozenset[RowKey]) -> frozenset[RowKey]:
        """Take a broker's report of the replicas whose storage refuses; those that are news."""
        former = self.failed_on(node_id)
        if keys:
            self._failed[node_id] = keys
        else:
            self._failed.pop(node_id, None)
        return former ^ keys

    def failed_on(self, node_id: int) -> frozenset[RowKey]:
        """Replicas of a broker whose storage refuses, as it last said."""
        return self._failed.get(node_id, frozenset())

    def failed(self) -> Iterator[tuple[int, RowKey]]:
        """Every replica whose storage refuses: its broker and its partition."""
        return ((node_id, key) for node_id, keys in self._failed.items() for key in keys)

    def has_failed_replica(self, key: RowKey) -> bool:
        """Whether the storage of any replica of a partition refuses."""
        return any(key in keys for keys in self._failed.values())

    def refuses(self, row: PartitionRow, node_id: int) -> bool:
        """Whether the storage of one replica refuses, by its broker's report or by its answer to
        what it was told."""
        return row.key in self.failed_on(node_id) or self.acknowledgements.storage_refuses(
            row, node_id
        )

    def in_sync(self, row: PartitionRow) -> tuple[int, ...]:
        """The members of an ISR that anybody can count on: of a partition that is led, and not
        those that were never told of it, or whose storage refuses."""
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
        """A broker's answer to partition states; the topics of which something else is true since.
        With the first snapshot of a term that is so of what it leads and nobody knew of."""
        broker = self.brokers.get(node_id)
        if broker is None:
            return set()
        keys = (
            (each.topic_id, row.partition) for each in request.topics for row in each.partitions
        )
        present = [row for row in map(self.row, keys) if row is not None]
        was_told = self.acknowledgements.has_told(broker)
        news = self.acknowledgements.take(broker, present, request, response)
        if not was_told and self.acknowledgements.has_told(broker):
            led = {row.topic_id for row in present if row.leader == node_id}
            topics = ((topic_id, self.topic_by_id(topic_id)) for topic_id in led)
            news.update(id_ for id_, topic in topics if topic is not None and not topic.was_ready)
        return news

    def live_brokers(self) -> list[BrokerInfo]:
        """By node id; those that may lead and take replicas."""
        return [broker for _, broker in sorted(self.brokers.items()) if broker.live]

    def is_live(self, node_id: int) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and broker.live

    def tombstones_of(self, topic_id: uuid.UUID) -> Mapping[int, Tombstone]:
        """The tombstones of a deleted topic by slice."""
        return self._tombstones.get(topic_id, _NO_TOMBSTONES)

    def tombstoned_ids(self) -> list[uuid.UUID]:
        return sorted(self._tombstones)

    def tombstones_in(self, index: int) -> list[Tombstone]:
        """The tombstones of one slice."""
        return list(self._tombstones_in[index].values())

    def put_tombstone(self, topic_id: uuid.UUID, index: int, tombstone: Tombstone | None) -> None:
        """Take a tombstone, or its removal (None), that is known to be persisted."""
        if tombstone is not None:
            self.held.forget_topic(topic_id)
            self._tombstones.setdefault(topic_id, {})[index] = tombstone
            self._tombstones_in[index][topic_id] = tombstone
            return
        self._tombstones_in[index].pop(topic_id, None)
        tombs = self._tombstones.get(topic_id, {})
        tombs.pop(index, None)
        if not tombs:
            self._tombstones.pop(topic_id, None)
