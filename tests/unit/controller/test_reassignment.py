"""Reassignment: replicas join, catch up and leave; elections on request."""

import dataclasses

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.controller.controller_world import World, alter, broker, fence, row, topic
from tidemark_operator.controller import reassignment, requested_elections, snapshot
from tidemark_operator.controller.commit import plan
from tidemark_operator.controller.model import PartitionRow


def world(*rows: PartitionRow, replication_factor: int = 2, **fields: object) -> World:
    """Return brokers 1 to 4 and a topic whose partitions have these rows."""
    view = topic(
        partitions=len(rows),
        replication_factor=replication_factor,
        partitions_placed=len(rows),
        **fields,
    )
    return World(brokers=[broker(node) for node in (1, 2, 3, 4)], topics=[view], rows=rows)


def reassign(
    made: World, asked: dict[int, tuple[int, ...]], *, keeps_factor: bool = False
) -> dict[int, str]:
    """Committed; the code of each partition."""
    draft = made.draft()
    moves = reassignment.reassign(draft, made.view(), asked, keeps_factor=keeps_factor)
    made.commit(draft)
    return {
        partition: "none" if problem is None else problem[0].name
        for partition, problem in moves.results.items()
    }


def shape(made: World, partition: int = 0) -> tuple[tuple[int, ...], ...]:
    """(replicas, ISR, adding, removing)"""
    found = made.row(partition)
    return found.replicas, found.isr, found.adding, found.removing


def test_replicas_are_added_before_others_are_removed() -> None:
    made = world(row((1, 2)))
    assert reassign(made, {0: (3, 1)}) == {0: "none"}
    assert shape(made) == ((3, 1, 2), (1, 2), (3,), (2,))
    assert made.row().leader == 1
    assert alter(made, 1, 2, 3) == 0
    assert shape(made) == ((3, 1), (3, 1), (), ())
    assert made.row().leader == 1


def test_a_move_is_not_cancelled_while_the_minimum_in_sync_needs_its_new_replica() -> None:
    """Acknowledged records were on one replica alone then."""
    made = world(row((1, 2)), config={"min.insync.replicas": "2"})
    reassign(made, {0: (3, 4)})
    assert alter(made, 1, 3) == 0
    for asked in ((), (1, 2), (4, 2)):
        assert reassign(made, {0: asked}) == {0: "invalid_replica_assignment"}
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
    assert alter(made, 1, 2, 3, 4) == 0
    assert shape(made) == ((3, 4), (3, 4), (), ())
    assert made.row().leader == 3
    assert made.row().leader_epoch == before.leader_epoch + 1


def test_a_removed_replica_is_deleted_by_its_broker() -> None:
    made = world(row((1, 2)))
    draft = made.draft()
    reassignment.reassign(draft, made.view(), {0: (1,)})
    # One replica where the manifest says two: not for one partition of several, but for all.
    (write,) = plan(draft).writes
    (removal,) = snapshot.removals_of(made.state, write)[2]
    assert removal.partition_epoch == made.row().partition_epoch + 1


def test_a_move_is_called_off() -> None:
    made = world(row((1, 2)))
    reassign(made, {0: (3, 4)})
    alter(made, 1, 2, 3)
    assert reassign(made, {0: ()}) == {0: "none"}
    assert shape(made) == ((1, 2), (1, 2), (), ())
    assert reassign(made, {0: ()}) == {0: "no_reassignment_in_progress"}


def test_another_target_may_be_given_on_the_way() -> None:
    made = world(row((1, 2)))
    reassign(made, {0: (3, 1)})
    alter(made, 1, 2)
    assert reassign(made, {0: (4, 1)}) == {0: "none"}
    assert shape(made) == ((4, 1, 2), (1, 2), (4,), (2,))


def test_the_order_alone_is_a_move_that_is_done_at_once() -> None:
    made = world(row((1, 2)))
    epoch = made.row().partition_epoch
    assert reassign(made, {0: (2, 1)}) == {0: "none"}
    assert shape(made) == ((2, 1), (1, 2), (), ())
    assert made.row().partition_epoch == epoch + 1
    assert reassign(made, {0: (2, 1)}) == {0: "none"}
    assert made.row().partition_epoch == epoch + 1


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ((1, 1), "invalid_replica_assignment"),
        ((1, 9), "invalid_replica_assignment"),
        ((-1, 2), "invalid_replica_assignment"),
        ((1, 2, 3), "invalid_replication_factor"),
    ],
)
def test_what_cannot_be_is_refused(asked: tuple[int, ...], code: str) -> None:
    made = world(row((1, 2)), row((1, 2), partition=1))
    assert reassign(made, {0: asked}) == {0: code}
    assert shape(made) == ((1, 2), (1, 2), (), ())


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
    fence(made, 1, 2)
    assert shape(made) == ((3, 4, 1, 2), (3,), (3, 4), (1, 2))
    assert reassign(made, {0: ()}) == {0: "invalid_replica_assignment"}


def test_another_number_of_replicas_is_for_all_partitions() -> None:
    made = world(row((1, 2)), row((2, 1), partition=1))
    asked = {0: (1, 2, 3), 1: (2, 1, 4)}
    assert set(reassign(made, asked, keeps_factor=True).values()) == {"invalid_replication_factor"}
    draft = made.draft()
    assert reassignment.reassign(draft, made.view(), asked).replication_factor == 3
    made.commit(draft)
    assert shape(made, 1) == ((2, 1, 4), (2, 1), (4,), ())


def test_a_topic_that_moves_to_another_number_is_not_refused_meanwhile() -> None:
    """Its manifest says the new number before the last replica has come."""
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
    # The storage of the replica that came refuses by the time that it is in sync.
    held = dataclasses.replace(made.row(), isr=(1, 2, 3))
    made.state.put_row(held)
    made.state.put_failed(3, frozenset({held.key}))
    assert _finish(made) == 0
    assert made.row() == held
    made.state.put_failed(3, frozenset())
    assert _finish(made) == 1
    assert shape(made) == ((3,), (3,), (), ())
    assert made.row().leader == 3
    assert made.state.moving == set()


def _finish(made: World) -> int:
    draft = made.draft()
    done = reassignment.finish(draft)
    made.commit(draft)
    return done


# ---------------------------------------------------------------- elections


def elect(made: World, *partitions: int, unclean: bool = False) -> dict[int, str]:
    draft = made.draft()
    found = requested_elections.elect(draft, made.view(), partitions, unclean=unclean)
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


def test_a_removed_replica_is_waited_for_while_the_minimum_in_sync_needs_it() -> None:
    """Kafka lets it go, and producers with acks=all are refused."""
    made = world(row((1, 2), isr=(1,)), config={"min.insync.replicas": "2"})
    reassign(made, {0: (3, 2)})
    assert alter(made, 1, 3) == 0
    assert shape(made) == ((3, 2, 1), (3, 1), (3,), (1,))
    assert alter(made, 1, 2, 3) == 0
    assert shape(made) == ((3, 2), (3, 2), (), ())


def test_a_removed_replica_that_leaves_the_isr_still_has_committed_records() -> None:
    """Otherwise it would delete its replica, and the one remaining member could lack its tail."""
    moved = row((2, 1, 4), isr=(2, 4), adding=(2,), removing=(4,))
    made = world(moved, config={"min.insync.replicas": "2"})
    assert alter(made, 2) == 0
    assert shape(made)[0] == (2, 1, 4)
    assert made.row().elr == (4,)


def test_a_partition_does_not_move_to_brokers_that_do_not_exist() -> None:
    made = world(row((1, -1)))
    draft = made.draft()
    assert reassignment.redirected(draft, made.row(), (-1,)) is None
