"""Changes of the replication factor: partitions get more replicas, or give some up.

More replicas are added as in any move (:mod:`reassignment`), one after another and as
:mod:`catch_up_limits` has room. If brokers are missing and the Cluster allows it (KIP-409),
placeholders hold the places. Fewer: placeholders are removed first, then replicas that are down or
not in sync, then those on leaving brokers, then one of two in a rack, and of those the one whose
broker has the most. A leader is removed only if no other replica can be. No replica is removed that
the minimum in sync needs. What is left to do is the difference between the rows and the spec, so a
new controller continues from there.

A topic may also differ because a move of a Kafka client is ahead of its spec. The reconciler of
Topics tells these apart (``state.resizing``), because it knows who wrote the spec.
"""

import dataclasses
import uuid
from collections.abc import Iterable

from tidemark_operator.controller import reassignment
from tidemark_operator.controller.catch_up_limits import CatchUpRoom, takers
from tidemark_operator.controller.placement import Spreads, newcomer, rack_of
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.model import (
    NO_LEADER,
    PartitionRow,
    TopicInfo,
    min_insync_replicas,
)

#: Partitions that one decision changes; the others wait for the next one.
CHANGED_MAX = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """Partitions with another number of replicas than the spec.

    The counts of waiting ones are those that cannot continue without brokers, or a leader.
    """

    partitions: int
    without_broker: int
    without_leader: int


def outlook(draft: Draft, topic: TopicInfo) -> Resizing | None:
    """Return the partitions whose number of replicas differs from the spec, None if none do.

    The result also counts the partitions that have to wait, because brokers or leaders are missing.
    """
    rows = [row for row in draft.rows_of(topic.id).values() if _differs(row, topic)]
    if not rows:
        return None
    # A broker that has a replica already cannot take another one of the same partition.
    takes = {broker.node_id for broker in takers(draft)}
    return Resizing(
        partitions=len(rows),
        without_broker=sum(
            len(takes.union(row.hosts)) < topic.replication_factor
            and not _may_wait(draft, row, topic)
            for row in rows
        ),
        without_leader=sum(not _may_change(row) for row in rows),
    )


def step(draft: Draft) -> int:
    """Change partitions towards their topics' factors; return how many changed.

    Called periodically.
    """
    room, spreads, changed = CatchUpRoom(draft), Spreads(draft), 0
    for topic_id in sorted(draft.state.resizing):
        for row in _due(draft, topic_id):
            if changed >= CHANGED_MAX:
                return changed
            changed += _change(draft, row, room, spreads)
    return changed


def _due(draft: Draft, topic_id: uuid.UUID) -> list[PartitionRow]:
    topic = draft.state.topics.by_id(topic_id)
    if topic is None or topic.paused or topic.deletion_ms is not None:
        return []
    rows = draft.rows_of(topic_id).values()
    return [row for row in rows if _differs(row, topic) and _may_change(row)]


def _change(draft: Draft, row: PartitionRow, room: CatchUpRoom, spreads: Spreads) -> bool:
    """Add one replica, or remove as many as possible; return whether the row changed."""
    topic = draft.state.topics.by_id(row.topic_id)
    if topic is None:
        return False
    if _is_short(row, topic):
        new = _grown(draft, row, topic, room, spreads)
    else:
        new = _shrunk(draft, row, topic, spreads)
    if new is None or new == row:
        return False
    draft.put_row(new)
    spreads.moved(row, new)
    return True


def _grown(
    draft: Draft, row: PartitionRow, topic: TopicInfo, room: CatchUpRoom, spreads: Spreads
) -> PartitionRow | None:
    """Return a row with one more replica or placeholder; None if the partition has to wait.

    ``room`` limits the replicas that catch up at the same time; ``spreads`` balance them.
    """
    goal = reassignment.target(row)
    hosts = [replica for replica in goal if replica >= 0]
    node_id = newcomer(draft, row, hosts, spreads.of(row.topic_id), room)
    if node_id is None:
        # A placeholder only if no broker could take the replica, not if there is no room.
        all_have_one = all(broker.node_id in row.replicas for broker in room.takers)
        if not all_have_one or not _may_wait(draft, row, topic):
            return None
        return reassignment.redirected(draft, row, (*goal, min((*row.replicas, 0)) - 1))
    # The new replica comes before the placeholders, since those can never lead.
    room.take(node_id, row.key)
    places = tuple(replica for replica in goal if replica < 0)
    return reassignment.redirected(draft, row, (*hosts, node_id, *places))


def _shrunk(
    draft: Draft, row: PartitionRow, topic: TopicInfo, spreads: Spreads
) -> PartitionRow | None:
    """Return a partition's row without surplus replicas, as far as they can be removed now.

    None if none can be removed.
    """
    new, goal = None, reassignment.target(row)
    # One at a time, the most expendable first: each removal changes which one is next.
    while len(goal) > topic.replication_factor:
        others = goal

        def expendable(replica: int, others: tuple[int, ...] = others) -> tuple[int, ...]:
            return _expendable(draft, row, replica, others, spreads)

        for victim in sorted(others, key=expendable, reverse=True):
            left = tuple(replica for replica in others if replica != victim)
            found = reassignment.redirected(draft, row, left)
            if found is not None and reassignment.keeps_minimum(draft, row, found):
                new, goal = found, left
                break
        if goal == others:
            break
    return new


def _expendable(
    draft: Draft, row: PartitionRow, replica: int, others: Iterable[int], spreads: Spreads
) -> tuple[int, ...]:
    """Return the sort key by which surplus replicas are removed, highest first.

    Placeholders first, then replicas that are down, incomplete or out of sync, on leaving brokers,
    in a rack with others, not leading, and on loaded brokers.
    """
    broker, spread = draft.broker(replica), spreads.of(row.topic_id)
    # Python compares tuples by their first different element, so the order is the priority.
    return (
        replica < 0,
        replica not in row.isr and not draft.is_live(replica),
        replica not in row.holders,
        replica not in row.isr,
        broker is None or broker.leaving,
        _rack_mates(draft, replica, others),
        replica != row.leader,
        spread.replicas[replica],
        draft.replica_count(replica),
        replica,
    )


def _rack_mates(draft: Draft, replica: int, others: Iterable[int]) -> int:
    brokers = [draft.broker(other) for other in others if other >= 0]
    racks = [rack_of(broker) for broker in brokers if broker is not None]
    own = draft.broker(replica) if replica >= 0 else None
    return 0 if own is None else racks.count(rack_of(own))


def _differs(row: PartitionRow, topic: TopicInfo) -> bool:
    return len(reassignment.target(row)) != topic.replication_factor


def _is_short(row: PartitionRow, topic: TopicInfo) -> bool:
    return len(reassignment.target(row)) < topic.replication_factor


def _may_change(row: PartitionRow) -> bool:
    """Return whether there is a leader that is known to have everything a new replica needs."""
    return row.leader != NO_LEADER and not row.recovering


def _may_wait(draft: Draft, row: PartitionRow, topic: TopicInfo) -> bool:
    """Return whether a placeholder may stand for a missing broker (KIP-409)."""
    cluster = draft.state.cluster
    hosts = sum(replica >= 0 for replica in reassignment.target(row))
    return cluster.under_replicated_creation and hosts >= min_insync_replicas(topic, cluster)
