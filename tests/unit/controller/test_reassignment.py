"""Reassignment: replicas join, catch up and leave; elections on request."""

import dataclasses

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.controller.controller_world import ControllerWorld, alter, broker, fence, row, topic
from tidemark_operator.controller import elections, reassignment, snapshot
from tidemark_operator.controller.state.commit import plan
from tidemark_operator.controller.state.model import PartitionRow


def world(*rows: PartitionRow, replication_factor: int = 2, **fields: object) -> ControllerWorld:
    """Return brokers 1 to 4 and a topic whose partitions have these rows."""
    view = topic(
        partitions=len(rows),
        replication_factor=replication_factor,
        partitions_placed=len(rows),
        **fields,
    )
    return ControllerWorld(
        brokers=[broker(node) for node in (1, 2, 3, 4)], topics=[view], rows=rows
    )


def reassign(
    made: ControllerWorld, target: dict[int, tuple[int, ...]], *, keeps_factor: bool = False
) -> dict[int, str]:
    """Commit a reassignment and return the error code of each partition."""
    draft = made.draft()
    moves = reassignment.reassign(draft, made.view(), target, keeps_factor=keeps_factor)
    made.commit(draft)
    return {
        partition: "none" if problem is None else problem[0].name
        for partition, problem in moves.results.items()
    }


def shape(made: ControllerWorld, partition: int = 0) -> tuple[tuple[int, ...], ...]:
    """Return replicas, ISR, adding and removing replicas of a partition."""
    found = made.row(partition)
    return found.replicas, found.isr, found.adding, found.removing


def test_replicas_are_added_before_others_are_removed() -> None:
    made = world(row((1, 2)))
    assert reassign(made, {0: (3, 1)}) == {0: "none"}
    assert shape(made) == ((3, 1, 2), (1, 2), (3,), (2,))
    assert made.row().leader == 1
    # The new replica has caught up, which completes the move (KIP-455).
    assert alter(made, 1, 2, 3) == 0
    assert shape(made) == ((3, 1), (3, 1), (), ())
    assert made.row().leader == 1


def test_a_move_is_not_cancelled_while_the_minimum_in_sync_needs_its_new_replica() -> None:
    """Otherwise acknowledged records would be on a single replica."""
    made = world(row((1, 2)), config={"min.insync.replicas": "2"})
    reassign(made, {0: (3, 4)})
    # Broker 3 replaces broker 2 in the ISR: cancelling would leave one replica in sync.
    assert alter(made, 1, 3) == 0
    for target in ((), (1, 2), (4, 2)):
        assert reassign(made, {0: target}) == {0: "invalid_replica_assignment"}
    assert shape(made)[1] == (3, 1)
    assert alter(made, 1, 2, 3) == 0
    assert reassign(made, {0: ()}) == {0: "none"}
    assert shape(made) == ((1, 2), (1, 2), (), ())


def test_a_leader_that_leaves_hands_over_in_the_same_commit() -> None:
    made = world(row((1, 2)))
    before = made.row()
    reassign(made, {0: (3, 4)})
    assert alter(made, 1, 2, 3) == 0
    assert shape(made) == ((3, 4, 1, 2), (3, 1, 2), (3, 4), (1, 2))
    assert made.row().leader == 1
    # Both new replicas are in sync, so the leader hands over.
    assert alter(made, 1, 2, 3, 4) == 0
    assert shape(made) == ((3, 4), (3, 4), (), ())
    assert made.row().leader == 3
    assert made.row().leader_epoch == before.leader_epoch + 1


def test_a_removed_replica_is_deleted_by_its_broker() -> None:
    made = world(row((1, 2)))
    draft = made.draft()
    reassignment.reassign(draft, made.view(), {0: (1,)})
    # The only partition changes its number of replicas, so the factor of the topic changes.
    (write,) = plan(draft).writes
    (removal,) = snapshot.removals_of(made.state, write)[2]
    assert removal.partition_epoch == made.row().partition_epoch + 1


def test_reassignment_can_be_cancelled() -> None:
    made = world(row((1, 2)))
    reassign(made, {0: (3, 4)})
    alter(made, 1, 2, 3)
    assert reassign(made, {0: ()}) == {0: "none"}
    assert shape(made) == ((1, 2), (1, 2), (), ())
    # KIP-455 answers the cancellation of nothing with this error.
    assert reassign(made, {0: ()}) == {0: "no_reassignment_in_progress"}


def test_running_reassignment_can_get_another_target() -> None:
    made = world(row((1, 2)))
    reassign(made, {0: (3, 1)})
    alter(made, 1, 2)
    assert reassign(made, {0: (4, 1)}) == {0: "none"}
    assert shape(made) == ((4, 1, 2), (1, 2), (4,), (2,))


def test_reordering_replicas_completes_at_once() -> None:
    made = world(row((1, 2)))
    epoch = made.row().partition_epoch
    assert reassign(made, {0: (2, 1)}) == {0: "none"}
    assert shape(made) == ((2, 1), (1, 2), (), ())
    assert made.row().partition_epoch == epoch + 1
    # A repeated request changes nothing.
    assert reassign(made, {0: (2, 1)}) == {0: "none"}
    assert made.row().partition_epoch == epoch + 1


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ((1, 1), "invalid_replica_assignment"),
        ((1, 9), "invalid_replica_assignment"),
        ((-1, 2), "invalid_replica_assignment"),
        ((1, 2, 3), "invalid_replication_factor"),
    ],
)
def test_invalid_targets_are_refused(target: tuple[int, ...], code: str) -> None:
    made = world(row((1, 2)), row((1, 2), partition=1))
    assert reassign(made, {0: target}) == {0: code}
    assert shape(made) == ((1, 2), (1, 2), (), ())


def test_a_reader_is_no_target() -> None:
    made = world(row((1, 2)))
    made.state.put_broker(dataclasses.replace(broker(4), is_reader=True))
    assert reassign(made, {0: (1, 4)}) == {0: "invalid_replica_assignment"}
    assert reassign(made, {0: (1, 3)}) == {0: "none"}


def test_no_replica_is_removed_before_a_remaining_one_is_in_sync() -> None:
    made = world(row((1, 2), isr=(1,)), replication_factor=1)
    assert reassign(made, {0: (2,)}) == {0: "none"}
    assert shape(made) == ((2, 1), (1,), (), (1,))
    assert alter(made, 1, 2) == 0
    assert shape(made) == ((2,), (2,), (), ())
    assert made.row().leader == 2
    assert reassign(made, {5: (2,)}) == {5: "unknown_topic_or_partition"}


def test_a_target_without_an_in_sync_replica_is_refused() -> None:
    """Only the replicas that the former move added are in sync by now."""
    made = world(row((1, 2)))
    reassign(made, {0: (3, 4)})
    alter(made, 1, 2, 3)
    # Only a replica of the move itself is in sync: a cancellation would lose it.
    fence(made, 1, 2)
    assert shape(made) == ((3, 4, 1, 2), (3,), (3, 4), (1, 2))
    assert reassign(made, {0: ()}) == {0: "invalid_replica_assignment"}


def test_replication_factor_changes_for_all_partitions_only() -> None:
    made = world(row((1, 2)), row((2, 1), partition=1))
    target = {0: (1, 2, 3), 1: (2, 1, 4)}
    assert set(reassign(made, target, keeps_factor=True).values()) == {"invalid_replication_factor"}
    draft = made.draft()
    assert reassignment.reassign(draft, made.view(), target).replication_factor == 3
    made.commit(draft)
    assert shape(made, 1) == ((2, 1, 4), (2, 1), (4,), ())


def test_topic_is_not_refused_while_its_factor_changes() -> None:
    """The spec has the new replication factor before the last replica has joined."""
    made = world(row((1, 2)))
    reassign(made, {0: (1, 2, 3)})
    made.state.put_topic(dataclasses.replace(made.view(), replication_factor=3))
    assert made.decide().blocker is None


def test_a_dead_leader_of_a_moving_partition_is_replaced() -> None:
    made = world(row((1, 2)))
    reassign(made, {0: (3, 1)})
    fence(made, 1)
    assert made.row().leader == 2
    assert alter(made, 2, 3) == 0
    assert shape(made) == ((3, 1), (3,), (), ())
    assert made.row().leader == 3


def test_a_move_without_a_possible_leader_completes_once_there_is_one() -> None:
    made = world(row((1, 2)))
    reassign(made, {0: (3,)})
    # The storage of the new replica fails just when it is in sync.
    in_sync_row = dataclasses.replace(made.row(), isr=(1, 2, 3))
    made.state.put_row(in_sync_row)
    made.state.storage_failures.put(3, frozenset({in_sync_row.key}))
    assert _finish(made) == 0
    assert made.row() == in_sync_row
    made.state.storage_failures.put(3, frozenset())
    assert _finish(made) == 1
    assert shape(made) == ((3,), (3,), (), ())
    assert made.row().leader == 3
    assert made.state.partitions.moving == set()


def _finish(made: ControllerWorld) -> int:
    draft = made.draft()
    done = reassignment.finish(draft)
    made.commit(draft)
    return done


# ---------------------------------------------------------------- elections


def elect(made: ControllerWorld, *partitions: int, unclean: bool = False) -> dict[int, str]:
    draft = made.draft()
    found = elections.elect_as_requested(draft, made.view(), partitions, unclean=unclean)
    made.commit(draft)
    return {partition: code.name for partition, (code, _) in found.items()}


def test_the_preferred_leader_is_elected_where_it_can_lead() -> None:
    made = world(
        row((1, 2), leader=2), row((1, 2), isr=(2,), partition=1), row((1, 2), partition=2)
    )
    assert elect(made, 0, 1, 2, 9) == {
        0: "none",
        1: "preferred_leader_not_available",
        2: "election_not_needed",
        9: "unknown_topic_or_partition",
    }
    assert (made.row(0).leader, made.row(1).leader) == (1, 2)


def test_an_unclean_leader_is_elected_without_a_leader() -> None:
    made = world(row((1, 2), isr=(1,)), row((3, 4), isr=(3,), partition=1))
    fence(made, 1, 3, 4)
    assert elect(made, 0, 1, unclean=True) == {
        0: "none",
        1: ErrorCode.eligible_leaders_not_available.name,
    }
    assert made.row(0).leader == 2
    assert made.row(0).recovering
    assert elect(made, 0, unclean=True) == {0: "election_not_needed"}


def test_a_paused_topic_keeps_leaders_and_replicas() -> None:
    made = world(row((1, 2), leader=2), paused=True)
    assert elect(made, 0) == {0: "policy_violation"}
    assert reassign(made, {0: (2, 1)}) == {0: "policy_violation"}


def test_removal_waits_while_min_isr_needs_the_replica() -> None:
    """Kafka removes it at once, and then producers with acks=all get NOT_ENOUGH_REPLICAS."""
    made = world(row((1, 2), isr=(1,)), config={"min.insync.replicas": "2"})
    reassign(made, {0: (3, 2)})
    # One of the target's replicas is in sync, but the minimum is two.
    assert alter(made, 1, 3) == 0
    assert shape(made) == ((3, 2, 1), (3, 1), (3,), (1,))
    assert alter(made, 1, 2, 3) == 0
    assert shape(made) == ((3, 2), (3, 2), (), ())


def test_a_removed_replica_that_leaves_the_isr_still_has_committed_records() -> None:
    """Otherwise it would delete its replica, and the one remaining member could lack its tail."""
    moved = row((2, 1, 4), isr=(2, 4), adding=(2,), removing=(4,))
    made = world(moved, config={"min.insync.replicas": "2"})
    # The replica leaves the ISR while it is being removed, and stays eligible (KIP-966).
    assert alter(made, 2) == 0
    assert shape(made)[0] == (2, 1, 4)
    assert made.row().elr == (4,)


def test_a_partition_does_not_move_to_brokers_that_do_not_exist() -> None:
    made = world(row((1, -1)))
    draft = made.draft()
    assert reassignment.redirected(draft, made.row(), (-1,)) is None
