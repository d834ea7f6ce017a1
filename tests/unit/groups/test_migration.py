"""Groups with members of both protocols (group.consumer.migration.policy).

A group is upgraded when its first KIP-848 member joins, and downgraded when the last one leaves.
"""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.groups.consumers import (
    GROUP,
    ConsumerClient,
    ConsumerWorld,
    owned_partitions,
    run_steps,
    topics,
)
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core import consumer_records as records
from tidemark_broker.groups.core.records import read_record, record_of
from tidemark_broker.groups.core.settings import Migration
from tidemark_broker.groups.core.subscriptions import assigned, subscribed
from tidemark_broker.groups.core.values import (
    LEAVE,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    MemberProtocol,
    SyncAnswer,
    SyncRequest,
)

NONE, REBALANCING = ErrorCode.none, ErrorCode.rebalance_in_progress
#: Version 1 of ConsumerProtocol, in front of a subscription or an assignment.
_HEAD = b"\x00\x01"


def text(value: str) -> bytes:
    return len(value).to_bytes(2) + value.encode()


def subscription(names: tuple[str, ...], owned: dict[str, set[int]]) -> bytes:
    written = _HEAD + len(names).to_bytes(4) + b"".join(map(text, names)) + b"\xff" * 4
    return written + partitions(owned)


def partitions(of: dict[str, set[int]]) -> bytes:
    return len(of).to_bytes(4) + b"".join(
        text(name) + len(numbers).to_bytes(4) + b"".join(n.to_bytes(4) for n in sorted(numbers))
        for name, numbers in of.items()
    )


class Classic:
    """Consumer of the classic protocol with the cooperative assignor.

    It revokes partitions as assigned and rejoins. As leader of a generation it assigns everything
    to itself.
    """

    def __init__(self, world: ConsumerWorld, *names: str, instance_id: str | None = None) -> None:
        self.world, self.names, self.instance_id = world, names or ("t",), instance_id
        self.member_id, self.generation = "", -1
        self.owned: dict[str, set[int]] = {}
        self.joined: list[JoinAnswer] = []
        self.synced: list[SyncAnswer] = []

    @property
    def who(self) -> MemberIdentity:
        return MemberIdentity(self.member_id, self.instance_id)

    def join(self, **more: Any) -> JoinAnswer | None:
        """Return the answer, or None while the coordinator waits for other members."""
        fields: dict[str, Any] = {
            "group_id": GROUP,
            "who": self.who,
            "client_id": "old",
            "client_host": "/h",
            "rebalance_timeout_ms": 60_000,
            "session_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": (MemberProtocol("cooperative", subscription(self.names, self.owned)),),
            "needs_member_id": True,
            "may_skip_assignment": True,
            "new_id": f"classic-{len(self.world.log.records)}",
            "answer": self.joined.append,
        }
        request = JoinRequest(**(fields | more))
        answer = run_steps(self.world.shard.join(request, self.world.version, self.world.now))
        if answer is None and self.joined:
            answer = self.joined.pop()
        # The first answer only contains the member id (KIP-394).
        if answer is not None and answer.error is ErrorCode.member_id_required:
            self.member_id = answer.member_id
            return self.join(**more)
        if answer is not None:
            self.receive(answer)
        return answer

    def receive(self, answer: JoinAnswer) -> None:
        assert answer.error is NONE
        self.member_id, self.generation = answer.member_id, answer.generation_id

    def sync(self, **assignments: bytes) -> SyncAnswer:
        request = SyncRequest(
            group_id=GROUP,
            who=self.who,
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name="cooperative",
            assignments=tuple(assignments.items()),
            answer=self.synced.append,
        )
        return run_steps(self.world.shard.sync(request, self.world.now)) or self.synced.pop()

    def beat(self) -> ErrorCode:
        beat = self.world.shard.classic_heartbeat(GROUP, self.who, self.generation, self.world.now)
        return run_steps(beat)

    def lead(self) -> None:
        """Join as the only member of a classic group, and own all partitions."""
        if not self.member_id:
            self.join()
        # The initial rebalance delay of 3,000 ms passes.
        self.world.after(3100)
        self.receive(self.joined.pop())
        owned = {name: set(range(self.world.topics[name].partitions)) for name in self.names}
        self.owned = owned
        assignment = _HEAD + partitions(owned) + b"\xff" * 4
        request = SyncRequest(
            group_id=GROUP,
            who=self.who,
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name="cooperative",
            assignments=((self.member_id, assignment),),
            answer=self.synced.append,
        )
        # The leader's sync is answered once the generation is committed.
        assert run_steps(self.world.shard.sync(request, self.world.now)) is None
        self.world.commit_all()
        assert self.synced.pop().error is NONE

    def live(self) -> None:
        """Send a heartbeat and act on its answer."""
        if self.beat() is NONE:
            return
        if self.join() is None:
            return
        remaining = {
            name: set(numbers) for name, numbers in assigned(self.sync().assignment).items()
        }
        has_revoked = any(
            numbers - remaining.get(name, set()) for name, numbers in self.owned.items()
        )
        self.owned = remaining
        # A cooperative member that has revoked partitions joins again, to release them.
        if has_revoked:
            self.join()
            self.sync()

    @property
    def owned_partitions(self) -> list[tuple[Any, int]]:
        return [
            (self.world.topics[name].topic_id, number)
            for name, numbers in self.owned.items()
            for number in numbers
        ]


def settle(world: ConsumerWorld, classics: list[Classic], clients: list[ConsumerClient]) -> None:
    before = None
    for _ in range(30):
        for client in clients:
            client.beat()
        for classic in classics:
            classic.live()
        together = sorted(
            [*owned_partitions(*clients), *(item for c in classics for item in c.owned_partitions)]
        )
        assert len(together) == len(set(together)), "a partition has two owners"
        world.after(100)
        picture = together, world.group.state, [c.generation for c in classics]
        if picture == before and world.group.state == "Stable":
            return
        before = picture
    raise AssertionError(f"they do not settle: {before}")


def all_partitions(world: ConsumerWorld) -> list[Any]:
    return sorted((t.topic_id, n) for t in world.topics.values() for n in range(t.partitions))


def mixed(world: ConsumerWorld) -> tuple[Classic, ConsumerClient]:
    """Return a classic and a KIP-848 member of one stable group."""
    old, new = Classic(world), ConsumerClient(world, "new")
    old.lead()
    new.beat()
    settle(world, [old], [new])
    return old, new


def test_members_move_one_by_one() -> None:
    world = ConsumerWorld()
    world.topics = topics(t=4)
    old, new = Classic(world), ConsumerClient(world, "new")
    old.lead()
    generation = old.generation
    assert new.beat().assignment == {}  # The classic member has to revoke first.
    assert GROUP not in world.shard.groups
    assert world.group.epoch == generation + 1
    # The classic member notices the upgrade as a rebalance.
    assert old.beat() is REBALANCING
    settle(world, [old], [new])
    assert (len(old.owned_partitions), new.count) == (2, 2)
    assert old.beat() is NONE
    assert world.replayed().picture() == world.picture()
    errors = world.shard.leave(GROUP, [old.who], world.now)
    assert errors == [NONE]
    settle(world, [], [new])
    assert owned_partitions(new) == all_partitions(world)
    assert world.group.classic_count == 0


def test_group_is_downgraded_when_its_last_consumer_member_leaves() -> None:
    world = ConsumerWorld()
    old, _ = mixed(world)
    world.beat("new", LEAVE)
    world.after(100)
    assert GROUP not in world.shard.consumer_groups
    group = world.shard.groups[GROUP]
    # The members have to join under the classic protocol, which is a rebalance.
    assert group.state == "PreparingRebalance"
    assert set(group.members) == {old.member_id}
    replayed = world.replayed().shard
    assert list(replayed.groups[GROUP].members) == [old.member_id]
    assert GROUP not in replayed.consumer_groups
    assert old.beat() is not NONE
    old.owned = {}
    old.join()
    # The only member may already have completed the rebalance.
    old.receive(old.joined.pop() if old.joined else JoinAnswer(
        member_id=old.member_id, generation_id=group.generation_id))  # fmt: skip
    assert group.state == "CompletingRebalance"
    weighed = group.weighed_bytes + world.shard.offsets.weight_bytes
    assert world.room.used_bytes == weighed


def test_a_group_is_downgraded_when_a_members_session_expires() -> None:
    world = ConsumerWorld()
    old, _ = mixed(world)
    # 60 s at most: the client is silent, and its session of 45 s expires.
    for _ in range(20):
        world.after(3000)
        if GROUP in world.shard.groups:
            break
        old.live()
    assert GROUP in world.shard.groups


@pytest.mark.parametrize("policy", list(Migration), ids=lambda item: item.value)
def test_migration_policy(policy: Migration) -> None:
    world = ConsumerWorld(migration=policy)
    old, new = Classic(world), ConsumerClient(world, "new")
    old.lead()
    error = world.error(new.beat)
    assert error is (NONE if policy.may_upgrade else ErrorCode.group_id_not_found)
    if not policy.may_upgrade:
        assert GROUP in world.shard.groups
        return
    settle(world, [old], [new])
    world.beat("new", LEAVE)
    world.after(100)
    assert (GROUP in world.shard.groups) is policy.may_downgrade


def test_classic_members_join_a_consumer_group_unless_that_is_disabled() -> None:
    world = ConsumerWorld()
    new, old = ConsumerClient(world, "new"), Classic(world)
    new.beat()
    assert old.join() is not None
    settle(world, [old], [new])
    assert sorted([*old.owned_partitions, *owned_partitions(new)]) == all_partitions(world)
    world = ConsumerWorld(migration=Migration.DISABLED)
    ConsumerClient(world, "new").beat()
    assert world.error(Classic(world).join) is ErrorCode.inconsistent_group_protocol


def test_a_group_whose_change_is_not_recorded_keeps_its_protocol() -> None:
    world = ConsumerWorld()
    old, new = Classic(world), ConsumerClient(world, "new")
    old.lead()
    world.log.refuses = ErrorCode.coordinator_not_available
    assert world.error(new.beat) is ErrorCode.coordinator_not_available
    assert list(world.shard.groups[GROUP].members) == [old.member_id]
    assert old.beat() is NONE
    # The refused upgrade is repeated with the next heartbeat.
    world.log.refuses = None
    new.beat()
    settle(world, [old], [new])
    world.beat("new", LEAVE)
    # The downgrade is not recorded either, and is repeated later.
    world.log.refuses = ErrorCode.coordinator_not_available
    world.after(100)
    assert list(world.group.members) == [old.member_id]
    world.log.refuses = None
    world.after(1100)
    assert list(world.shard.groups[GROUP].members) == [old.member_id]


def test_classic_requests_to_a_consumer_group_are_validated() -> None:
    world = ConsumerWorld()
    old, _ = mixed(world)
    other = Classic(world)
    # The group accepts only consumers, with a common assignor and a readable subscription.
    assert world.error(other.join, protocol_type="connect") is (
        ErrorCode.inconsistent_group_protocol
    )
    assert world.error(other.join, protocols=(MemberProtocol("range", b"x"),)) is (
        ErrorCode.inconsistent_group_protocol
    )
    bad = (MemberProtocol("cooperative", b"\x00"),)
    assert world.error(other.join, protocols=bad) is ErrorCode.inconsistent_group_protocol
    assert world.error(other.join, session_timeout_ms=1) is ErrorCode.invalid_session_timeout
    assert world.error(other.beat) is ErrorCode.unknown_member_id
    # The generation of a classic member is its member epoch.
    old.generation += 1
    assert world.error(old.beat) is ErrorCode.illegal_generation
    assert world.error(old.sync) is ErrorCode.illegal_generation
    assert world.commit(old.member_id, old.generation, version=8) is ErrorCode.illegal_generation
    old.generation -= 1
    # Before the member's generation existed in a subscription, any version may commit.
    assert world.commit(old.member_id, old.generation, version=2) is NONE
    old.member_id = "new"
    assert world.error(old.beat) is ErrorCode.unknown_member_id  # a KIP-848 member's id
    assert world.shard.leave(GROUP, [MemberIdentity("nobody")], world.now) == [
        ErrorCode.unknown_member_id
    ]


def test_a_member_that_does_not_rejoin_is_removed() -> None:
    world = ConsumerWorld()
    world.topics = topics(t=4)
    old, new = Classic(world), ConsumerClient(world, "new")
    old.lead()
    new.beat()
    # 75 s exceed the rebalance timeout of 60 s, and heartbeats renew the session.
    for _ in range(25):
        world.after(3000)
        if old.member_id in world.group.members:
            assert old.beat() is REBALANCING  # It is alive and does not join again.
        new.beat()
    assert list(world.group.members) == ["new"]
    settle(world, [], [new])
    assert owned_partitions(new) == all_partitions(world)


def test_static_member_returns_with_the_other_protocol() -> None:
    """A rolling restart of static members does not wait until former sessions expire."""
    world = ConsumerWorld()
    world.topics = topics(t=4)
    old = Classic(world, instance_id="i")
    old.lead()
    new = ConsumerClient(world, "new", instance_id="i")
    assert new.beat().assignment is not None
    assert list(world.group.members) == ["new"]
    assert new.count == 4
    assert world.error(old.beat) is ErrorCode.fenced_instance_id
    back = Classic(world, instance_id="i")
    assert back.join() is not None
    world.after(100)
    assert list(world.shard.groups[GROUP].members) == [back.member_id]


def test_group_of_another_protocol_type_is_not_upgraded() -> None:
    world = ConsumerWorld()
    connect = Classic(world)
    connect.join(protocol_type="connect")
    world.after(3100)
    with pytest.raises(CoordinatorError, match="embedded protocol"):
        world.join("a")


def test_group_with_unreadable_subscriptions_is_not_upgraded() -> None:
    world = ConsumerWorld()
    odd = Classic(world)
    odd.join(protocols=(MemberProtocol("mine", b"\x00"),))
    world.after(3100)
    with pytest.raises(CoordinatorError, match="Cannot upgrade"):
        world.join("a")
    assert GROUP in world.shard.groups


def test_record_of_a_classic_member_matches_kafka() -> None:
    """Compare with the bytes that ConsumerGroupMemberMetadataValue of Kafka 4.3.1 writes."""
    written = bytes.fromhex(
        "00000269000263032f68020274010000ea6000010012010000afc8020672616e6765040102030000"
    )
    classic = records.ClassicMemberMetadata(
        is_there=1,
        session_timeout_ms=45_000,
        supported_protocols=(records.ClassicProtocol(name="range", metadata=b"\1\2\3"),),
    )
    value = records.ConsumerGroupMemberMetadataValue(
        instance_id="i",
        rack_id=None,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=("t",),
        subscribed_topic_regex="",
        rebalance_timeout_ms=60_000,
        server_assignor=None,
        classic_member_metadata=classic,
    )
    key = records.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")
    record = record_of(key, value)
    assert record.value == written
    assert read_record(record) == (key, value)


def test_subscriptions_are_read_in_their_versions() -> None:
    second = subscribed(subscription(("t", "u"), {"t": {1, 2}}))
    assert (second.topics, second.owned, second.rack_id) == (("t", "u"), {"t": {1, 2}}, None)
    # Versions 2 and 3 appended the generation and the rack.
    third = b"\x00\x03" + subscription(("t",), {})[2:] + (7).to_bytes(4) + text("rack")
    assert subscribed(third).rack_id == "rack"
    # Version 0 ends before the owned partitions.
    first = b"\x00\x00" + subscription(("t",), {})[2:-4]
    assert subscribed(first) == (("t",), {}, None)
