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
    ClassicWorld,
)
from tidemark_broker.groups.core.classic_rebalances import NEW_MEMBER_JOIN_TIMEOUT_MS
from tidemark_broker.groups.core.values import GroupState, MemberIdentity, MemberProtocol

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE


# ------------------------------------------------------------ a group begins


def test_the_first_member_waits_for_more_and_leads() -> None:
    world = ClassicWorld()
    first = world.join()
    world.after(DELAY_MS - 1)
    assert first.joins == []
    world.after(1)
    answer = first.join
    assert (answer.error, answer.generation_id) == (ErrorCode.none, 1)
    assert answer.leader == answer.member_id
    assert [member.member_id for member in answer.members] == [answer.member_id]
    assert world.state is COMPLETING


def test_newcomers_extend_the_initial_delay_up_to_the_rebalance_timeout() -> None:
    world = ClassicWorld()
    answers = [world.join(rebalance_ms=8000)]
    for _ in range(3):
        world.after(DELAY_MS - 500)
        answers.append(world.join(rebalance_ms=8000))
    assert not any(item.joins for item in answers)
    world.after(500)  # 8 s after the first join, which is its rebalance timeout: 3 + 3 + 2
    assert all(item.join.generation_id == 1 for item in answers)


def test_new_member_receives_its_id_first() -> None:
    world = ClassicWorld()
    answer = world.join(version=4).join
    assert answer.error is ErrorCode.member_id_required
    assert answer.member_id
    # The client repeats the join with the id that it received (KIP-394).
    again = world.join(answer.member_id, version=4)
    world.after(DELAY_MS)
    assert again.join.error is ErrorCode.none
    assert again.join.member_id == answer.member_id


def test_a_member_id_without_a_join_is_forgotten() -> None:
    world = ClassicWorld()
    pending = world.join(version=4).join.member_id
    world.after(SESSION_MS)
    assert world.join(pending, version=4).join.error is ErrorCode.unknown_member_id
    assert world.room.used_bytes == world.group.weight_bytes


def test_generation_waits_for_pending_member_ids() -> None:
    world = ClassicWorld()
    ids = world.stable()
    pending = world.join(version=4).join.member_id
    answers = [world.join(id_, protocols=(STICKY, RANGE)) for id_ in ids]
    # Both members have joined. Only the pending id is missing.
    assert not any(item.joins for item in answers)
    assert world.leave(pending) == [ErrorCode.none]
    assert all(item.join.generation_id == 2 for item in answers)


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
def test_invalid_first_join_is_rejected(join: dict[str, object], error: ErrorCode) -> None:
    assert ClassicWorld().join(**join).join.error is error  # type: ignore[arg-type]


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
def test_invalid_later_join_is_rejected(join: dict[str, object], error: ErrorCode) -> None:
    world = ClassicWorld()
    world.stable()
    assert world.join(**join).join.error is error  # type: ignore[arg-type]
    assert world.state is STABLE


def test_protocol_common_to_all_members_is_chosen() -> None:
    world = ClassicWorld()
    other = MemberProtocol("other", b"")
    answers = [
        world.join(protocols=item)
        for item in [(RANGE, STICKY), (STICKY, other, RANGE), (STICKY, RANGE), (other, RANGE)]
    ]
    world.begin()
    assert {item.join.protocol_name for item in answers} == {"range"}


def test_most_preferred_common_protocol_is_chosen() -> None:
    world = ClassicWorld()
    answers = [world.join(protocols=item) for item in [(RANGE, STICKY), (STICKY, RANGE)]]
    # Two of three members prefer sticky, and both protocols are common.
    answers.append(world.join(protocols=(STICKY, RANGE)))
    world.begin()
    assert {item.join.protocol_name for item in answers} == {"sticky"}
    (leader,) = [item.join for item in answers if item.join.members]
    assert [member.metadata for member in leader.members] == [b"s", b"s", b"s"]


# ------------------------------------------------------------ assignments


def test_all_members_are_answered_once_the_leaders_assignment_is_committed() -> None:
    world = ClassicWorld()
    answers = [world.join(), world.join()]
    world.begin()
    leader, follower = (item.join.member_id for item in answers)
    # The leader's assignment is appended, and not committed yet.
    world.log.commits = False
    waiting = [world.sync(follower, 1), world.sync(leader, 1, {leader: b"L", follower: b"F"})]
    assert not any(item.syncs for item in waiting)
    assert world.state is COMPLETING
    world.log.commit()
    assert [item.sync.assignment for item in waiting] == [b"F", b"L"]
    assert world.state is STABLE
    # A member that lost the answer repeats its request.
    assert world.sync(follower, 1).sync.assignment == b"F"
    recorded = world.log.groups[-1]
    assert recorded is not None
    assert {member.member_id: member.assignment for member in recorded.members} == {
        leader: b"L",
        follower: b"F",
    }


def test_a_member_that_the_leader_left_out_gets_an_empty_assignment() -> None:
    world = ClassicWorld()
    answers = [world.join(), world.join()]
    world.begin()
    leader, follower = (item.join.member_id for item in answers)
    waits = world.sync(follower, 1)
    world.sync(leader, 1, {"stranger": b"x"})
    assert waits.sync.assignment == b""


def test_join_before_the_commit_of_an_assignment_restarts_the_rebalance() -> None:
    world = ClassicWorld()
    answers = [world.join(), world.join()]
    world.begin()
    leader, follower = (item.join.member_id for item in answers)
    world.log.commits = False
    waiting = [world.sync(follower, 1), world.sync(leader, 1, {leader: b"L"})]
    newcomer = world.join()
    assert [item.sync.error for item in waiting] == [ErrorCode.rebalance_in_progress] * 2
    world.log.commit()  # This commits the assignment of a generation that is over.
    assert world.state is PREPARING
    again = [world.join(leader), world.join(follower)]
    assert {item.join.generation_id for item in (*again, newcomer)} == {2}


def test_unrecorded_assignment_fails_the_sync_of_all_members() -> None:
    world = ClassicWorld()
    answers = [world.join(), world.join()]
    world.begin()
    leader, follower = (item.join.member_id for item in answers)
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
def test_invalid_sync_is_rejected(sync: Callable[..., object], error: ErrorCode) -> None:
    world = ClassicWorld()
    member, *_ = world.stable()
    answers = sync(world, member)
    assert answers.sync.error is error  # type: ignore[attr-defined]


def test_a_member_without_a_sync_in_time_is_removed() -> None:
    world = ClassicWorld()
    answers = [world.join(session_ms=1_000_000, rebalance_ms=20_000) for _ in range(2)]
    world.begin()
    leader, follower = (item.join.member_id for item in answers)
    world.sync(leader, 1, {leader: b"L"})
    assert world.state is STABLE
    # The follower's session is much longer. Its time for a sync is the rebalance timeout.
    world.after(20_000)
    assert world.state is PREPARING
    assert world.heartbeat(follower) is ErrorCode.unknown_member_id
    assert world.heartbeat(leader) is ErrorCode.rebalance_in_progress


# ------------------------------------------------------------ heartbeats and sessions


def test_a_silent_member_is_removed_after_its_session() -> None:
    world = ClassicWorld()
    first, second = world.stable()
    world.after(SESSION_MS - 1)
    assert world.heartbeat(first) is ErrorCode.none
    world.after(1)
    assert world.state is PREPARING
    assert world.heartbeat(second) is ErrorCode.unknown_member_id
    assert world.heartbeat(first) is ErrorCode.rebalance_in_progress
    # The silent member is removed, so that the other one alone is the next generation.
    again = world.join(first)
    assert again.join.generation_id == 2
    assert len(again.join.members) == 1


def test_a_member_that_waits_for_an_answer_is_not_silent() -> None:
    world = ClassicWorld()
    ids = world.stable(3)
    answers = world.join(ids[0])
    for _ in range(4):
        world.after(SESSION_MS - 1000)
        assert world.heartbeat(ids[1]) is ErrorCode.rebalance_in_progress
    assert answers.joins == []  # The third was removed. The second still has time to join.
    assert ids[0] in world.group.members
    world.after(REBALANCE_MS)
    assert answers.join.generation_id == 2
    assert [member.member_id for member in answers.join.members] == [ids[0]]


def test_a_new_member_that_waits_too_long_may_rejoin() -> None:
    world = ClassicWorld(initial_rebalance_delay_ms=NEW_MEMBER_JOIN_TIMEOUT_MS * 2)
    answers = world.join()
    # Kafka limits the first join of a new member to five minutes.
    world.after(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert answers.join.error is ErrorCode.unknown_member_id
    assert answers.join.member_id == ""
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
    world = ClassicWorld()
    member, *_ = world.stable()
    assert beat(world, member) is error
    assert ClassicWorld().heartbeat("m") is ErrorCode.unknown_member_id


# ------------------------------------------------------------ joining again, leaving


def test_unchanged_follower_rejoins_without_a_rebalance() -> None:
    world = ClassicWorld()
    _, follower = world.stable()
    answer = world.join(follower).join
    assert (answer.error, answer.generation_id, answer.members) == (ErrorCode.none, 1, ())
    assert world.state is STABLE


@pytest.mark.parametrize("who", [0, 1], ids=["leader", "follower with news"])
def test_a_member_with_new_metadata_starts_a_rebalance(who: int) -> None:
    world = ClassicWorld()
    ids = world.stable()
    protocols = (RANGE,) if who == 0 else (MemberProtocol("range", b"other"),)
    answers = world.join(ids[who], protocols=protocols)
    assert answers.joins == []
    assert world.state is PREPARING
    other = world.join(ids[1 - who])
    assert answers.join.generation_id == other.join.generation_id == 2


def test_lost_join_answer_is_repeated() -> None:
    world = ClassicWorld()
    answers = [world.join(), world.join()]
    world.begin()
    for item in answers:
        again = world.join(item.join.member_id).join
        assert (again.generation_id, again.members) == (1, item.join.members)
    assert world.state is COMPLETING


def test_a_repeated_join_is_answered_at_the_last_request() -> None:
    world = ClassicWorld()
    first, second = world.stable()
    # The client has lost its connection, and joins again while its first request waits.
    former = world.join(first)
    latest = world.join(first)
    assert former.join.error is ErrorCode.rebalance_in_progress
    world.join(second)
    assert latest.join.generation_id == 2


def test_a_member_that_does_not_join_in_time_is_left_out() -> None:
    world = ClassicWorld()
    first, second = world.stable(session_ms=1_000_000)
    answers = world.join(first)
    world.after(REBALANCE_MS - 1)
    assert answers.joins == []
    world.after(1)
    assert [member.member_id for member in answers.join.members] == [first]
    assert world.heartbeat(second, 2) is ErrorCode.unknown_member_id


def test_another_member_leads_where_the_leader_does_not_join() -> None:
    world = ClassicWorld()
    first, second = world.stable(session_ms=1_000_000)
    # The follower has another subscription, which starts a rebalance.
    answers = world.join(second, protocols=(STICKY, RANGE))
    world.after(REBALANCE_MS)
    assert answers.join.leader == second
    assert first not in world.group.members


def test_group_is_empty_after_its_members_leave() -> None:
    world = ClassicWorld()
    first, second = world.stable()
    assert world.leave(second, "nobody", MemberIdentity(first, "i")) == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    assert world.state is PREPARING
    # A group without members has a generation of its own, in which no member is.
    assert world.leave(first) == [ErrorCode.none]
    assert (world.state, world.group.generation_id) == (EMPTY, 2)
    recorded = world.log.groups[-1]
    assert recorded is not None
    assert (recorded.members, recorded.generation, recorded.protocol) == ((), 2, None)
    assert world.leave(first) == [ErrorCode.unknown_member_id]
    assert ClassicWorld().leave("m") == [ErrorCode.unknown_member_id]
    assert world.room.used_bytes == world.group.weight_bytes


# ------------------------------------------------------------ static members


def test_a_static_member_takes_its_place_again_without_a_rebalance() -> None:
    world = ClassicWorld()
    answers = [world.join(instance_id=item) for item in "ab"]
    world.begin()
    first, second = (item.join.member_id for item in answers)
    world.sync(second, 1, instance_id="b")
    world.sync(first, 1, {first: b"1", second: b"2"}, instance_id="a")
    # KIP-345: a restarted process takes the place of its instance, under a new member id.
    again = world.join(instance_id="b", version=5).join
    assert (again.error, again.generation_id, again.members) == (ErrorCode.none, 1, ())
    assert again.member_id != second
    assert world.state is STABLE
    assert world.sync(again.member_id, 1, instance_id="b").sync.assignment == b"2"
    # The former process is fenced with its instance id, and unknown without it.
    assert world.heartbeat(second, 1, "b") is ErrorCode.fenced_instance_id
    assert world.heartbeat(second) is ErrorCode.unknown_member_id
    assert world.failover().heartbeat(again.member_id, 1, "b") is ErrorCode.none


@pytest.mark.parametrize("version", [5, 9])
def test_restarted_static_leader_does_not_assign_again(version: int) -> None:
    world = ClassicWorld()
    answers = world.join(instance_id="a")
    world.begin()
    old = answers.join.member_id
    world.sync(old, 1, {old: b"1"}, instance_id="a")
    again = world.join(instance_id="a", version=version).join
    # Before KIP-814, the restarted leader must not see itself as the leader: it would assign again.
    if version < 9:
        assert (again.leader, again.members, again.skip_assignment) == (old, (), False)
    else:
        assert (again.leader, again.skip_assignment) == (again.member_id, True)
        assert [member.instance_id for member in again.members] == ["a"]


def test_the_former_process_of_a_static_member_is_fenced_where_it_waits() -> None:
    world = ClassicWorld()
    former = world.join(instance_id="a")
    other = world.join(instance_id="a")
    assert former.join.error is ErrorCode.fenced_instance_id
    world.begin()
    assert other.join.error is ErrorCode.none
    assert world.group.awaiting_join == 0
    assert len(world.group.members) == 1


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_is_over() -> None:
    world = ClassicWorld()
    answers = [world.join(instance_id="a"), world.join()]
    world.begin()
    first, second = (item.join.member_id for item in answers)
    world.sync(second, 1)
    world.sync(first, 1, {}, instance_id="a")
    # The other member has news, and its rebalance waits for the static member.
    waits = world.join(second, protocols=(STICKY, RANGE))
    world.after(SESSION_MS - 1)
    assert waits.joins == []
    world.after(1)
    assert waits.join.generation_id == 2
    assert world.group.static_members == {}


def test_static_member_is_removed_by_its_instance_id() -> None:
    world = ClassicWorld()
    world.join(instance_id="a")
    world.begin()
    # An administrator removes members without knowing their member ids (KIP-345).
    assert world.leave(MemberIdentity("", "b"), MemberIdentity("", "a")) == [
        ErrorCode.unknown_member_id,
        ErrorCode.none,
    ]
    assert world.state is EMPTY


# ------------------------------------------------------------ limits


def test_full_group_rejects_new_members() -> None:
    world = ClassicWorld(size_max=2)
    ids = world.stable()
    assert world.join().join.error is ErrorCode.group_max_size_reached
    assert world.state is STABLE
    answers = [world.join(id_) for id_ in ids]  # Existing members may continue.
    assert [item.join.generation_id for item in answers] == [2, 2]


def test_rebalance_admits_members_in_order_of_their_joins() -> None:
    world = ClassicWorld(size_max=2)
    first, _ = world.stable()
    world.leave(first)
    newcomers = [world.join(), world.join()]
    assert world.state is PREPARING
    # Two members have joined before it, and the group has two places.
    late = next(iter(world.group.members))
    assert world.join(late).join.error is ErrorCode.group_max_size_reached
    world.after(REBALANCE_MS)
    assert all(newcomer.join.error is ErrorCode.none for newcomer in newcomers)


def test_full_broker_rejects_new_members_and_groups() -> None:
    world = ClassicWorld()
    ids = world.stable()
    world.room.limit_bytes = world.room.used_bytes
    assert world.join().join.error is ErrorCode.group_max_size_reached
    assert world.join(group_id="other").join.error is ErrorCode.group_max_size_reached
    # Existing members continue, but a first offset would need memory.
    assert world.heartbeat(ids[0]) is ErrorCode.none
    assert world.commit(ids[0], 1) == [ErrorCode.invalid_commit_offset_size]


def test_member_metadata_must_fit_into_memory() -> None:
    world = ClassicWorld()
    ids = world.stable()
    world.room.limit_bytes = world.room.used_bytes + 50_000
    much, more = (MemberProtocol("range", bytes(n)) for n in (40_000, 60_000))
    assert world.join(protocols=(more,)).join.error is ErrorCode.group_max_size_reached
    assert world.join(ids[1], protocols=(more,)).join.error is ErrorCode.group_max_size_reached
    assert world.state is STABLE
    assert world.join(ids[1], protocols=(much,)).joins == []
    assert world.state is PREPARING


def test_five_thousand_members_rebalance_with_linear_cost() -> None:
    world = ClassicWorld()
    began_s = time.process_time()
    ids = world.stable(5000)
    answers = [world.join(id_, protocols=(STICKY, RANGE)) for id_ in ids]
    assert all(item.join.generation_id == 2 for item in answers)
    assert world.leave(*ids[:2500]) == [ErrorCode.none] * 2500
    assert time.process_time() - began_s < 5  # It takes 0.2 s. With quadratic cost it takes 100 s.


# ------------------------------------------------------------ another coordinator


def test_another_coordinator_continues_with_the_generation() -> None:
    world = ClassicWorld()
    first, second = world.stable()
    other = world.failover()
    assert other.state is STABLE
    assert other.heartbeat(first) is ErrorCode.none
    assert other.sync(second, 1).sync.assignment == second.encode()
    # Sessions start again when the coordinator has loaded.
    other.after(SESSION_MS)
    assert other.group.members == {}


def test_waiting_members_are_answered_with_not_coordinator() -> None:
    world = ClassicWorld()
    first, second = world.stable()
    waits = world.join(first)
    other = world.failover()
    assert waits.join.error is ErrorCode.not_coordinator
    again = [other.join(first), other.join(second, protocols=(STICKY, RANGE))]
    assert [item.join.generation_id for item in again] == [2, 2]
