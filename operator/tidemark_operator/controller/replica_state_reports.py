"""What brokers say of their replicas before they are admitted (``ReplicaStates``), in memory.

Each replica's broker keeps beside the log what the controller last told it. Where the slices are
lost, or are older than that (API data that was restored from a backup), this is what is left of the
decisions that were taken since. A broker's word is taken as it was when it registered; what this
controller has told since is newer, and in the slices. A row that nobody can have written is as good
as none: the replica is there, and what it was told is not known.
"""

import dataclasses
import uuid
from collections.abc import Collection, Iterable, KeysView, Mapping

from tidemark.leader_epochs import GENERATION
from tidemark.logfiles.names import parse_partition_directory, partition_directory_name
from tidemark.tiering import NEVER_TIERED, DisablePolicy, Tiering, TieringState
from tidemark.wire.control import LeaderRecoveryState, PartitionState, TopicState
from tidemark_operator.controller.model import NO_EPOCH, NO_LEADER, PartitionRow, RowKey

#: As the resources have it.
PARTITIONS_MAX = 10_000
REPLICAS_MAX = 100
#: An epoch above this leaves no room for another rebuilding: nobody has written it.
EPOCH_MAX = 2**31 - 1 - 2 * GENERATION
_NODE_ID_MAX = 2**31 - 1
_NOBODY: Mapping[int, PartitionRow] = {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldTopic:
    """A topic as one broker knows it. ``partitions``: its number of partitions, as far as that
    broker knows, its own replicas included."""

    name: str
    tiering: Tiering
    partitions: int = 0


class HeldStates:
    """Of every broker that has reported in this term, by topic, partition and broker."""

    def __init__(self) -> None:
        self._rows: dict[uuid.UUID, dict[int, dict[int, PartitionRow]]] = {}
        self._topics: dict[uuid.UUID, dict[int, HeldTopic]] = {}
        self._heard: set[int] = set()
        #: Brokers, by partition, whose log may have lost records since they received its state. A
        #: later report of such a broker does not remove it.
        self._torn: dict[RowKey, set[int]] = {}
        self._ids_by_name: dict[str, set[uuid.UUID]] = {}
        #: Brokers that a report of this term names as a replica.
        self._named: set[int] = set()

    # ------------------------------------------------------------ what was said

    def take(self, node_id: int, topics: Iterable[TopicState]) -> None:
        """All that a broker says, in place of what it said before."""
        self.forget_broker(node_id)
        self._heard.add(node_id)
        for topic in topics:
            if parse_partition_directory(partition_directory_name(topic.name, 0)) is None:
                continue  # no topic has such a name
            self._take_topic(node_id, topic)
            partitions = self._rows.setdefault(topic.topic_id, {})
            for told in topic.partitions:
                if _is_number(told.partition):
                    by_node = partitions.setdefault(told.partition, {})
                    row = _shared(_row(topic.topic_id, told), by_node.values())
                    by_node[node_id] = row
                    self._named.update(row.hosts)
                    if not told.is_whole:
                        key = topic.topic_id, told.partition
                        self._torn.setdefault(key, set()).add(node_id)

    def _take_topic(self, node_id: int, topic: TopicState) -> None:
        """Its replicas may be on several pages, each with what these were told of its tiering."""
        by_node, tiering = self._topics.setdefault(topic.topic_id, {}), _tiering(topic)
        numbers = [told.partition for told in topic.partitions if _is_number(told.partition)]
        counted = topic.partition_count if _is_number(topic.partition_count - 1) else 0
        partitions = max([counted, *(number + 1 for number in numbers)])
        said = by_node.get(node_id)
        if said is None:
            by_node[node_id] = HeldTopic(name=topic.name, tiering=tiering, partitions=partitions)
            self._ids_by_name.setdefault(topic.name, set()).add(topic.topic_id)
            return
        by_node[node_id] = dataclasses.replace(
            said,
            tiering=max(said.tiering, tiering, key=lambda state: state.epoch),
            partitions=max(said.partitions, partitions),
        )

    def forget_broker(self, node_id: int) -> None:
        """It says something else, or its object is gone."""
        self._heard.discard(node_id)
        for topic_id, by_node in list(self._topics.items()):
            said = by_node.pop(node_id, None)
            if said is None:
                continue
            if all(other.name != said.name for other in by_node.values()):
                self._forget_name(topic_id, said.name)
            partitions = self._rows.get(topic_id, {})
            for partition, rows in list(partitions.items()):
                rows.pop(node_id, None)
                if not rows:
                    del partitions[partition]
            if not by_node:
                self.forget_topic(topic_id)

    def forget_topic(self, topic_id: uuid.UUID) -> None:
        """It is being deleted: what was said of it means nothing any more."""
        for partition in self._rows.pop(topic_id, {}):
            self._torn.pop((topic_id, partition), None)
        for name in {each.name for each in self._topics.pop(topic_id, {}).values()}:
            self._forget_name(topic_id, name)

    def _forget_name(self, topic_id: uuid.UUID, name: str) -> None:
        ids = self._ids_by_name.get(name, set())
        ids.discard(topic_id)
        if not ids:
            self._ids_by_name.pop(name, None)

    # ------------------------------------------------------------ what is asked

    def has_heard(self, node_id: int) -> bool:
        """Whether a broker has reported in this term."""
        return node_id in self._heard

    def names(self, node_id: int) -> bool:
        """Return whether any broker reported a replica on this one."""
        return node_id in self._named

    def of(self, key: RowKey) -> Mapping[int, PartitionRow]:
        """The brokers that have a replica of a partition, with what each was told of it."""
        return self._rows.get(key[0], {}).get(key[1], _NOBODY)

    def is_whole(self, key: RowKey, node_id: int) -> bool:
        """Return whether a broker's replica has lost nothing since it received its state."""
        return node_id in self.of(key) and node_id not in self._torn.get(key, ())

    def keys_on(self, node_id: int) -> list[RowKey]:
        """The replicas of one broker."""
        return [
            (topic_id, partition)
            for topic_id, by_node in self._topics.items()
            if node_id in by_node
            for partition, rows in self._rows.get(topic_id, {}).items()
            if node_id in rows
        ]

    def numbers(self, topic_id: uuid.UUID) -> Collection[int]:
        """The partitions of a topic that any broker has a replica of."""
        return self._rows.get(topic_id, {}).keys()

    def partitions(self, topic_id: uuid.UUID) -> int:
        """Return the highest number of a topic's partitions in any broker's report."""
        reported = self._topics.get(topic_id, {}).values()
        return max((topic.partitions for topic in reported), default=0)

    def brokers_of(self, topic_id: uuid.UUID) -> frozenset[int]:
        """The brokers that know of a topic."""
        return frozenset(self._topics.get(topic_id, ()))

    def topic_ids(self) -> KeysView[uuid.UUID]:
        """The topics that any broker knows of."""
        return self._topics.keys()

    def ids_named(self, name: str) -> list[uuid.UUID]:
        """The topics that are known under a name."""
        said = self._ids_by_name.get(name, ())
        return sorted(topic_id for topic_id in said if self.name(topic_id) == name)

    def name(self, topic_id: uuid.UUID) -> str:
        """The name of a topic, which never changes; of those that are said the first."""
        return min((each.name for each in self._topics.get(topic_id, {}).values()), default="")

    def tiering(self, topic_id: uuid.UUID) -> Tiering:
        """The furthest that any broker was told of a topic's tiering."""
        known = (each.tiering for each in self._topics.get(topic_id, {}).values())
        return max(known, key=lambda each: each.epoch, default=NEVER_TIERED)


def _is_number(partition: int) -> bool:
    return 0 <= partition < PARTITIONS_MAX


def _shared(row: PartitionRow, others: Iterable[PartitionRow]) -> PartitionRow:
    """The same object for the same row: most brokers say the same."""
    return next((other for other in others if other == row), row)


def _row(topic_id: uuid.UUID, told: PartitionState) -> PartitionRow:
    if not _can_be(told):
        return PartitionRow(
            topic_id=topic_id,
            partition=told.partition,
            replicas=(),
            isr=(),
            leader_epoch=NO_EPOCH,
            partition_epoch=NO_EPOCH,
        )
    return PartitionRow(
        topic_id=topic_id,
        partition=told.partition,
        replicas=told.replicas,
        isr=told.isr,
        leader=told.leader,
        leader_epoch=told.leader_epoch,
        partition_epoch=told.partition_epoch,
        adding=told.adding,
        removing=told.removing,
        manifest=told.manifest,
        leader_recovery_state=LeaderRecoveryState(told.leader_recovery_state),
        elr=told.elr,
        last_known_elr=told.last_known_elr,
    )


def _can_be(told: PartitionState) -> bool:
    """Whether a controller can have written this."""
    replicas = set(told.replicas)
    parts = (told.isr, told.adding, told.removing, told.elr, told.last_known_elr)
    return (
        0 <= told.leader_epoch <= EPOCH_MAX
        and 0 <= told.partition_epoch <= EPOCH_MAX
        and 0 < len(replicas) == len(told.replicas) <= REPLICAS_MAX
        and all(-REPLICAS_MAX <= node_id <= _NODE_ID_MAX for node_id in replicas)
        and told.leader in (NO_LEADER, *replicas)
        and all(set(part) <= replicas and len(set(part)) == len(part) for part in parts)
        and all(node_id >= 0 for node_id in (*told.isr, *told.elr, *told.last_known_elr))
        and told.leader_recovery_state in tuple(LeaderRecoveryState)
    )


def _tiering(topic: TopicState) -> Tiering:
    try:
        state, policy = TieringState(topic.tiering_state), DisablePolicy(topic.disable_policy)
    except ValueError:
        return NEVER_TIERED
    if state is TieringState.NONE or not 0 <= topic.tiered_epoch <= EPOCH_MAX:
        return NEVER_TIERED
    return Tiering(state, topic.tiered_epoch, policy).in_force
