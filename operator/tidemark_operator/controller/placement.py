"""Where replicas go: rack-aware, balanced, the same for the same seed; KIP-409's placeholders.

Each partition takes the least loaded brokers, one rack after another; ties are broken by a hash of
(topic id, partition, node id), so a plan is reproducible and spreads. Where somebody has said
where a partition is to be (Kafka's CreateTopics may), it goes there. Where brokers are missing and
``enable.under.replicated.topic.creation`` is on, the missing replicas become -1, -2, -3, provided
that min(min.insync.replicas, replication factor) live brokers exist (invariant 18), for an internal
topic one. A broker takes
at most one replica of a partition (17), and each placeholder is filled once (16).
"""

import dataclasses
import hashlib
import uuid
from collections.abc import Iterable, Sequence

from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.events import count, normal
from tidemark_operator.controller.model import (
    NO_LEADER,
    BrokerInfo,
    PartitionRow,
    TopicInfo,
    min_insync_replicas,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokersMissing:
    """Nothing was created: ``live`` brokers of the ``required`` ones are there."""

    required: int
    live: int

    @property
    def missing(self) -> int:
        return self.required - self.live


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Partitions that the draft created, and how many of their replicas are placeholders."""

    created: tuple[int, ...]
    placeholders: int


def place_topic(draft: Draft, topic: TopicInfo) -> Placed | BrokersMissing:
    """Create the rows that a topic lacks: all of a new one, the added ones of one that grows.
    Rows from 0 to ``partitions_placed`` are never created again: their absence is not evidence."""
    present = draft.rows_of(topic.id)
    first = topic.partitions_placed
    missing = [
        partition for partition in range(first, topic.partitions) if partition not in present
    ]
    if not missing:
        return Placed(created=(), placeholders=0)
    live = takers(draft)
    required = required_brokers(draft, topic)
    assigned = {partition: _assigned(draft, topic, partition) for partition in missing}
    if len(live) < required and not all(assigned.values()):
        return BrokersMissing(required=required, live=len(live))
    placeholders = 0
    for partition in missing:
        replicas = assigned[partition] or choose(
            draft, topic.id, partition, live, topic.replication_factor
        )
        row = _new_row(draft, topic, partition, replicas)
        draft.put_row(row)
        placeholders += row.placeholders
    text = f"{count(len(missing), 'partition')} placed on {count(len(live), 'broker')}"
    if placeholders:
        text += f", {count(placeholders, 'replica')} held as placeholders until brokers join"
    draft.emit(normal("Topic", topic.key, "PartitionsPlaced", text))
    return Placed(created=tuple(missing), placeholders=placeholders)


def takers(draft: Draft) -> list[BrokerInfo]:
    """Live brokers that may take new replicas: not those whose ``Broker`` is being deleted."""
    return [broker for broker in draft.live_brokers() if not broker.deleting]


def required_brokers(draft: Draft, topic: TopicInfo) -> int:
    """Live brokers without which nothing is created (KIP-409)."""
    if topic.is_internal:
        return 1
    if draft.state.cluster.under_replicated_creation:
        return min_insync_replicas(topic, draft.state.cluster)
    return topic.replication_factor


def _assigned(draft: Draft, topic: TopicInfo, partition: int) -> tuple[int, ...]:
    """Where somebody has said that a partition is to be; () where nobody has, or it cannot be (one
    of them has to be alive to begin with)."""
    wanted = topic.assignments.get(partition, ())
    known = all(draft.broker(node_id) is not None for node_id in wanted)
    if len(wanted) != topic.replication_factor or not known:
        return ()
    return wanted if any(map(draft.is_live, wanted)) else ()


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


def choose(
    draft: Draft, topic_id: uuid.UUID, partition: int, live: Sequence[BrokerInfo], factor: int
) -> tuple[int, ...]:
    """The replicas of one new partition: the preferred leader first, placeholders last."""
    chosen: list[BrokerInfo] = []
    left = list(live)
    while left and len(chosen) < factor:
        best = min(left, key=lambda broker: _rank(draft, topic_id, partition, broker, chosen))
        chosen.append(best)
        left.remove(best)
    missing = factor - len(chosen)
    return (*(broker.node_id for broker in chosen), *(-1 - index for index in range(missing)))


def _rank(
    draft: Draft,
    topic_id: uuid.UUID,
    partition: int,
    broker: BrokerInfo,
    chosen: Iterable[BrokerInfo],
) -> tuple[int, int, int, bytes]:
    """Lowest first: a rack not used yet, then load (for the leader, leaderships before it)."""
    chosen = list(chosen)
    used = sum(rack_of(other) == rack_of(broker) for other in chosen)
    leads = 0 if chosen else draft.preferred_count(broker.node_id)
    return (
        used,
        leads,
        draft.replica_count(broker.node_id),
        _tie(topic_id, partition, broker.node_id),
    )


def rack_of(broker: BrokerInfo) -> str:
    """The broker's rack; one that has none is a rack of its own."""
    return f"rack:{broker.rack}" if broker.rack is not None else f"broker:{broker.node_id}"


def _tie(topic_id: uuid.UUID, partition: int, node_id: int) -> bytes:
    seed = topic_id.bytes + partition.to_bytes(4, "big") + node_id.to_bytes(4, "big")
    return hashlib.blake2b(seed, digest_size=8).digest()


# ---------------------------------------------------------------- KIP-409: filling placeholders


def fill_placeholders(draft: Draft, *, limit: int) -> int:
    """Give up to ``limit`` placeholders to live brokers that are not yet in their partition, those
    with fewest live replicas first. One step; call again until it returns 0. A partition without a
    leader is passed over (nobody could bring the new replica up), and so is a paused topic, one
    that is being deleted, and one without a Topic."""
    waiting = [row for row in _with_placeholders(draft) if _fillable(draft, row)]
    waiting.sort(key=lambda row: (sum(map(draft.is_live, row.hosts)), row.key))
    filled: dict[uuid.UUID, int] = {}
    done = 0
    for row in waiting:
        if done >= limit:
            break
        if (new := _fill_one(draft, row)) is not None:
            draft.put_row(new)
            filled[row.topic_id] = filled.get(row.topic_id, 0) + 1
            done += 1
    for topic_id, number in filled.items():
        _emit_filled(draft, topic_id, number)
    return done


def _with_placeholders(draft: Draft) -> list[PartitionRow]:
    keys = {*draft.state.with_placeholders, *draft.rows}
    rows = (draft.row(key) for key in keys)
    return [row for row in rows if row is not None and row.placeholders]


def _fillable(draft: Draft, row: PartitionRow) -> bool:
    topic = draft.state.topic_by_id(row.topic_id)
    served = topic is not None and not topic.paused and topic.deletion_ms is None
    return served and row.leader != NO_LEADER


def _fill_one(draft: Draft, row: PartitionRow) -> PartitionRow | None:
    candidates = [broker for broker in takers(draft) if broker.node_id not in row.replicas]
    if not candidates:
        return None
    known = [broker for node_id in row.hosts if (broker := draft.broker(node_id)) is not None]
    best = min(
        candidates, key=lambda broker: _rank(draft, row.topic_id, row.partition, broker, known)
    )
    place = next(index for index, replica in enumerate(row.replicas) if replica < 0)
    replicas = (*row.replicas[:place], best.node_id, *row.replicas[place + 1 :])
    return dataclasses.replace(row, replicas=replicas, partition_epoch=row.partition_epoch + 1)


def _emit_filled(draft: Draft, topic_id: uuid.UUID, number: int) -> None:
    topic = draft.state.topic_by_id(topic_id)
    if topic is not None:
        text = f"{count(number, 'placeholder')} filled by brokers that joined"
        draft.emit(normal("Topic", topic.key, "PlaceholderFilled", text))
