"""A leader that hung for longer than its session is silent until it receives a new state."""

from collections.abc import Callable

from kio.schema.errors import ErrorCode

from tests.unit.replication.replica_nodes import Node, batch
from tidemark_broker.replication.partition import consumer_reads, log_start, produce
from tidemark_broker.replication.partition.consumer_reads import EARLIEST
from tidemark_broker.replication.stall_detection import Stall

Nodes = Callable[[int], Node]
SESSION_S = 9.0


def awake_at(now_s: float) -> Stall:
    stall = Stall()
    stall.session_of(SESSION_S)
    stall.turned(now_s)
    return stall


def test_it_is_silent_from_the_turn_in_which_it_wakes_up() -> None:
    stall = awake_at(100.0)
    assert not stall.must_be_silent(100.0 + SESSION_S)
    assert stall.must_be_silent(109.5)
    stall.turned(109.5)
    assert stall.must_be_silent(109.6)
    stall.turned(109.6)
    assert stall.must_be_silent(109.7)


def test_only_a_session_that_began_afterwards_is_believed() -> None:
    stall = awake_at(100.0)
    stall.turned(110.0)
    assert not stall.confirmed(90.0)
    assert stall.must_be_silent(110.1)
    assert stall.confirmed(110.1)
    assert not stall.must_be_silent(110.2)
    stall.turned(110.3)
    stall.turned(125.0)
    assert not stall.confirmed(110.1)


def test_without_a_session_or_a_loop_nothing_is_a_stall() -> None:
    stall = Stall()
    assert not stall.must_be_silent(1e9)
    stall.turned(0.0)
    assert not stall.must_be_silent(1e9)
    assert stall.confirmed(0.0)


def test_the_turn_before_its_first_session_counts() -> None:
    stall = Stall()
    stall.turned(100.0)
    stall.session_of(SESSION_S)
    assert not stall.must_be_silent(100.0 + SESSION_S)
    assert stall.must_be_silent(109.5)
    stall.turned(109.5)
    assert stall.must_be_silent(109.6)


async def test_a_stalled_leader_serves_no_request(node: Nodes) -> None:
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(3)
    await two.catch_up(one)
    stall = one.context.stall
    stall.session_of(SESSION_S)
    stall.turned(one.now_s)
    one.now_s += SESSION_S + 1
    partition, refused = one.partition, ErrorCode.not_leader_or_follower
    assert (await produce.append(partition, batch(), acks=1, timeout_ms=0)).error is refused
    assert consumer_reads.fetch(partition, 0, max_bytes=1000, min_one=True).error is refused
    assert (await consumer_reads.list_offset(partition, EARLIEST)).error is refused
    assert log_start.delete_records(partition, 1).error is refused
    assert (await two.fetch_result(one)).error_code == refused.value
    assert partition.next_offset == 3
    stall.turned(one.now_s)
    assert stall.confirmed(one.now_s)
    await one.append()
    await two.catch_up(one)
