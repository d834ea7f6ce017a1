"""KIP-848: answers to each member by epoch, and continuation by another coordinator."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.groups.consumers import (
    ConsumerClient,
    ConsumerWorld,
    owned_partitions,
    settle,
    topics,
)
from tests.unit.groups.members import T0_MS
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.values import (
    LEAVE,
    LEAVE_FOR_NOW,
    HeartbeatRequest,
)

NONE = ErrorCode.none


def all_partitions(world: ConsumerWorld) -> list[Any]:
    return sorted((t.topic_id, n) for t in world.topics.values() for n in range(t.partitions))


def test_first_member_is_assigned_all_partitions_at_once() -> None:
    world = ConsumerWorld()
    answer = world.join("a")
    topic = world.topics["t"].topic_id
    assert (answer.member_id, answer.member_epoch) == ("a", 1)
    assert answer.assignment == {topic: {0, 1, 2}}
    assert answer.heartbeat_interval_ms == 5000
    assert world.group.state == "Stable"
    assert world.beat("a", 1).assignment is None  # as before


def test_partition_is_revoked_before_it_is_assigned() -> None:
    world = ConsumerWorld()
    a, b = ConsumerClient(world, "a"), ConsumerClient(world, "b")
    a.beat()
    assert b.beat().assignment == {}
    assert (b.epoch, world.group.state) == (2, "Reconciling")
    revoked = a.beat()  # The answer revokes one of three partitions.
    assert (a.epoch, a.count) == (1, 2)
    assert revoked.member_epoch == 1
    b.beat()
    assert b.count == 0  # The revocation is not acknowledged yet.
    a.beat()
    assert a.epoch == 2
    b.beat()
    assert (a.count, b.count, world.group.state) == (2, 1, "Stable")
    assert owned_partitions(a, b) == all_partitions(world)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_join_and_leave(assignor: str) -> None:
    world = ConsumerWorld()
    world.topics = topics(t=10, u=7)
    clients = [ConsumerClient(world, f"m{n}", "t", "u", server_assignor=assignor) for n in range(4)]
    for count in (1, 2, 4):
        settle(*clients[:count])
        assert owned_partitions(*clients[:count]) == all_partitions(world)
        counts = [client.count for client in clients[:count]]
        # Range assigns each topic for itself, so that each of the two may differ by one.
        assert max(counts) - min(counts) <= (1 if assignor == "uniform" else 2)
    world.beat("m3", LEAVE)
    settle(*clients[:3])
    assert owned_partitions(*clients[:3]) == all_partitions(world)
    assert "m3" not in world.group.members


def test_uniform_moves_only_the_newcomers_share() -> None:
    world = ConsumerWorld()
    world.topics = topics(t=12)
    clients = [ConsumerClient(world, f"m{n}") for n in range(4)]
    settle(*clients[:3])
    before = {client.name: set(owned_partitions(client)) for client in clients[:3]}
    settle(*clients)
    # A strict subset: each of the three gives up one of four partitions and receives none.
    for client in clients[:3]:
        assert set(owned_partitions(client)) < before[client.name]


def test_another_coordinator_takes_over_the_members() -> None:
    world = ConsumerWorld()
    clients = [ConsumerClient(world, "a"), ConsumerClient(world, "b", instance_id="static")]
    settle(*clients)
    other = world.failover()
    assert other.picture() == world.picture()
    for client in clients:
        client.world = other
        assert client.beat().assignment is None
    other.after(45_001)
    assert other.group.is_empty  # sessions count from when it loaded


def test_a_silent_member_is_removed() -> None:
    world = ConsumerWorld()
    a, b = ConsumerClient(world, "a"), ConsumerClient(world, "b")
    settle(a, b)
    world.after(30_000)
    a.beat()
    # After 50 s in all, b exceeds the session of 45 s. The heartbeat of a has renewed its own.
    world.after(20_000)
    assert list(world.group.members) == ["a"]
    settle(a)
    assert owned_partitions(a) == all_partitions(world)


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    world = ConsumerWorld()
    a, b = ConsumerClient(world, "a", rebalance_timeout_ms=10_000), ConsumerClient(world, "b")
    a.beat()
    b.beat()
    # This heartbeat receives the revocation, and starts the rebalance timeout of 10 s.
    a.beat()
    for _ in range(3):
        world.after(4000)
        if "a" in world.group.members:
            world.beat("a", a.epoch)  # alive, but it acknowledges nothing
        b.beat()
    assert list(world.group.members) == ["b"]
    settle(b)
    assert owned_partitions(b) == all_partitions(world)
    assert world.error(a.beat) is ErrorCode.unknown_member_id


@pytest.mark.parametrize(
    ("epoch", "owned", "error"),
    [
        pytest.param(2, None, NONE, id="its own"),
        pytest.param(3, None, ErrorCode.fenced_member_epoch, id="ahead"),
        pytest.param(1, {0}, NONE, id="the answer was lost"),
        pytest.param(1, None, ErrorCode.fenced_member_epoch, id="does not say what it owns"),
        pytest.param(1, {0, 1, 2}, ErrorCode.fenced_member_epoch, id="owns too much"),
    ],
)
def test_epochs_are_fenced(epoch: int, owned: "set[int] | None", error: ErrorCode) -> None:
    world = ConsumerWorld()
    a, b = ConsumerClient(world, "a"), ConsumerClient(world, "b")
    settle(a, b)
    assert a.epoch == 2
    topic = world.topics["t"].topic_id
    fields = None if owned is None else {topic: frozenset(owned)}
    assert world.error(world.beat, "a", epoch, owned=fields) is error


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.invalid_request),
        ({"member_id": ""}, ErrorCode.invalid_request),
        ({"instance_id": ""}, ErrorCode.invalid_request),
        ({"rack_id": " "}, ErrorCode.invalid_request),
        ({"rebalance_timeout_ms": -1}, ErrorCode.invalid_request),
        ({"owned": None}, ErrorCode.invalid_request),
        ({"topic_names": None}, ErrorCode.invalid_request),
        ({"member_epoch": -3}, ErrorCode.invalid_request),
        ({"member_epoch": LEAVE_FOR_NOW}, ErrorCode.invalid_request),
        ({"server_assignor": "mine"}, ErrorCode.unsupported_assignor),
        ({"member_epoch": 1}, ErrorCode.group_id_not_found),
        ({"member_epoch": LEAVE}, ErrorCode.group_id_not_found),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value.name,
)
def test_invalid_heartbeat_is_rejected(fields: dict[str, Any], error: ErrorCode) -> None:
    world = ConsumerWorld()
    assert world.error(world.join, "a", **fields) is error


def test_group_size_and_memory_are_limited() -> None:
    world = ConsumerWorld(consumer_size_max=1)
    world.join("a")
    assert world.error(world.join, "b") is ErrorCode.group_max_size_reached
    assert world.error(world.join, "a") is NONE
    # The name of 200 characters, its member and the group need more than 1,000 bytes.
    world = ConsumerWorld(bytes_max=1000)
    assert world.error(world.join, "a", "x" * 200) is ErrorCode.group_max_size_reached
    world = ConsumerWorld()
    world.join("a")
    # The first member fits. From here on there is no memory for a second one.
    world.room.limit_bytes = 0
    assert world.error(world.join, "a") is NONE  # existing members continue
    assert world.error(world.join, "b") is ErrorCode.group_max_size_reached
    assert world.error(world.join, "a", "u") is ErrorCode.group_max_size_reached


def test_refused_append_changes_nothing() -> None:
    world = ConsumerWorld()
    world.log.refuses = ErrorCode.not_coordinator
    assert world.error(world.join, "a") is ErrorCode.not_coordinator
    world.log.refuses = None
    world.join("a")
    before = world.picture()
    world.log.refuses = ErrorCode.coordinator_not_available
    assert world.error(world.beat, "a", LEAVE) is ErrorCode.coordinator_not_available
    assert world.picture() == before


def test_created_and_grown_topics_are_assigned() -> None:
    world = ConsumerWorld()
    a, b = ConsumerClient(world, "a", "t", "u"), ConsumerClient(world, "b", "t", "u")
    settle(a, b)
    world.change_topics(t=5, u=2)
    settle(a, b)
    assert owned_partitions(a, b) == all_partitions(world)
    # Topic t is deleted, and leaves every assignment.
    world.change_topics(u=2)
    settle(a, b)
    assert owned_partitions(a, b) == all_partitions(world)
    records = len(world.log.records)
    world.version += 1  # Metadata of topics without subscribers have changed.
    settle(a, b)
    assert len(world.log.records) == records


def test_changed_subscription_revokes_other_topics() -> None:
    world = ConsumerWorld()
    world.topics = topics(t=4, u=4)
    a, b = ConsumerClient(world, "a", "t", "u"), ConsumerClient(world, "b", "t", "u")
    settle(a, b)
    answer = world.beat("a", a.epoch, topic_names=("u",))
    a.receive(answer)
    # The answer to the change already revokes the partitions of t.
    assert set(a.owned) <= {world.topics["u"].topic_id}
    settle(a, b)
    assert owned_partitions(a, b) == all_partitions(world)
    # b owns all of t, so that the balance gives a all of u.
    assert a.count == 4


def test_different_subscriptions_are_balanced() -> None:
    world = ConsumerWorld()
    world.topics = topics(t=6, u=6, v=6)
    subscriptions = {"a": ("t",), "b": ("t", "u"), "c": ("t", "u", "v"), "d": ("v",)}
    clients = [ConsumerClient(world, name, *names) for name, names in subscriptions.items()]
    settle(*clients)
    assert owned_partitions(*clients) == all_partitions(world)
    # 18 partitions for four members, whose subscriptions allow an even share.
    assert sorted(client.count for client in clients) == [4, 4, 5, 5]


def test_static_member_reclaims_its_assignment() -> None:
    world = ConsumerWorld()
    a, b = ConsumerClient(world, "a"), ConsumerClient(world, "b", instance_id="i")
    settle(a, b)
    epoch, owned_before = world.group.epoch, dict(b.owned)
    # The instance id is in use until its process leaves, so that a second one has to wait.
    fenced = ConsumerClient(world, "c", instance_id="i")
    assert world.error(fenced.beat) is ErrorCode.unreleased_instance_id
    # Epoch -2 leaves for a while (KIP-848): the partitions stay reserved for the instance.
    left = world.beat("b", LEAVE_FOR_NOW, instance_id="i")
    assert left.member_epoch == LEAVE_FOR_NOW
    a.beat()
    assert a.count == 3 - b.count
    back = ConsumerClient(world, "c", instance_id="i")
    answer = back.beat()
    assert (back.owned, answer.member_epoch, world.group.epoch) == (owned_before, epoch, epoch)
    # The former process is fenced with its instance id, and unknown without it.
    assert world.error(world.beat, "b", epoch, instance_id="i") is ErrorCode.fenced_instance_id
    assert world.error(world.beat, "b", epoch) is ErrorCode.unknown_member_id
    assert world.replayed().picture() == world.picture()
    assert world.error(world.beat, "c", LEAVE, instance_id="x") is ErrorCode.unknown_member_id


def test_absent_static_member_is_removed_after_its_session() -> None:
    world = ConsumerWorld()
    a, b = ConsumerClient(world, "a"), ConsumerClient(world, "b", instance_id="i")
    settle(a, b)
    world.beat("b", LEAVE_FOR_NOW, instance_id="i")
    world.after(30_000)
    a.beat()
    # 50 s without b exceed its session of 45 s.
    world.after(20_000)
    settle(a)
    assert owned_partitions(a) == all_partitions(world)


def test_commits_are_checked_against_member_epochs() -> None:
    world = ConsumerWorld()
    a, b = ConsumerClient(world, "a"), ConsumerClient(world, "b")
    settle(a)
    assert world.commit("a", 1) is NONE
    settle(a, b)
    topic = world.topics["t"].topic_id
    (kept, *_), (moved,) = sorted(a.owned[topic]), sorted(b.owned[topic])
    assert world.commit("a", 1, kept) is NONE  # Sent in epoch 1, for a partition that stays.
    assert world.commit("a", 1, moved) is ErrorCode.stale_member_epoch
    assert world.commit("a", 3, kept) is ErrorCode.stale_member_epoch
    assert world.commit("b", 1, moved) is ErrorCode.stale_member_epoch
    assert world.commit("nobody", 1) is ErrorCode.unknown_member_id
    assert world.commit("", -1) is ErrorCode.unknown_member_id
    # Member epochs exist in OffsetCommit from version 9 on.
    assert world.commit("a", 2, kept, version=8) is ErrorCode.unsupported_version
    assert world.group.validate("a", 1) is ErrorCode.stale_member_epoch
    assert world.group.validate("x", 1) is ErrorCode.unknown_member_id
    assert world.group.validate("a", 2) is NONE


def test_an_empty_group_keeps_its_offsets_until_they_expire() -> None:
    world = ConsumerWorld()
    world.join("a")
    assert world.commit("a", 1) is NONE
    world.beat("a", LEAVE)
    assert world.commit("", -1) is NONE
    assert world.group.state == "Empty"
    # Longer than the retention of 1,000 s and the interval of 100 s between two checks.
    world.after(1_200_000)
    assert not world.shard.consumer_groups
    assert not world.shard.offsets.of_group("g")
    assert world.room.used_bytes == 0
    assert not world.failover().shard.consumer_groups


def test_regex_subscription_follows_matching_topics() -> None:
    world = ConsumerWorld()
    world.topics = topics(t1=2, t2=2, u=2)
    # The coordinator names the expressions that the broker has to resolve.
    needed = world.shard.consumers.unresolved("g", "t.*", 1, world.now)
    assert needed == ["t.*"]
    found = {"t.*": frozenset({"t1", "t2"})}
    answer = world.join("a", topic_names=("u",), regex="t.*", resolved=found)
    assert answer.assignment is not None
    assert sum(map(len, answer.assignment.values())) == 6
    assert world.shard.consumers.unresolved("g", None, 1, world.now) == []
    world.topics = topics(t1=2, t2=2, t3=2, u=2)
    world.version = 2
    # Kafka resolves an expression again after 10 s at the earliest
    # (REGEX_BATCH_REFRESH_MIN_INTERVAL_MS).
    world.after(10_000)
    assert world.shard.consumers.unresolved("g", None, 2, world.now) == ["t.*"]
    assert world.shard.consumers.unresolved("g", None, 2, world.now) == []  # under way
    found = {"t.*": frozenset({"t1", "t2", "t3"})}
    answer = world.beat("a", answer.member_epoch, resolved=found)
    assert answer.assignment is not None
    assert sum(map(len, answer.assignment.values())) == 8
    assert world.replayed().picture() == world.picture()


def test_an_expression_is_forgotten_with_its_last_member() -> None:
    world = ConsumerWorld()
    world.topics = topics(t1=2)
    found = {"t.*": frozenset({"t1"})}
    world.join("a", topic_names=(), regex="t.*", resolved=found)
    world.join("b", topic_names=(), regex="t.*")
    world.beat("a", LEAVE)
    assert list(world.group.regexes) == ["t.*"]
    world.beat("b", 2, regex="")
    assert not world.group.regexes
    assert world.replayed().picture() == world.picture()


def test_targets_are_computed_once_per_interval() -> None:
    world = ConsumerWorld(consumer_assignment_interval_ms=1000)
    world.join("a")
    world.after(300)
    assert world.join("b").member_epoch == 1
    # b has joined within the interval of 1,000 ms: the target still belongs to epoch 1.
    assert (world.group.epoch, world.group.assignment_epoch, world.group.state) == (
        2, 1, "Assigning",
    )  # fmt: skip
    world.after(701)
    assert world.group.assignment_epoch == 2


def test_targets_of_many_partitions_are_offloaded() -> None:
    world = ConsumerWorld()
    world.topics = topics(t=5000)
    a, b = ConsumerClient(world, "a"), ConsumerClient(world, "b")
    assert (a.beat().member_epoch, a.count) == (1, 0)
    assert world.offloaded
    b.beat()
    assert len(world.offloaded) == 1  # No second computation starts before the first one ends.
    settle(a, b)
    assert (a.count, b.count) == (2500, 2500)
    assert world.replayed().picture() == world.picture()


def test_static_member_returns_while_targets_are_computed() -> None:
    """The new process takes over the former one's targets: no other step computes them."""
    world = ConsumerWorld()
    world.topics = topics(t=5000)
    a, b = ConsumerClient(world, "a"), ConsumerClient(world, "b", instance_id="i")
    settle(a, b)
    world.change_topics(t=5002)
    a.beat()
    assert world.offloaded
    # The computation under way still names the former member id.
    world.beat("b", LEAVE_FOR_NOW, instance_id="i")
    back = ConsumerClient(world, "c", instance_id="i")
    back.beat()
    world.make_offloaded()
    settle(a, back)
    assert (a.count, back.count) == (2501, 2501)
    assert world.replayed().picture() == world.picture()


def test_last_subscriber_takes_its_topic_along_in_one_epoch() -> None:
    world = ConsumerWorld()
    world.topics = topics(t=2, u=2)
    a, b = ConsumerClient(world, "a", "t"), ConsumerClient(world, "b", "t", "u")
    settle(a, b)
    epoch, metadata_hash = world.group.epoch, world.group.metadata_hash
    world.beat("b", LEAVE)
    settle(a)
    # Fewer members and fewer subscribed topics are one change of the group.
    assert world.group.epoch == epoch + 1
    assert world.group.metadata_hash != metadata_hash
    assert a.count == 2
    assert world.replayed().picture() == world.picture()


def test_heartbeat_with_thousands_of_topics_runs_in_steps() -> None:
    """Long work is offloaded, and nothing is recorded before its result returns."""
    world = ConsumerWorld()
    world.topics = topics(**{f"t{n}": 1 for n in range(2000)})
    request = HeartbeatRequest(
        group_id="g",
        member_id="a",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        topic_names=tuple(world.topics),
        owned={},
        topics_version=1,
    )
    steps = world.shard.heartbeat(request, world.now)
    work = next(steps)
    assert not world.log.records
    # The second step is prepared, and never executed.
    work = steps.send(work.do())
    steps.close()  # the client has disconnected
    assert not world.shard.consumer_groups
    settle(a := ConsumerClient(world, "a", *world.topics))
    assert a.count == 2000
    assert world.replayed().picture() == world.picture()


def test_offloaded_target_of_a_deleted_group_is_dropped() -> None:
    world = ConsumerWorld()
    world.topics = topics(t=5000)
    world.join("a")
    world.beat("a", LEAVE)
    world.after(1_200_000)
    world.make_offloaded()
    assert not world.shard.consumer_groups
    assert world.room.used_bytes == 0


@pytest.mark.parametrize("topics_each", [1, 2])
def test_five_thousand_members_join_with_linear_cost(topics_each: int) -> None:
    """Count records: they grow with the number of members, not with its square."""
    world = ConsumerWorld(consumer_assignment_interval_ms=1000)
    world.topics = topics(**{f"t{n}": 50 for n in range(100)})
    names = [f"t{n}" for n in range(100)]
    count = 5000
    for number in range(count):
        subscribed = names if topics_each == 1 else names[number % 2 :: 2]
        world.join(f"m{number}", *subscribed)
        assert world.group.moves_pending <= 1  # or each heartbeat would go through all of them
    # The first target may have been computed before the last member joined, so that there are two.
    for _ in range(2):
        world.make_offloaded()
        world.after(1100)
    world.make_offloaded()
    assert len(world.group.members) == count
    # A few records for each member, whatever the size of the group.
    assert len(world.log.records) < 6 * count
    assert world.group.assignment_epoch == world.group.epoch
    total = sum(sum(map(len, target.values())) for target in world.group.targets.values())
    assert total == 5000
    sizes = [
        sum(map(len, world.group.target_of(member).values())) for member in world.group.members
    ]
    assert max(sizes) - min(sizes) <= 1


def test_a_group_without_members_changes_its_protocol() -> None:
    world = ConsumerWorld()
    assert world.commit("", -1) is NONE  # a group that has offsets only is a classic one
    assert "g" in world.shard.groups
    world.join("a")
    assert "g" not in world.shard.groups
    assert world.replayed().picture() == world.picture()
    assert list(world.shard.offsets.of_group("g"))
    world = world.failover()
    assert world.now.ms >= T0_MS
    world.beat("a", LEAVE)
    assert world.group.is_empty


def test_a_group_keeps_its_offsets_if_no_member_could_join() -> None:
    world = ConsumerWorld(consumer_size_max=0)
    assert world.commit("", -1) is NONE
    with pytest.raises(CoordinatorError, match="maximum capacity"):
        world.join("a")
    assert not world.shard.consumer_groups
    # The refused join has not replaced the classic group.
    assert world.shard.groups["g"].recorded_below == len(world.log.records)
    assert list(world.shard.offsets.of_group("g"))
    # Its offset still expires, and the group with it.
    world.after(1_200_000)
    assert not world.shard.groups
    assert world.room.used_bytes == 0
