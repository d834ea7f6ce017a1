"""Cluster metadata as the controller last sent it: brokers, topics, leaders, effective
configuration.

Only PartitionStates requests change it (a snapshot replaces everything, a delta merges). Metadata,
DescribeCluster and the replica manager read it. Nothing is created or deleted here. The cost of a
delta is proportional to its size: the rows of a topic are changed in place.

A partition that the controller counts but does not name is *in doubt*: its current state is
unknown. It keeps its last known row, or has a row without a leader. The number of a topic's
partitions never shrinks, because clients hash keys by it. An unknown partition does not count as
deleted: :meth:`MetadataCache.is_deleted` needs a tombstone, or a controller that knows all topics.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tidemark.lru import Lru
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark.wire import control
from tidemark_broker.listeners import REPLICATION
from tidemark_broker.purgatory import Signal

_NOTHING: Mapping[str, str] = MappingProxyType({})
#: Names of the most recently deleted topics that are remembered.
_DELETED_MAX = 10_000
#: Topics that are no longer shown and may or may not be deleted, at most.
_VANISHED_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """Topic as the controller last described it; ``config`` has only keys that were set.

    The object stays the same while only rows change. ``partitions`` are always the current ones, in
    order.
    """

    topic_id: uuid.UUID
    name: str
    config: Mapping[str, str]
    tiering: Tiering
    partitions: Mapping[int, control.PartitionState] = field(default_factory=dict)


def topic_metadata(topic: control.TopicState) -> TopicMetadata:
    """Return a topic from its wire format. Raises ValueError for an unknown state or policy."""
    return TopicMetadata(
        topic_id=topic.topic_id,
        name=topic.name,
        config=MappingProxyType({entry.name: entry.value for entry in topic.config}),
        tiering=Tiering(
            TieringState(topic.tiering_state),
            topic.tiered_epoch,
            DisablePolicy(topic.disable_policy),
        ),
        partitions=MappingProxyType({row.partition: row for row in topic.partitions}),
    )


#: Purgatory key notified after each change by the controller: topics, leaders or configurations may
#: differ, and this broker's replicas follow them.
CHANGED = Signal()


class MetadataCache:
    """Metadata of the cluster, owned by the loop thread."""

    def __init__(self, cluster_id: str) -> None:
        """Create an empty cache; the controller's first snapshot fills it."""
        self.cluster_id = cluster_id
        self.cluster_config: Mapping[str, str] = MappingProxyType({})
        #: Configuration of consumer groups, by their names.
        self.groups: Mapping[str, Mapping[str, str]] = MappingProxyType({})
        #: Registered brokers by id, fenced ones included.
        self.brokers: Mapping[int, control.BrokerState] = MappingProxyType({})
        #: Live Readers by id.
        self.readers: frozenset[int] = frozenset()
        self.topics: dict[str, TopicMetadata] = {}
        #: Incremented with every change of topics.
        self.topics_version = 0
        self._by_id: dict[uuid.UUID, TopicMetadata] = {}
        #: Partition states by topic id and partition, which ``topics`` shows read-only.
        self._rows: dict[uuid.UUID, dict[int, control.PartitionState]] = {}
        #: Partitions whose state the controller does not know at present, by topic.
        self._in_doubt: dict[uuid.UUID, set[int]] = {}
        #: Topics without a Topic object by id, and whether the controller knows all other topics.
        self._unserved: Mapping[uuid.UUID, control.UnservedTopic] = MappingProxyType({})
        self._knows_all = False
        #: Topics that are no longer shown, but whose deletion is not proven yet.
        self._vanished: dict[uuid.UUID, TopicMetadata] = {}
        #: Names of topics whose tombstone was received since the snapshot.
        self._deleted: Lru[str, bool] = Lru(_DELETED_MAX)
        #: Called with each topic whose deletion is proven (see :meth:`is_deleted`).
        self.deleted: list[Callable[[TopicMetadata], None]] = []

    @property
    def controller_id(self) -> int:
        """Live broker to name as controller, since clients accept only a live one."""
        return min((node for node, row in self.brokers.items() if not row.fenced), default=-1)

    def by_id(self, topic_id: uuid.UUID) -> TopicMetadata | None:
        """Return the topic of this id, or None."""
        return self._by_id.get(topic_id)

    def partition_count(self, topic_id: uuid.UUID) -> int:
        """Return the number of a topic's partitions, -1 for an unknown topic."""
        view = self._by_id.get(topic_id)
        return -1 if view is None else len(view.partitions)

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists and is served.

        A topic without its Topic object is shown but not served.
        """
        view = self.topics.get(topic)
        return view is not None and view.topic_id not in self._unserved

    def is_in_doubt(self, topic_id: uuid.UUID, partition: int) -> bool:
        """Return whether the controller does not know a partition's state at present."""
        return partition in self._in_doubt.get(topic_id, ())

    def is_deleted(self, topic: str, partition: int) -> bool:
        """Return whether a partition is known to be deleted.

        That is the case if the topic's deletion is recorded, or if the current topic of that name
        has fewer partitions. A partition that is merely unknown is not deleted: a controller that
        was restored from a backup may not know it yet.
        """
        view = self.topics.get(topic)
        if view is not None:
            return self._knows_all and partition >= len(view.partitions)
        if topic in self._deleted:
            return True
        return self._knows_all and all(
            unserved.name != topic for unserved in self._unserved.values()
        )

    def group_config(self, group_id: str) -> Mapping[str, str]:
        """Return the configuration of a consumer group."""
        return self.groups.get(group_id, _NOTHING)

    def is_alive(self, node_id: int) -> bool:
        """Return whether the broker is registered and not fenced."""
        row = self.brokers.get(node_id)
        return row is not None and not row.fenced

    def alive(self, nodes: Iterable[int]) -> frozenset[int]:
        """Return the live ones of ``nodes``; placeholders never are."""
        return frozenset(node for node in nodes if self.is_alive(node))

    def is_reader(self, node_id: int) -> bool:
        """Return whether the broker has no replicas and serves cold reads only."""
        row = self.brokers.get(node_id)
        return row is not None and row.is_reader

    def broker_epoch(self, node_id: int) -> int:
        """Return the epoch of a broker's registration, -1 if it is not registered."""
        row = self.brokers.get(node_id)
        return -1 if row is None else row.broker_epoch

    def endpoint(self, node_id: int) -> control.Endpoint | None:
        """Return the endpoint where other brokers reach a broker, or None."""
        row = self.brokers.get(node_id)
        listeners = () if row is None else row.listeners
        return next((listener for listener in listeners if listener.name == REPLICATION), None)

    def apply(self, request: control.PartitionStatesRequest) -> None:
        """Apply a snapshot (``request.full``) or a delta that the controller has sent.

        ``request.brokers`` is the complete list. It is empty in a delta that does not change
        brokers.
        """
        self.cluster_config = MappingProxyType(
            {entry.name: entry.value for entry in request.cluster_config}
        )
        self.groups = MappingProxyType(
            {
                group.group_id: {entry.name: entry.value for entry in group.config}
                for group in request.groups
            }
        )
        if request.full or request.brokers:
            self.brokers = MappingProxyType({row.broker_id: row for row in request.brokers})
            self.readers = frozenset(
                row.broker_id for row in request.brokers if row.is_reader and not row.fenced
            )
        self._unserved = MappingProxyType({topic.topic_id: topic for topic in request.unserved})
        self._knows_all = request.knows_all
        # A snapshot drops everything first; topics that it lacks are settled below.
        former = tuple(self.topics.values()) if request.full else ()
        former_rows = self._rows
        if request.full:
            self.topics.clear()
            self._by_id.clear()
            self._rows = {}
            self._in_doubt.clear()
            self._deleted = Lru(_DELETED_MAX)
        if request.full or request.topics or request.removals:
            self.topics_version += 1
        # In a snapshot these are all topics, in a delta those that changed.
        for topic in request.topics:
            self._merge(topic, former_rows.get(topic.topic_id, {}))
        # Tombstones after topics: a topic of that name may have been recreated.
        for removal in request.removals:
            if removal.partition < 0:
                self._drop(removal.topic_id, is_delta=not request.full)
        # Topics that the snapshot lacks: they are shown as unmanaged, or proven to be deleted, or
        # remembered until one of the two is known.
        self._vanished.update((view.topic_id, view) for view in former)
        self._show_unmanaged_topics()
        self._settle_vanished(request)

    def _show_unmanaged_topics(self) -> None:
        """Continue to show topics without a Topic object, for example after a restored backup.

        Their leaders continue to lead, and a Topic of the same name may adopt them. The controller
        may learn about them from another broker only after it has sent a snapshot without them.
        """
        for topic_id, unserved in self._unserved.items():
            view = self._vanished.get(topic_id)
            if view is not None and unserved.is_unmanaged and view.name not in self.topics:
                rows = self._rows[topic_id] = dict(view.partitions)
                self._in_doubt[topic_id] = set(rows)
                self._put(replace(view, partitions=MappingProxyType(rows)))
                self.topics_version += 1

    def _settle_vanished(self, request: control.PartitionStatesRequest) -> None:
        """Notify the subscribers of topics whose deletion is now proven.

        Proof is a tombstone, or a controller that knows all topics and does not have this one.
        Another topic of the same name is no proof: it may be an older one from a restored backup.
        """
        # A tombstone in this very message is proof, whatever the controller knows otherwise.
        gone = {removal.topic_id for removal in request.removals if removal.partition < 0}
        for topic_id, view in tuple(self._vanished.items()):
            is_gone = topic_id in gone or self._is_gone(topic_id)
            if is_gone or topic_id in self._by_id:
                del self._vanished[topic_id]
            if is_gone:
                self._notify_deleted(view)
        # Bound the memory: the oldest doubtful topic is forgotten without a report.
        while len(self._vanished) > _VANISHED_MAX:
            del self._vanished[next(iter(self._vanished))]

    def _is_gone(self, topic_id: uuid.UUID) -> bool:
        """Return whether the controller knows all topics and does not have this one."""
        return self._knows_all and topic_id not in self._by_id and topic_id not in self._unserved

    def update(self, topic_id: uuid.UUID, row: control.PartitionState) -> None:
        """Apply one partition's state from an answer to AlterPartition.

        The answer has the ISR but not the replicas that the same commit may have changed, so the
        controller's own row of that epoch takes precedence.
        """
        rows = self._rows.get(topic_id)
        known = None if rows is None else rows.get(row.partition)
        if rows is not None and (known is None or is_newer(row, known)):
            _merge_rows(rows, (row,))

    def _merge(self, topic: control.TopicState, former: dict[int, control.PartitionState]) -> None:
        """Merge a topic's state from a message into the cache.

        ``former``: the topic's partition states before the message, by partition. Partitions that
        the controller counts but does not describe keep their former state and are in doubt.
        """
        # The states in the message are known; a newer one that AlterPartition brought is kept.
        view = topic_metadata(topic)
        rows = self._rows.setdefault(view.topic_id, {})
        _merge_rows(rows, view.partitions.values())
        in_doubt = self._in_doubt.setdefault(view.topic_id, set())
        in_doubt.difference_update(view.partitions)
        # Kafka clients map keys to partitions by this number, so it never shrinks.
        count = max(topic.partition_count, next(reversed(former), -1) + 1)
        if len(rows) < count:
            unnamed = [number for number in range(count) if number not in rows]
            in_doubt.update(unnamed)
            _merge_rows(rows, (former.get(number) or unknown_row(number) for number in unnamed))
        # If only partition states have changed, the topic's object stays the same.
        known = self._by_id.get(view.topic_id)
        if known is None or replace(known, partitions=view.partitions) != view:
            self._put(replace(view, partitions=MappingProxyType(rows)))

    def _put(self, view: TopicMetadata) -> None:
        before = self.topics.get(view.name)
        if before is not None and before.topic_id != view.topic_id:
            self._forget(before.topic_id)
            self._vanished[before.topic_id] = before
        self._deleted.pop(view.name)
        self.topics[view.name] = view
        self._by_id[view.topic_id] = view

    def _drop(self, topic_id: uuid.UUID, *, is_delta: bool) -> None:
        """Remove a topic whose deletion the controller has announced by a tombstone.

        Only a tombstone in a delta (``is_delta``) is recorded under the topic's name. One in a
        snapshot may be older than a topic of the same name that a restored backup does not know.
        """
        view = self._forget(topic_id)
        if view is None:
            return
        # Reported as deleted by _settle_vanished, once all of the message is applied.
        self._vanished[topic_id] = view
        if self.topics.get(view.name) is view:
            del self.topics[view.name]
            if is_delta:
                self._deleted.put(view.name, value=True)
                self._deleted.evict()

    def _forget(self, topic_id: uuid.UUID) -> TopicMetadata | None:
        self._rows.pop(topic_id, None)
        self._in_doubt.pop(topic_id, None)
        return self._by_id.pop(topic_id, None)

    def _notify_deleted(self, view: TopicMetadata) -> None:
        for notify in self.deleted:
            notify(view)


def unknown_row(partition: int) -> control.PartitionState:
    """Return the state to show for an unknown partition, without a leader: clients retry."""
    return control.PartitionState(
        partition=partition,
        leader=-1,
        leader_epoch=-1,
        partition_epoch=-1,
        replicas=(),
        isr=(),
        manifest=False,
    )


def _merge_rows(
    rows: dict[int, control.PartitionState], new: Iterable[control.PartitionState]
) -> None:
    """Merge partition states into ``rows`` unless they are older; keep the order of partitions.

    A state with the same epochs replaces the known one. The known one may be from an AlterPartition
    response, which does not name the replicas.
    """
    last, in_order = next(reversed(rows), -1), True
    for row in new:
        known = rows.get(row.partition)
        if known is None:
            in_order = in_order and row.partition > last
            last = row.partition
        elif is_newer(known, row):
            continue
        rows[row.partition] = row
    # Sort only if necessary: nearly all messages have the rows in order.
    if not in_order:
        sorted_rows = sorted(rows.items())
        rows.clear()
        rows.update(sorted_rows)


def is_newer(row: control.PartitionState, than: control.PartitionState) -> bool:
    """Return whether a row is newer: a higher (leader epoch, partition epoch), or the same with a
    manifest.

    Epochs only grow.
    """
    new = (row.leader_epoch, row.partition_epoch)
    old = (than.leader_epoch, than.partition_epoch)
    return new > old or (new == old and row.manifest and not than.manifest)
