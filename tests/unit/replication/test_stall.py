"""A leader that was paused for long enough serves nothing until the controller confirms its
state."""

from collections.abc import Callable

from kio.schema.errors import ErrorCode

from tests.unit.replication.replica_nodes import ReplicaNode, batch
from tidemark_broker.replication.partition import consumer_reads, log_start, produce
from tidemark_broker.replication.partition.consumer_reads import EARLIEST
from tidemark_broker.replication.stall_detection import Stall

Nodes = Callable[[int], ReplicaNode]
LEASE_S, LOOP_MAX_S = 9.0, 30.0


def awake_at(now_s: float) -> Stall:
    stall = Stall()
    stall.limit(registered_s=now_s, lease_s=LEASE_S, loop_max_s=LOOP_MAX_S)
    stall.turned(now_s)
    return stall


def test_a_leader_is_silent_from_the_turn_in_which_it_wakes_up() -> None:
    stall = awake_at(100.0)
    assert not stall.must_be_silent(100.0 + LEASE_S)
    # The loop wakes up at 109.5 after a turn at 100. Requests of this very turn must already be
    # rejected.
    assert stall.must_be_silent(109.5)
    stall.turned(109.5)
    assert stall.must_be_silent(109.6)
    stall.turned(109.6)
    assert stall.must_be_silent(109.7)


def test_only_a_session_that_started_after_the_stall_confirms_the_state() -> None:
    stall = awake_at(100.0)
    stall.turned(110.0)
    # The confirmation is as old as its session's start. Before the stall the controller could not
    # know of it.
    assert not stall.confirmed(90.0)
    assert stall.must_be_silent(110.1)
    assert stall.confirmed(110.1)
    assert not stall.must_be_silent(110.2)
    stall.turned(110.3)
    stall.turned(125.0)
    assert not stall.confirmed(110.1)


def test_nothing_is_a_stall_before_a_session_and_a_turn() -> None:
    stall = Stall()
    assert not stall.must_be_silent(1e9)
    stall.turned(0.0)
    assert not stall.must_be_silent(1e9)
    assert stall.confirmed(0.0)


def test_the_turn_before_the_first_session_counts() -> None:
    stall = Stall()
    stall.turned(100.0)
    stall.limit(registered_s=100.0, lease_s=LEASE_S, loop_max_s=LOOP_MAX_S)
    assert not stall.must_be_silent(100.0 + LEASE_S)
    assert stall.must_be_silent(109.5)
    stall.turned(109.5)
    assert stall.must_be_silent(109.6)


def test_the_lease_counts_from_the_last_answered_heartbeat() -> None:
    stall = awake_at(100.0)
    for now_s in (102.0, 104.0, 106.0):
        stall.beat(now_s)
        stall.turned(now_s)
    # The heartbeats of 104 and 106 were sent and did not arrive.
    stall.answered(102.0)
    assert not stall.must_be_silent(102.0 + LEASE_S)
    assert stall.must_be_silent(102.1 + LEASE_S)
    # The answer to one that was sent before the pause is read after it.
    stall.answered(104.0)
    assert not stall.must_be_silent(104.0 + LEASE_S)
    assert stall.must_be_silent(104.1 + LEASE_S)


def test_an_unanswered_heartbeat_is_no_stall_without_a_pause() -> None:
    stall = awake_at(100.0)
    for number in range(200):
        stall.beat(100.0 + number)
        stall.turned(100.2 + number)
        assert not stall.must_be_silent(100.5 + number)


def test_a_blocked_loop_whose_heartbeats_continue_is_no_stall_within_its_limit() -> None:
    stall = awake_at(100.0)
    for now_s in range(102, 129, 2):
        stall.beat(now_s)
        stall.answered(now_s)
    # The controller receives heartbeats, so it elects no other leader.
    assert not stall.must_be_silent(129.0)
    # It does so if the loop is blocked for longer than its limit.
    assert stall.must_be_silent(100.5 + LOOP_MAX_S)


def test_any_number_of_heartbeats_is_no_pause() -> None:
    """A session of 300 s with a suspect timeout of 1 s has 1,200. A controller that refuses
    connections is retried every 0.2 s.
    """
    stall = awake_at(100.0)
    for number in range(280):
        stall.beat(100.0 + number / 10)
    assert not stall.must_be_silent(128.0)


def test_a_heartbeat_that_was_begun_before_a_pause_is_recorded_after_it() -> None:
    stall = awake_at(100.0)
    # The loop wakes up first. The thread has read its clock before the pause.
    stall.turned(105.0)
    stall.beat(101.0)
    stall.beat(109.2)
    assert not stall.must_be_silent(113.5)


def test_a_blocked_loop_without_a_session_is_no_stall_within_its_limit() -> None:
    stall = awake_at(100.0)
    stall.session_ended(101.0)
    # No heartbeats are sent, since no controller answers.
    assert not stall.must_be_silent(130.0)
    assert stall.must_be_silent(131.5)
    # The next session has the shorter limit again.
    stall.turned(130.0)
    stall.limit(registered_s=130.0, lease_s=LEASE_S, loop_max_s=LOOP_MAX_S)
    assert stall.must_be_silent(139.5)


def test_a_pause_in_which_the_session_ended_counts() -> None:
    stall = awake_at(100.0)
    # The process was paused from 100 to 110. The end of its session is the first thing it sees.
    stall.session_ended(110.0)
    assert stall.must_be_silent(110.0)
    stall.turned(110.1)
    assert not stall.confirmed(90.0)


def test_a_pause_is_found_if_the_heartbeat_thread_wakes_up_first() -> None:
    stall = awake_at(100.0)
    stall.beat(101.0)
    # The process was paused from 101 to 111.
    stall.beat(111.0)
    assert stall.must_be_silent(111.1)
    stall.turned(111.1)
    stall.beat(112.0)
    assert stall.must_be_silent(112.0)


async def test_a_stalled_leader_serves_no_request(node: Nodes) -> None:
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(3)
    await two.catch_up(one)
    stall = one.context.stall
    stall.limit(registered_s=one.now_s, lease_s=LEASE_S, loop_max_s=LOOP_MAX_S)
    stall.turned(one.now_s)
    # The process was stopped for so long that it may be superseded. Another broker may lead by now.
    one.now_s += LEASE_S + 1
    partition, expected = one.partition, ErrorCode.not_leader_or_follower
    assert (await produce.append(partition, batch(), acks=1, timeout_ms=0)).error is expected
    assert consumer_reads.fetch(partition, 0, max_bytes=1000, min_one=True).error is expected
    assert (await consumer_reads.list_offset(partition, EARLIEST)).error is expected
    assert log_start.delete_records(partition, 1).error is expected
    assert (await two.fetch_result(one)).error_code == expected.value
    assert partition.next_offset == 3
    stall.turned(one.now_s)
    assert stall.confirmed(one.now_s)
    await one.append()
    await two.catch_up(one)
