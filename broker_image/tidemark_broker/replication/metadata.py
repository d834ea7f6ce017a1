"""What this broker knows of the cluster: brokers, topics, leaders, effective configuration.

Filled by PartitionStates only (a snapshot replaces all, a delta merges); read by Metadata,
DescribeCluster and the replica manager. A view for clients: nothing is created or deleted here.
What a delta costs is what it names: the rows of a topic are changed in place.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark.wire import control
from tidemark_broker.listeners import REPLICATION
from tidemark_broker.purgatory import Signal

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic as the controller last described it; ``config`` holds only keys that were set.

    The same object as long as nothing but its rows changes; ``partitions`` are always the present
    ones, in order.
    """

    topic_id: uuid.UUID
    name: str
    config: Mapping[str, str]
    tiering: Tiering
    partitions: Mapping[int, control.PartitionState] = field(default_factory=dict)


def topic_metadata(topic: control.TopicState) -> TopicMetadata:
    """A topic from the wire; raises ValueError for a state or policy that does not exist."""
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


#: Said in the purgatory after each of the controller's changes: there are other topics, leaders or
#: configurations, and this broker's replicas follow them.
CHANGED = Signal()


class MetadataCache:
    """The loop thread owns it."""

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.cluster_config: Mapping[str, str] = MappingProxyType({})
        #: What is set for consumer groups, by their names.
        self.groups: Mapping[str, Mapping[str, str]] = MappingProxyType({})
        self.brokers: Mapping[int, control.BrokerState] = MappingProxyType({})
        self.topics: dict[str, TopicMetadata] = {}
        #: Raised with every change of topics.
        self.topics_version = 0
        self._by_id: dict[uuid.UUID, TopicMetadata] = {}
        self._rows: dict[uuid.UUID, dict[int, control.PartitionState]] = {}
        #: Told of each topic that was deleted; one that a snapshot does not name was not, unless
        #: that has its tombstone, or another topic of its name.
        self.deleted: list[Callable[[TopicMetadata], None]] = []

    @property
    def controller_id(self) -> int:
        """A live broker to name as controller: clients know no controller that is not one."""
        return min((node for node, row in self.brokers.items() if not row.fenced), default=-1)

    def by_id(self, topic_id: uuid.UUID) -> TopicMetadata | None:
        """The topic of this id, if any."""
        return self._by_id.get(topic_id)

    def group_config(self, group_id: str) -> Mapping[str, str]:
        """What is set for a consumer group."""
        return self.groups.get(group_id, _NOTHING)

    def is_alive(self, node_id: int) -> bool:
        """Is the broker registered and not fenced?"""
        row = self.brokers.get(node_id)
        return row is not None and not row.fenced

    def alive(self, nodes: Iterable[int]) -> frozenset[int]:
        """Those of ``nodes`` that are alive; placeholders never are."""
        return frozenset(node for node in nodes if self.is_alive(node))

    def broker_epoch(self, node_id: int) -> int:
        """The epoch under which a broker is registered, -1 when it is not."""
        row = self.brokers.get(node_id)
        return -1 if row is None else row.broker_epoch

    def endpoint(self, node_id: int) -> control.Endpoint | None:
        """Where other brokers reach a broker."""
        row = self.brokers.get(node_id)
        listeners = () if row is None else row.listeners
        return next((each for each in listeners if each.name == REPLICATION), None)

    def apply(self, request: control.PartitionStatesRequest) -> None:
        """Take over a snapshot or a delta. ``brokers`` is the whole list; none in a delta: as
        before (the receiver itself is always among them)."""
        self.cluster_config = MappingProxyType(
            {entry.name: entry.value for entry in request.cluster_config}
        )
        self.groups = MappingProxyType(
            {
                each.group_id: {entry.name: entry.value for entry in each.config}
                for each in request.groups
            }
        )
        if request.full or request.brokers:
            self.brokers = MappingProxyType({row.broker_id: row for row in request.brokers})
        former = tuple(self.topics.values()) if request.full else ()
        if request.full:
            self.topics.clear()
            self._by_id.clear()
            self._rows.clear()
        if request.full or request.topics or request.removals:
            self.topics_version += 1
        for topic in request.topics:
            self._merge(topic_metadata(topic))
        for removal in request.removals:
            if removal.partition < 0:
                self._drop(removal.topic_id)
        self._tell_deleted_before(request, former)

    def _tell_deleted_before(
        self, request: control.PartitionStatesRequest, former: Iterable[TopicMetadata]
    ) -> None:
        """Of topics that were deleted while nothing was heard of the controller."""
        gone = {removal.topic_id for removal in request.removals if removal.partition < 0}
        for view in former:
            now = self.topics.get(view.name, view)
            if view.topic_id in gone or now.topic_id != view.topic_id:
                self._tell_deleted(view)

    def update(self, topic_id: uuid.UUID, row: control.PartitionState) -> None:
        """One partition changed by an answer to AlterPartition. That tells of the ISR and not of
        replicas that went with the same commit: the controller's own row of that epoch stays."""
        rows = self._rows.get(topic_id)
        known = None if rows is None else rows.get(row.partition)
        if rows is not None and (known is None or is_newer(row, known)):
            _merge_rows(rows, (row,))

    def _merge(self, view: TopicMetadata) -> None:
        rows = self._rows.setdefault(view.topic_id, {})
        _merge_rows(rows, view.partitions.values())
        known = self._by_id.get(view.topic_id)
        if known is None or replace(known, partitions=view.partitions) != view:
            self._put(replace(view, partitions=MappingProxyType(rows)))

    def _put(self, view: TopicMetadata) -> None:
        before = self.topics.get(view.name)
        if before is not None and before.topic_id != view.topic_id:
            self._by_id.pop(before.topic_id, None)
            self._rows.pop(before.topic_id, None)
            self._tell_deleted(before)
        self.topics[view.name] = view
        self._by_id[view.topic_id] = view

    def _drop(self, topic_id: uuid.UUID) -> None:
        view = self._by_id.pop(topic_id, None)
        self._rows.pop(topic_id, None)
        if view is not None:
            if self.topics.get(view.name) is view:
                del self.topics[view.name]
            self._tell_deleted(view)

    def _tell_deleted(self, view: TopicMetadata) -> None:
        for tell in self.deleted:
            tell(view)


def _merge_rows(
    rows: dict[int, control.PartitionState], new: Iterable[control.PartitionState]
) -> None:
    """Take over what is not older: a partition epoch never goes back. A row of the same epochs may
    say more than what is known: that came with an answer to AlterPartition, which does not name the
    replicas. Rows stay in order."""
    last, in_order = next(reversed(rows), -1), True
    for row in new:
        known = rows.get(row.partition)
        if known is None:
            in_order = in_order and row.partition > last
            last = row.partition
        elif is_newer(known, row):
            continue
        rows[row.partition] = row
    if not in_order:
        sorted_rows = sorted(rows.items())
        rows.clear()
        rows.update(sorted_rows)


def is_newer(row: control.PartitionState, than: control.PartitionState) -> bool:
    """Epochs only grow: a higher (leader epoch, partition epoch), or the same with a manifest."""
    new = (row.leader_epoch, row.partition_epoch)
    old = (than.leader_epoch, than.partition_epoch)
    return new > old or (new == old and row.manifest and not than.manifest)
