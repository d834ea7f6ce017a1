"""Reassignment: a partition moves to other brokers, and keeps serving meanwhile (KIP-455).

The row holds all replicas while it moves, the target first, and which of them come (``adding``) and
go (``removing``). Those that come catch up as any follower does. Once all of them are in the ISR
those that go leave row and ISR in the same commit, so that all that is committed is on whoever
stays; they are told to delete theirs, since a newer partition epoch has no place for them. Another
target may be given on the way, and the move be called off, which leaves the replicas that there
were. (Kafka's ``ReplicationControlManager`` and ``PartitionReassignmentReplicas``.)

All partitions of a topic have as many replicas, as its manifest says: a move to another number
concerns all of them at once.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from tidemark_operator.controller import elections
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.events import count, normal
from tidemark_operator.controller.model import NO_LEADER, PartitionRow, TopicInfo

#: Kafka's code, and why.
Problem = tuple[ErrorCode, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Moves:
    """What was drafted: a problem or None for each partition that was asked for, and the
    replication factor that the topic has then."""

    results: Mapping[int, Problem | None]
    replication_factor: int


def target(row: PartitionRow) -> tuple[int, ...]:
    """The replicas once the move under way is done."""
    return tuple(replica for replica in row.replicas if replica not in row.removing)


def original(row: PartitionRow) -> tuple[int, ...]:
    """The replicas if it is called off."""
    return tuple(replica for replica in row.replicas if replica not in row.adding)


def common_factor(rows: Iterable[PartitionRow]) -> int | None:
    """How many replicas each partition has once the moves under way are done; None where they
    differ, or there is none."""
    factors = {len(target(row)) for row in rows}
    return next(iter(factors)) if len(factors) == 1 else None


def is_moving(row: PartitionRow) -> bool:
    """A reassignment is under way."""
    return bool(row.adding or row.removing)


def reassign(
    draft: Draft,
    topic: TopicInfo,
    asked: Mapping[int, tuple[int, ...]],
    *,
    keeps_factor: bool = False,
) -> Moves:
    """Draft what Kafka's AlterPartitionReassignments asks: replicas by partition, () to call a move
    off. ``keeps_factor``: another number of replicas is refused."""
    rows = draft.rows_of(topic.id)
    results: dict[int, Problem | None] = {}
    drafted: dict[int, PartitionRow] = {}
    for partition, replicas in asked.items():
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
    factor = common_factor((rows | drafted).values())
    if factor is None or (keeps_factor and factor != topic.replication_factor):
        results |= _other_factors(topic, drafted)
        return Moves(results, topic.replication_factor)
    begun = [new for partition, new in drafted.items() if new != rows[partition]]
    for new in begun:
        draft.put_row(new)
    if begun:
        text = f"{count(len(begun), 'partition')} reassigned through Kafka's API"
        draft.emit(normal("Topic", topic.key, "Reassigned", text))
    return Moves(results, factor)


def settled(draft: Draft, row: PartitionRow) -> PartitionRow:
    """The row without those that go, once all that come are in the ISR, and as many of those that
    stay as have to be: until then whoever goes is needed, by producers, and as one more that has
    what is committed. Else the row as it is. (Its epochs are for the caller to raise.)"""
    if not is_moving(row) or not set(row.adding) <= set(row.isr):
        return row
    replicas = target(row)
    isr = tuple(replica for replica in replicas if replica in row.isr)
    leader = _leader(draft, row, isr)
    if row.leader != NO_LEADER and leader == NO_LEADER:
        return row
    if len(isr) < _needed(draft, row):
        return row
    return dataclasses.replace(
        row, replicas=replicas, isr=isr, leader=leader, adding=(), removing=()
    )


def keeps_minimum(draft: Draft, row: PartitionRow, new: PartitionRow) -> bool:
    """Whether nobody goes who has what is committed, or enough are in sync without them."""
    return set(row.holders) <= set(new.holders) or len(new.isr) >= _needed(draft, new)


def _needed(draft: Draft, row: PartitionRow) -> int:
    """How many have to be in sync once the move is done."""
    return max(1, min(len(target(row)), draft.min_isr(row)))


def finish(draft: Draft) -> int:
    """End the moves that could not be ended with the last replica that came, since nobody who stays
    could lead then; how many. Called now and then."""
    done = 0
    for key in sorted(draft.state.moving):
        row = draft.row(key)
        new = None if row is None else settled(draft, row)
        if row is not None and new is not None and new != row:
            draft.put_row(elections.changed(row, new, draft.min_isr(row)))
            done += 1
    return done


def _leader(draft: Draft, row: PartitionRow, isr: tuple[int, ...]) -> int:
    if row.leader in isr or row.leader == NO_LEADER:
        return row.leader
    return next((replica for replica in isr if draft.can_serve(replica, row.key)), NO_LEADER)


def _problem(
    draft: Draft, topic: TopicInfo, row: PartitionRow | None, replicas: tuple[int, ...]
) -> Problem | None:
    wrong = ErrorCode.invalid_replica_assignment
    if row is None:
        return ErrorCode.unknown_topic_or_partition, "This server does not host this partition."
    if topic.paused:
        return ErrorCode.policy_violation, f"Topic {topic.key} is paused"
    if not replicas:
        if is_moving(row):
            return None
        return ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress."
    if len(set(replicas)) < len(replicas):
        return wrong, "the assignment names a broker twice"
    for replica in replicas:
        broker = draft.broker(replica)
        if broker is None or not broker.registered or broker.leaving:
            return wrong, f"broker {replica} is not registered, or is draining"
    return None


def redirected(draft: Draft, row: PartitionRow, replicas: tuple[int, ...]) -> PartitionRow | None:
    """On its way to ``replicas`` (placeholders are in their places at once); None where that would
    leave nobody in sync. What a former move brought and this one does not want goes at once."""
    base = tuple(replica for replica in original(row) if replica >= 0)
    removing = tuple(replica for replica in base if replica not in replicas)
    held = (*replicas, *removing)
    isr = tuple(replica for replica in held if replica in row.isr)
    leader = _leader(draft, row, isr)
    lost = row.leader != NO_LEADER and leader == NO_LEADER
    if not isr or lost or all(replica < 0 for replica in replicas):
        return None
    new = dataclasses.replace(
        row,
        replicas=held,
        isr=isr if set(isr) != set(row.isr) else row.isr,
        leader=leader,
        adding=tuple(replica for replica in replicas if replica >= 0 and replica not in base),
        removing=removing,
    )
    return elections.changed(row, settled(draft, new), draft.min_isr(row))


def _other_factors(topic: TopicInfo, drafted: Mapping[int, PartitionRow]) -> Mapping[int, Problem]:
    factor = topic.replication_factor
    text = (
        f"the partitions of topic {topic.name} have {factor} replicas. To "
        "change the replication factor, reassign all of them and allow it"
    )
    problem = ErrorCode.invalid_replication_factor, text
    return {partition: problem for partition, row in drafted.items() if len(target(row)) != factor}
