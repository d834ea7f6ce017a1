"""Reassignment: a partition moves to other brokers and stays available meanwhile (KIP-455).

While it moves, the row has all replicas, the target first, and names the added (``adding``) and the
removed ones (``removing``). Added replicas catch up as any follower does. Once all of them are in
the ISR, the removed ones leave row and ISR in the same commit, so that the remaining replicas have
all committed records. Their brokers then delete their logs, because a newer partition epoch does
not name them. The target may change on the way, and the move may be cancelled, which restores the
original replicas. (Kafka's ``ReplicationControlManager`` and ``PartitionReassignmentReplicas``.)

All partitions of a topic have the same number of replicas, as in the spec: a move to another number
concerns all of them at once.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from tidemark.message_text import count
from tidemark_operator.controller import elections
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.events import normal
from tidemark_operator.controller.state.model import NO_LEADER, PartitionRow, TopicInfo

#: Kafka's error code with a message.
Problem = tuple[ErrorCode, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Moves:
    """Result of a request.

    ``results`` has a problem or None for each partition, ``replication_factor`` is the topic's
    factor after it.
    """

    results: Mapping[int, Problem | None]
    replication_factor: int


def target(row: PartitionRow) -> tuple[int, ...]:
    """Return the replicas after the move in progress."""
    return tuple(replica for replica in row.replicas if replica not in row.removing)


def original(row: PartitionRow) -> tuple[int, ...]:
    """Return the replicas if the move is cancelled."""
    return tuple(replica for replica in row.replicas if replica not in row.adding)


def common_factor(rows: Iterable[PartitionRow]) -> int | None:
    """Return the replicas of each partition after all moves.

    None if they differ, or there is none.
    """
    factors = {len(target(row)) for row in rows}
    return next(iter(factors)) if len(factors) == 1 else None


def is_moving(row: PartitionRow) -> bool:
    """Return whether a reassignment is in progress."""
    return bool(row.adding or row.removing)


def reassign(
    draft: Draft,
    topic: TopicInfo,
    requested: Mapping[int, tuple[int, ...]],
    *,
    keeps_factor: bool = False,
) -> Moves:
    """Draft Kafka's AlterPartitionReassignments (KIP-455); return the result per partition.

    ``requested``: new replicas by partition; () cancels a reassignment in progress.
    ``keeps_factor``: refuse a different number of replicas (KIP-860).
    """
    rows = draft.rows_of(topic.id)
    results: dict[int, Problem | None] = {}
    drafted: dict[int, PartitionRow] = {}
    # Check each partition by itself; nothing is drafted yet.
    for partition, replicas in requested.items():
        row = rows.get(partition)
        problem = _problem(draft, topic, row, replicas)
        if problem is None and row is not None:
            new = redirected(draft, row, replicas or original(row))
            if new is None or not keeps_minimum(draft, row, new):
                text = "too few of the remaining replicas are in sync. Try again later"
                problem = ErrorCode.invalid_replica_assignment, text
            else:
                drafted[partition] = new
        results[partition] = problem
    # All partitions of a topic must have the same number of replicas afterwards.
    factor = common_factor((rows | drafted).values())
    if factor is None or (keeps_factor and factor != topic.replication_factor):
        results |= _other_factors(topic, drafted)
        return Moves(results, topic.replication_factor)
    # Repeating a request is no change, so it writes no row and emits no Event.
    begun = [new for partition, new in drafted.items() if new != rows[partition]]
    for new in begun:
        draft.put_row(new)
    if begun:
        text = f"{count(len(begun), 'partition')} reassigned through Kafka's API"
        draft.emit(normal("Topic", topic.key, "Reassigned", text))
    return Moves(results, factor)


def settled(draft: Draft, row: PartitionRow) -> PartitionRow:
    """Complete a partition's reassignment if it can be completed; return the row.

    All added replicas must be in the ISR, and enough of the replicas that stay. Until then the
    removed replicas remain, as further copies of the records and to satisfy
    ``min.insync.replicas``. Otherwise the row is returned unchanged. The caller raises the epochs.
    """
    if not is_moving(row) or not set(row.adding) <= set(row.isr):
        return row
    replicas = target(row)
    isr = tuple(replica for replica in replicas if replica in row.isr)
    leader = _leader(draft, row, isr)
    # A move that would leave the partition offline waits for a remaining replica that can lead.
    if row.leader != NO_LEADER and leader == NO_LEADER:
        return row
    if len(isr) < _needed(draft, row):
        return row
    return dataclasses.replace(
        row, replicas=replicas, isr=isr, leader=leader, adding=(), removing=()
    )


def keeps_minimum(draft: Draft, row: PartitionRow, new: PartitionRow) -> bool:
    """Return whether no holder of committed records leaves, or enough replicas stay in sync."""
    return set(row.holders) <= set(new.holders) or len(new.isr) >= _needed(draft, new)


def _needed(draft: Draft, row: PartitionRow) -> int:
    """Return how many replicas have to be in sync once the move is done."""
    return max(1, min(len(target(row)), draft.state.min_isr(row)))


def finish(draft: Draft) -> int:
    """Finish moves that waited for a remaining replica that can lead; return how many.

    Called periodically.
    """
    done = 0
    for key in sorted(draft.state.partitions.moving):
        row = draft.row(key)
        new = None if row is None else settled(draft, row)
        if row is not None and new is not None and new != row:
            draft.put_row(elections.with_elr_and_epochs(row, new, draft.state.min_isr(row)))
            done += 1
    return done


def _leader(draft: Draft, row: PartitionRow, isr: tuple[int, ...]) -> int:
    if row.leader in isr or row.leader == NO_LEADER:
        return row.leader
    return next((replica for replica in isr if draft.can_serve(replica, row.key)), NO_LEADER)


def _problem(
    draft: Draft, topic: TopicInfo, row: PartitionRow | None, replicas: tuple[int, ...]
) -> Problem | None:
    """Return Kafka's error and message for a partition that cannot be reassigned, else None.

    ``replicas``: the requested ones; empty to cancel.
    """
    wrong = ErrorCode.invalid_replica_assignment
    if row is None:
        return ErrorCode.unknown_topic_or_partition, "This server does not host this partition."
    if topic.paused:
        return ErrorCode.policy_violation, f"Topic {topic.key} is paused"
    # No replicas: the request cancels a reassignment.
    if not replicas:
        if is_moving(row):
            return None
        return ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress."
    # Otherwise every target must be a distinct broker that accepts replicas.
    if len(set(replicas)) < len(replicas):
        return wrong, "the assignment names a broker twice"
    for replica in replicas:
        broker = draft.broker(replica)
        if broker is not None and broker.is_reader:
            return wrong, f"broker {replica} is a Reader, which has no replicas"
        if broker is None or not broker.registered or broker.leaving:
            return wrong, f"broker {replica} is not registered, or is draining"
    return None


def redirected(draft: Draft, row: PartitionRow, replicas: tuple[int, ...]) -> PartitionRow | None:
    """Return a partition's row with a reassignment to ``replicas``; None if it is not possible.

    Not possible means that no in-sync replica or no leader would be left. Placeholders among
    ``replicas`` take effect at once. Replicas that only an earlier, unfinished reassignment was
    adding are removed at once.
    """
    # Start from the original replicas, as Kafka does if a reassignment replaces another one.
    base = tuple(replica for replica in original(row) if replica >= 0)
    removing = tuple(replica for replica in base if replica not in replicas)
    # Removed replicas stay until the added ones are in the ISR.
    present = (*replicas, *removing)
    isr = tuple(replica for replica in present if replica in row.isr)
    leader = _leader(draft, row, isr)
    lost = row.leader != NO_LEADER and leader == NO_LEADER
    if not isr or lost or all(replica < 0 for replica in replicas):
        return None
    new = dataclasses.replace(
        row,
        replicas=present,
        isr=isr if set(isr) != set(row.isr) else row.isr,
        leader=leader,
        adding=tuple(replica for replica in replicas if replica >= 0 and replica not in base),
        removing=removing,
    )
    return elections.with_elr_and_epochs(row, settled(draft, new), draft.state.min_isr(row))


def _other_factors(topic: TopicInfo, drafted: Mapping[int, PartitionRow]) -> Mapping[int, Problem]:
    factor = topic.replication_factor
    text = (
        f"the partitions of topic {topic.name} have {count(factor, 'replica')}. To "
        "change the replication factor, reassign all of them and allow it"
    )
    problem = ErrorCode.invalid_replication_factor, text
    return {partition: problem for partition, row in drafted.items() if len(target(row)) != factor}
