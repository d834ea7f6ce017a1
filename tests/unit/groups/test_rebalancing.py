"""The classic protocol, request by request, as Kafka's coordinator answers."""

import time
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.groups.members import (
    DELAY_MS,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    STICKY,
    World,
)
from tidemark_broker.groups.core.rebalancing import NEW_MEMBER_JOIN_TIMEOUT_MS
from tidemark_broker.groups.core.values import GroupState, MemberIdentity, MemberProtocol

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE


# ------------------------------------------------------------ a group begins


def test_the_first_member_waits_for_more_and_leads() -> None:
    world = World()
    first = world.join()
    world.after(DELAY_MS - 1)
    assert first.joins == []
    world.after(1)
    answer = first.join
    assert (answer.error, answer.generation_id) == (ErrorCode.none, 1)
    assert answer.leader == answer.member_id
    assert [member.member_id for member in answer.members] == [answer.member_id]
    assert world.state is COMPLETING


def test_each_newcomer_puts_the_first_generation_off_as_long_as_a_rebalance_may_take() -> None:
    world = World()
    told = [world.join(rebalance_ms=8000)]
    for _ in range(3):
        world.after(DELAY_MS - 500)
        told.append(world.join(rebalance_ms=8000))
    assert not any(item.joins for item in told)
    world.after(500)  # 8 s after the first one: 3 + 3 + 2
    assert all(item.join.generation_id == 1 for item in told)


def test_a_new_member_is_given_its_id_first() -> None:
    world = World()
    answer = world.join(version=4).join
    assert answer.error is ErrorCode.member_id_required
    assert answer.member_id
    again = world.join(answer.member_id, version=4)
    world.after(DELAY_MS)
    assert again.join.error is ErrorCode.none
    assert again.join.member_id == answer.member_id


def test_a_member_id_without_a_join_is_forgotten() -> None:
    world = World()
    pending = world.join(version=4).join.member_id
    world.after(SESSION_MS)
    assert world.join(pending, version=4).join.error is ErrorCode.unknown_member_id
    assert world.room.used_bytes == world.group.weight_bytes


def test_a_generation_waits_for_ids_that_were_given_away() -> None:
    world = World()
    ids = world.stable()
    pending = world.join(version=4).join.member_id
    told = [world.join(id_, protocols=(STICKY, RANGE)) for id_ in ids]
    assert not any(item.joins for item in told)
    assert world.leave(pending) == [ErrorCode.none]
    assert all(item.join.generation_id == 2 for item in told)


@pytest.mark.parametrize(
    ("join", "error"),
    [
        ({"session_ms": 5999}, ErrorCode.invalid_session_timeout),
        ({"session_ms": 1_800_001}, ErrorCode.invalid_session_timeout),
        ({"member_id": "nobody"}, ErrorCode.unknown_member_id),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": ""}, ErrorCode.inconsistent_group_protocol),
    ],
    ids=["session too short", "session too long", "unknown", "no protocol", "no type"],
)
def test_a_first_member_that_is_refused(join: dict[str, object], error: ErrorCode) -> None:
    assert World().join(**join).join.error is error  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("join", "error"),
    [
        ({"protocols": (STICKY,)}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"member_id": "nobody"}, ErrorCode.unknown_member_id),
        ({"member_id": "nobody", "instance_id": "i"}, ErrorCode.unknown_member_id),
    ],
    ids=["nothing in common", "another type", "unknown", "unknown static"],
)
def test_a_later_member_that_is_refused(join: dict[str, object], error: ErrorCode) -> None:
    world = World()
    world.stable()
    assert world.join(**join).join.error is error  # type: ignore[arg-type]
    assert world.state is STABLE


def test_a_protocol_that_all_have_is_chosen() -> None:
    world = World()
    other = MemberProtocol("other", b"")
    told = [
        world.join(protocols=item)
        for item in [(RANGE, STICKY), (STICKY, other, RANGE), (STICKY, RANGE), (other, RANGE)]
    ]
    world.begin()
    assert {item.join.protocol_name for item in told} == {"range"}


def test_votes_count_where_several_protocols_are_common() -> None:
    world = World()
    told = [world.join(protocols=item) for item in [(RANGE, STICKY), (STICKY, RANGE)]]
    told.append(world.join(protocols=(STICKY, RANGE)))
    world.begin()
    assert {item.join.protocol_name for item in told} == {"sticky"}
    (leader,) = [item.join for item in told if item.join.members]
    assert [member.metadata for member in leader.members] == [b"s", b"s", b"s"]


# ------------------------------------------------------------ assignments


def test_all_members_are_answered_once_the_leaders_assignment_is_committed() -> None:
    world = World()
    told = [world.join(), world.join()]
    world.begin()
    leader, follower = (item.join.member_id for item in told)
    world.log.commits = False
    waiting = [world.sync(follower, 1), world.sync(leader, 1, {leader: b"L", follower: b"F"})]
    assert not any(item.syncs for item in waiting)
    assert world.state is COMPLETING
    world.log.commit()
    assert [item.sync.assignment for item in waiting] == [b"F", b"L"]
    assert world.state is STABLE
    assert world.sync(follower, 1).sync.assignment == b"F"  # its answer may have been lost
    recorded = world.log.groups[-1]
    assert recorded is not None
    assert {member.member_id: member.assignment for member in recorded.members} == {
        leader: b"L",
        follower: b"F",
    }


def test_a_member_that_the_leader_left_out_gets_an_empty_assignment() -> None:
    world = World()
    told = [world.join(), world.join()]
    world.begin()
    leader, follower = (item.join.member_id for item in told)
    waits = world.sync(follower, 1)
    world.sync(leader, 1, {"stranger": b"x"})
    assert waits.sync.assignment == b""


def test_a_member_that_joins_meanwhile_restarts_the_computation() -> None:
    world = World()
    told = [world.join(), world.join()]
    world.begin()
    leader, follower = (item.join.member_id for item in told)
    world.log.commits = False
    waiting = [world.sync(follower, 1), world.sync(leader, 1, {leader: b"L"})]
    newcomer = world.join()
    assert [item.sync.error for item in waiting] == [ErrorCode.rebalance_in_progress] * 2
    world.log.commit()  # of a generation that is over
    assert world.state is PREPARING
    again = [world.join(leader), world.join(follower)]
    assert {item.join.generation_id for item in (*again, newcomer)} == {2}


def test_an_assignment_that_cannot_be_recorded_is_everybodys_error() -> None:
    world = World()
    told = [world.join(), world.join()]
    world.begin()
    leader, follower = (item.join.member_id for item in told)
    waits = world.sync(follower, 1)
    world.log.refuses = ErrorCode.coordinator_not_available
    assert world.sync(leader, 1, {}).sync.error is ErrorCode.coordinator_not_available
    assert waits.sync.error is ErrorCode.coordinator_not_available
    assert world.state is PREPARING


@pytest.mark.parametrize(
    ("sync", "error"),
    [
        (lambda w, m: w.sync("nobody", 1), ErrorCode.unknown_member_id),
        (lambda w, m: w.sync(m, 2), ErrorCode.illegal_generation),
        (lambda w, m: w.sync(m, 1, instance_id="i"), ErrorCode.unknown_member_id),
        (lambda w, m: w.sync(m, 1, protocol_name="no"), ErrorCode.inconsistent_group_protocol),
    ],
    ids=["unknown", "generation", "instance", "protocol"],
)
def test_a_sync_that_is_refused(sync: Callable[..., object], error: ErrorCode) -> None:
    world = World()
    member, *_ = world.stable()
    told = sync(world, member)
    assert told.sync.error is error  # type: ignore[attr-defined]


def test_a_member_without_a_sync_in_time_is_removed() -> None:
    world = World()
    told = [world.join(session_ms=1_000_000, rebalance_ms=20_000) for _ in range(2)]
    world.begin()
    leader, follower = (item.join.member_id for item in told)
    world.sync(leader, 1, {leader: b"L"})
    assert world.state is STABLE
    world.after(20_000)
    assert world.state is PREPARING
    assert world.heartbeat(follower) is ErrorCode.unknown_member_id
    assert world.heartbeat(leader) is ErrorCode.rebalance_in_progress


# ------------------------------------------------------------ heartbeats and sessions


def test_a_silent_member_is_removed_after_its_session() -> None:
    world = World()
    first, second = world.stable()
    world.after(SESSION_MS - 1)
    assert world.heartbeat(first) is ErrorCode.none
    world.after(1)
    assert world.state is PREPARING
    assert world.heartbeat(second) is ErrorCode.unknown_member_id
    assert world.heartbeat(first) is ErrorCode.rebalance_in_progress
    again = world.join(first)
    assert again.join.generation_id == 2
    assert len(again.join.members) == 1


def test_a_member_that_waits_for_an_answer_is_not_silent() -> None:
    world = World()
    ids = world.stable(3)
    told = world.join(ids[0])
    for _ in range(4):
        world.after(SESSION_MS - 1000)
        assert world.heartbeat(ids[1]) is ErrorCode.rebalance_in_progress
    assert told.joins == []  # the third was removed, the second still has time to join
    assert ids[0] in world.group.members
    world.after(REBALANCE_MS)
    assert told.join.generation_id == 2
    assert [member.member_id for member in told.join.members] == [ids[0]]


def test_a_new_member_that_waits_too_long_may_rejoin() -> None:
    world = World(initial_rebalance_delay_ms=NEW_MEMBER_JOIN_TIMEOUT_MS * 2)
    told = world.join()
    world.after(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert told.join.error is ErrorCode.unknown_member_id
    assert told.join.member_id == ""
    assert world.group.members == {}


@pytest.mark.parametrize(
    ("beat", "error"),
    [
        (lambda w, m: w.heartbeat("nobody"), ErrorCode.unknown_member_id),
        (lambda w, m: w.heartbeat(m, 2), ErrorCode.illegal_generation),
        (lambda w, m: w.heartbeat(m, 1, "i"), ErrorCode.unknown_member_id),
        (lambda w, m: w.heartbeat(m), ErrorCode.none),
    ],
    ids=["unknown", "generation", "instance", "good"],
)
def test_heartbeats(beat: Callable[..., ErrorCode], error: ErrorCode) -> None:
    world = World()
    member, *_ = world.stable()
    assert beat(world, member) is error
    assert World().heartbeat("m") is ErrorCode.unknown_member_id


# ------------------------------------------------------------ joining again, leaving


def test_a_follower_without_news_wakes_no_waiter() -> None:
    world = World()
    _, follower = world.stable()
    answer = world.join(follower).join
    assert (answer.error, answer.generation_id, answer.members) == (ErrorCode.none, 1, ())
    assert world.state is STABLE


@pytest.mark.parametrize("who", [0, 1], ids=["leader", "follower with news"])
def test_a_member_with_new_metadata_starts_a_rebalance(who: int) -> None:
    world = World()
    ids = world.stable()
    protocols = (RANGE,) if who == 0 else (MemberProtocol("range", b"other"),)
    told = world.join(ids[who], protocols=protocols)
    assert told.joins == []
    assert world.state is PREPARING
    other = world.join(ids[1 - who])
    assert told.join.generation_id == other.join.generation_id == 2


def test_a_lost_answer_to_a_join_is_given_again() -> None:
    world = World()
    told = [world.join(), world.join()]
    world.begin()
    for item in told:
        again = world.join(item.join.member_id).join
        assert (again.generation_id, again.members) == (1, item.join.members)
    assert world.state is COMPLETING


def test_a_repeated_join_is_answered_at_the_last_request() -> None:
    world = World()
    first, second = world.stable()
    lost = world.join(first)
    kept = world.join(first)
    assert lost.join.error is ErrorCode.rebalance_in_progress
    world.join(second)
    assert kept.join.generation_id == 2


def test_a_member_that_does_not_join_in_time_is_left_out() -> None:
    world = World()
    first, second = world.stable(session_ms=1_000_000)
    told = world.join(first)
    world.after(REBALANCE_MS - 1)
    assert told.joins == []
    world.after(1)
    assert [member.member_id for member in told.join.members] == [first]
    assert world.heartbeat(second, 2) is ErrorCode.unknown_member_id


def test_another_member_leads_where_the_leader_does_not_join() -> None:
    world = World()
    first, second = world.stable(session_ms=1_000_000)
    told = world.join(second, protocols=(STICKY, RANGE))
    world.after(REBALANCE_MS)
    assert told.join.leader == second
    assert first not in world.group.members


def test_members_that_leave() -> None:
    world = World()
    first, second = world.stable()
    assert world.leave(second, "nobody", MemberIdentity(first, "i")) == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    assert world.state is PREPARING
    assert world.leave(first) == [ErrorCode.none]
    assert (world.state, world.group.generation_id) == (EMPTY, 2)
    recorded = world.log.groups[-1]
    assert recorded is not None
    assert (recorded.members, recorded.generation, recorded.protocol) == ((), 2, None)
    assert world.leave(first) == [ErrorCode.unknown_member_id]
    assert World().leave("m") == [ErrorCode.unknown_member_id]
    assert world.room.used_bytes == world.group.weight_bytes


# ------------------------------------------------------------ static members


def test_a_static_member_takes_its_place_again_without_a_rebalance() -> None:
    world = World()
    told = [world.join(instance_id=item) for item in "ab"]
    world.begin()
    first, second = (item.join.member_id for item in told)
    world.sync(second, 1, instance_id="b")
    world.sync(first, 1, {first: b"1", second: b"2"}, instance_id="a")
    again = world.join(instance_id="b", version=5).join
    assert (again.error, again.generation_id, again.members) == (ErrorCode.none, 1, ())
    assert again.member_id != second
    assert world.state is STABLE
    assert world.sync(again.member_id, 1, instance_id="b").sync.assignment == b"2"
    assert world.heartbeat(second, 1, "b") is ErrorCode.fenced_instance_id
    assert world.heartbeat(second) is ErrorCode.unknown_member_id
    assert world.failover().heartbeat(again.member_id, 1, "b") is ErrorCode.none


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_leader_does_not_assign_in_the_middle_of_a_generation(version: int) -> None:
    world = World()
    told = world.join(instance_id="a")
    world.begin()
    old = told.join.member_id
    world.sync(old, 1, {old: b"1"}, instance_id="a")
    again = world.join(instance_id="a", version=version).join
    if version < 9:
        assert (again.leader, again.members, again.skip_assignment) == (old, (), False)
    else:
        assert (again.leader, again.skip_assignment) == (again.member_id, True)
        assert [member.instance_id for member in again.members] == ["a"]


def test_the_former_process_of_a_static_member_is_fenced_where_it_waits() -> None:
    world = World()
    former = world.join(instance_id="a")
    other = world.join(instance_id="a")
    assert former.join.error is ErrorCode.fenced_instance_id
    world.begin()
    assert other.join.error is ErrorCode.none
    assert world.group.awaiting_join == 0
    assert len(world.group.members) == 1


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_is_over() -> None:
    world = World()
    told = [world.join(instance_id="a"), world.join()]
    world.begin()
    first, second = (item.join.member_id for item in told)
    world.sync(second, 1)
    world.sync(first, 1, {}, instance_id="a")
    waits = world.join(second, protocols=(STICKY, RANGE))
    world.after(SESSION_MS - 1)
    assert waits.joins == []
    world.after(1)
    assert waits.join.generation_id == 2
    assert world.group.static_members == {}


def test_a_static_member_is_sent_away_by_its_name() -> None:
    world = World()
    world.join(instance_id="a")
    world.begin()
    assert world.leave(MemberIdentity("", "b"), MemberIdentity("", "a")) == [
        ErrorCode.unknown_member_id,
        ErrorCode.none,
    ]
    assert world.state is EMPTY


# ------------------------------------------------------------ limits


def test_a_full_group_takes_no_more() -> None:
    world = World(size_max=2)
    ids = world.stable()
    assert world.join().join.error is ErrorCode.group_max_size_reached
    assert world.state is STABLE
    told = [world.join(id_) for id_ in ids]  # existing members may continue
    assert [item.join.generation_id for item in told] == [2, 2]


def test_a_rebalance_takes_the_first_members() -> None:
    world = World(size_max=2)
    first, _ = world.stable()
    world.leave(first)
    newcomers = [world.join(), world.join()]
    assert world.state is PREPARING
    late = next(iter(world.group.members))
    assert world.join(late).join.error is ErrorCode.group_max_size_reached
    world.after(REBALANCE_MS)
    assert all(newcomer.join.error is ErrorCode.none for newcomer in newcomers)


def test_a_full_broker_takes_no_more() -> None:
    world = World()
    ids = world.stable()
    world.room.limit_bytes = world.room.used_bytes
    assert world.join().join.error is ErrorCode.group_max_size_reached
    assert world.join(group_id="other").join.error is ErrorCode.group_max_size_reached
    assert world.heartbeat(ids[0]) is ErrorCode.none
    assert world.commit(ids[0], 1) == [ErrorCode.invalid_commit_offset_size]


def test_what_a_member_says_must_have_room() -> None:
    world = World()
    ids = world.stable()
    world.room.limit_bytes = world.room.used_bytes + 50_000
    much, more = (MemberProtocol("range", bytes(n)) for n in (40_000, 60_000))
    assert world.join(protocols=(more,)).join.error is ErrorCode.group_max_size_reached
    assert world.join(ids[1], protocols=(more,)).join.error is ErrorCode.group_max_size_reached
    assert world.state is STABLE
    assert world.join(ids[1], protocols=(much,)).joins == []
    assert world.state is PREPARING


def test_five_thousand_members_rebalance_in_no_time() -> None:
    world = World()
    began_s = time.process_time()
    ids = world.stable(5000)
    told = [world.join(id_, protocols=(STICKY, RANGE)) for id_ in ids]
    assert all(item.join.generation_id == 2 for item in told)
    assert world.leave(*ids[:2500]) == [ErrorCode.none] * 2500
    assert time.process_time() - began_s < 5  # it takes 0.2 s; through all members for each: 100 s


# ------------------------------------------------------------ another coordinator


def test_another_coordinator_continues_with_the_generation() -> None:
    world = World()
    first, second = world.stable()
    other = world.failover()
    assert other.state is STABLE
    assert other.heartbeat(first) is ErrorCode.none
    assert other.sync(second, 1).sync.assignment == second.encode()
    other.after(SESSION_MS)
    assert other.group.members == {}


def test_waiting_members_are_answered_with_not_coordinator() -> None:
    world = World()
    first, second = world.stable()
    waits = world.join(first)
    other = world.failover()
    assert waits.join.error is ErrorCode.not_coordinator
    again = [other.join(first), other.join(second, protocols=(STICKY, RANGE))]
    assert [item.join.generation_id for item in again] == [2, 2]
