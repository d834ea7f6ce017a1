"""Placement of replicas: rack-aware, balanced, reproducible, with KIP-409's placeholders.

Each partition takes one rack after another, and in a rack the broker with the fewest replicas of
the same topic, then of all topics. For the preferred leader, the number of partitions that a broker
is to lead comes first, again of the topic and then of all. (By the sum over all topics alone, a
broker that joins would lead every partition of the next topic.) Ties are broken by a hash of (topic
id, partition, node id), so a plan is reproducible and spreads. An assignment in the request (as in
Kafka's CreateTopics) goes before all that.

If brokers are missing and ``enable.under.replicated.topic.creation`` is on, the missing replicas
become -1, -2, -3, provided that min(min.insync.replicas, replication factor) live brokers exist
(invariant 18), for an internal topic one. A broker takes at most one replica of a partition (17).
Each placeholder is filled once (16), no more of them at a time than may catch up together
(:mod:`catch_up_limits`).
"""

import dataclasses
import hashlib
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence

from tidemark.leader_epochs import GENERATION
from tidemark.message_text import count
from tidemark_operator.controller import topic_restore
from tidemark_operator.controller.catch_up_limits import CatchUpRoom
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.events import normal
from tidemark_operator.controller.state.model import (
    NO_LEADER,
    BrokerInfo,
    PartitionRow,
    RowKey,
    TopicInfo,
    min_insync_replicas,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokersMissing:
    """Result if nothing was created: ``live`` of the ``required`` brokers are present."""

    required: int
    live: int

    @property
    def missing(self) -> int:
        return self.required - self.live


class Spread:
    """Number of a topic's replicas and preferred leaderships on each broker."""

    def __init__(self, rows: Iterable[PartitionRow]) -> None:
        self.replicas: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()
        for row in rows:
            self.add(row)

    def add(self, row: PartitionRow) -> None:
        self.replicas.update(row.hosts)
        self.leaders.update(row.hosts[:1])

    def remove(self, row: PartitionRow) -> None:
        self.replicas.subtract(row.hosts)
        self.leaders.subtract(row.hosts[:1])


class Spreads:
    """Spreads of the topics that one decision touches, read once each."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._known: dict[uuid.UUID, Spread] = {}

    def of(self, topic_id: uuid.UUID) -> Spread:
        if topic_id not in self._known:
            self._known[topic_id] = Spread(self._draft.rows_of(topic_id).values())
        return self._known[topic_id]

    def moved(self, old: PartitionRow, new: PartitionRow) -> None:
        """Update a topic's spread after a row has changed."""
        spread = self.of(old.topic_id)
        spread.remove(old)
        spread.add(new)


def place_topic(draft: Draft, topic: TopicInfo) -> tuple[int, ...] | BrokersMissing:
    """Create the partitions that a topic lacks: all of a new topic, or the added ones.

    Partitions that were placed before, or that brokers reported, are never created again, even if
    their rows are missing: the data may still exist. Returns the created partitions, or
    :class:`BrokersMissing` if too few brokers are live.
    """
    present = draft.rows_of(topic.id)
    first = draft.state.partitions_of(topic)
    missing = [
        partition for partition in range(first, topic.partitions) if partition not in present
    ]
    if not missing:
        return ()
    # Replicas that a client assigned need no minimum of brokers: they were checked to be live.
    live = staying(draft)
    required = required_brokers(draft, topic)
    assigned = {partition: _assigned(draft, topic, partition) for partition in missing}
    if len(live) < required and not all(assigned.values()):
        return BrokersMissing(required=required, live=len(live))
    # An added partition may have existed before a restore or a rebuilding that did not know it, so
    # its earlier epochs must not be reused (tidemark.log_lineage). Others start at 0, as in Kafka.
    highest = max((row.leader_epoch for row in present.values()), default=0)
    first_epoch = highest if highest >= GENERATION else 0
    placeholders, spread = 0, Spread(present.values())
    for partition in missing:
        replicas = assigned[partition] or _choose(draft, topic, partition, live, spread)
        row = dataclasses.replace(
            _new_row(draft, topic, partition, replicas), leader_epoch=first_epoch
        )
        row = topic_restore.first_row(topic, row)
        draft.put_row(row)
        spread.add(row)
        placeholders += row.placeholders
    text = f"{count(len(missing), 'partition')} placed on {count(len(live), 'broker')}"
    if placeholders:
        text += f", {count(placeholders, 'replica')} are placeholders until brokers join"
    draft.emit(normal("Topic", topic.key, "PartitionsPlaced", text))
    return tuple(missing)


def staying(draft: Draft) -> list[BrokerInfo]:
    """Return the live brokers that may take new replicas: those that are not to leave."""
    return [broker for broker in draft.live_brokers() if not broker.leaving]


def required_brokers(draft: Draft, topic: TopicInfo) -> int:
    """Return the number of live brokers without which nothing is created (KIP-409)."""
    if topic.is_internal:
        return 1
    if draft.state.cluster.under_replicated_creation:
        return min_insync_replicas(topic, draft.state.cluster)
    return topic.replication_factor


def _assigned(draft: Draft, topic: TopicInfo, partition: int) -> tuple[int, ...]:
    """Return the brokers that the request names for a partition, () without a usable assignment.

    At least one of them has to be live, to lead.
    """
    assignment = topic.assignments.get(partition, ())
    brokers = [draft.broker(node_id) for node_id in assignment]
    stay = all(broker is not None and not broker.leaving for broker in brokers)
    if len(assignment) != topic.replication_factor or not stay:
        return ()
    return assignment if any(map(draft.is_live, assignment)) else ()


def _new_row(
    draft: Draft, topic: TopicInfo, partition: int, replicas: tuple[int, ...]
) -> PartitionRow:
    live = tuple(filter(draft.is_live, replicas))
    return PartitionRow(
        topic_id=topic.id,
        partition=partition,
        replicas=replicas,
        isr=live,
        leader=live[0] if live else NO_LEADER,
        name=topic.name if partition == 0 else "",
    )


def _choose(
    draft: Draft, topic: TopicInfo, partition: int, live: Sequence[BrokerInfo], spread: Spread
) -> tuple[int, ...]:
    """Return the replicas of one new partition: the preferred leader first, placeholders last."""
    chosen: list[BrokerInfo] = []
    candidates = list(live)
    key = topic.id, partition
    # Each choice changes the ranks of the others: racks in use count against a broker.
    while candidates and len(chosen) < topic.replication_factor:
        best = min(candidates, key=lambda broker: _rank(draft, key, broker, chosen, spread))
        chosen.append(best)
        candidates.remove(best)
    missing = topic.replication_factor - len(chosen)
    return (*(broker.node_id for broker in chosen), *(-1 - index for index in range(missing)))


def _rank(
    draft: Draft, key: RowKey, broker: BrokerInfo, chosen: Sequence[BrokerInfo], spread: Spread
) -> tuple[int, tuple[int, int], tuple[int, int], bytes]:
    """Return the sort key of a broker for the next replica, lowest first.

    (replicas in its rack, leaderships if the replica is the leader, replicas, tie-breaker). The
    topic's own numbers come before those of all topics. ``chosen``: brokers of the partition's
    earlier replicas.
    """
    node_id = broker.node_id
    leads = (0, 0) if chosen else (spread.leaders[node_id], draft.preferred_count(node_id))
    return (
        _in_rack(broker, chosen),
        leads,
        (spread.replicas[node_id], draft.replica_count(node_id)),
        _tie(key, node_id),
    )


def _in_rack(broker: BrokerInfo, others: Iterable[BrokerInfo]) -> int:
    """Return how many of the others are in the broker's rack."""
    return sum(rack_of(other) == rack_of(broker) for other in others)


def newcomer(
    draft: Draft, row: PartitionRow, kept: Iterable[int], spread: Spread, room: CatchUpRoom
) -> int | None:
    """Return the broker for a further replica of a partition, in addition to ``kept``.

    None: no broker can take it now. A rack without a replica is preferred; if its brokers have no
    room at present, the replica waits for them.
    """
    if room.is_full:
        return None
    candidates = [broker for broker in room.takers if broker.node_id not in row.replicas]
    known = [broker for node_id in kept if (broker := draft.broker(node_id)) is not None]
    # The rack is chosen before the limits are checked: a full rack is waited for.
    racks = Counter(map(rack_of, known))
    fewest = min((racks[rack_of(broker)] for broker in candidates), default=0)
    open_ = [
        broker
        for broker in candidates
        if racks[rack_of(broker)] == fewest and room.admits(broker.node_id, row.key)
    ]
    best = min(open_, key=lambda broker: _rank(draft, row.key, broker, known, spread), default=None)
    return None if best is None else best.node_id


def rack_of(broker: BrokerInfo) -> str:
    """Return the broker's rack; a broker without one is a rack of its own."""
    return f"rack:{broker.rack}" if broker.rack is not None else f"broker:{broker.node_id}"


def _tie(key: RowKey, node_id: int) -> bytes:
    topic_id, partition = key
    seed = topic_id.bytes + partition.to_bytes(4, "big") + node_id.to_bytes(4, "big")
    return hashlib.blake2b(seed, digest_size=8).digest()


# ---------------------------------------------------------------- KIP-409: filling placeholders


def fill_placeholders(draft: Draft, *, limit: int) -> int:
    """Replace up to ``limit`` placeholders by live brokers; return how many.

    Called repeatedly until it returns 0. Partitions with the fewest live replicas come first.
    Skipped are partitions without a leader (a new replica could not fetch), paused topics, topics
    that are being deleted, and rows without a Topic.
    """
    waiting = [row for row in _with_placeholders(draft) if _fillable(draft, row)]
    waiting.sort(key=lambda row: (sum(map(draft.is_live, row.hosts)), row.key))
    filled: Counter[uuid.UUID] = Counter()
    room, spreads = CatchUpRoom(draft), Spreads(draft)
    for row in waiting:
        if filled.total() >= limit or room.is_full:
            break
        filled[row.topic_id] += _fill_one(draft, row, spreads, room)
    for topic_id, number in filled.items():
        _emit_filled(draft, topic_id, number)
    return filled.total()


def _with_placeholders(draft: Draft) -> list[PartitionRow]:
    keys = {*draft.state.partitions.with_placeholders, *draft.rows}
    rows = (draft.row(key) for key in keys)
    return [row for row in rows if row is not None and row.placeholders]


def _fillable(draft: Draft, row: PartitionRow) -> bool:
    topic = draft.state.topics.by_id(row.topic_id)
    # A row in doubt may lack a later replica; filling it could exceed the factor.
    served = topic is not None and not topic.paused and topic.deletion_ms is None
    if row.key in draft.state.unverified_rows:
        return False
    return served and row.leader != NO_LEADER


def _fill_one(draft: Draft, row: PartitionRow, spreads: Spreads, room: CatchUpRoom) -> bool:
    node_id = newcomer(draft, row, row.hosts, spreads.of(row.topic_id), room)
    if node_id is None:
        return False
    place = next(index for index, replica in enumerate(row.replicas) if replica < 0)
    replicas = (*row.replicas[:place], node_id, *row.replicas[place + 1 :])
    new = dataclasses.replace(row, replicas=replicas, partition_epoch=row.partition_epoch + 1)
    draft.put_row(new)
    room.take(node_id, row.key)
    spreads.moved(row, new)
    return True


def _emit_filled(draft: Draft, topic_id: uuid.UUID, number: int) -> None:
    topic = draft.state.topics.by_id(topic_id)
    if topic is not None and number:
        text = f"{count(number, 'placeholder')} filled by brokers that joined"
        draft.emit(normal("Topic", topic.key, "PlaceholderFilled", text))
