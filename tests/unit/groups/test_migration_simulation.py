"""Simulate groups whose members join and leave with both protocols, through failovers and lost
members, from a seed.

Two members of a group never own the same partition. Once membership is stable, every partition has
an owner, and the group uses the protocol that its members request.
"""

import itertools
import random
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
from tests.unit.groups.test_migration import _HEAD, partitions, subscription
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.subscriptions import assigned
from tidemark_broker.groups.core.values import (
    LEAVE,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    MemberProtocol,
    SyncAnswer,
    SyncRequest,
)

STEPS, STEP_MS = 300, 400
#: Number of steps after which the members use other protocols.
_PHASE = 30
NONE, REBALANCING = ErrorCode.none, ErrorCode.rebalance_in_progress
REJOIN_ERRORS = (
    ErrorCode.fenced_member_epoch,
    ErrorCode.unknown_member_id,
    ErrorCode.group_id_not_found,
)


class Eager:
    """Consumer of the classic protocol that revokes everything before it joins.

    As the leader it deals out the partitions one by one.
    """

    def __init__(self, world: ConsumerWorld, name: str) -> None:
        self.world, self.name = world, name
        self.member_id, self.generation = "", -1
        self.owned: dict[str, set[int]] = {}
        self.joined: list[JoinAnswer] | None = None
        self.synced: list[SyncAnswer] | None = None

    def live(self) -> None:
        try:
            self._live()
        except CoordinatorError as error:
            self._refused(error.error_code)

    def _live(self) -> None:
        if self.joined:
            answer, self.joined = self.joined.pop(), None
            self._receive_join(answer)
        elif self.synced:
            sync_answer, self.synced = self.synced.pop(), None
            self._receive_sync(sync_answer)
        elif self.joined is None and self.synced is None:
            if not self.member_id:
                self._join()
                return
            beat = self.world.shard.classic_heartbeat(
                GROUP, MemberIdentity(self.member_id), self.generation, self.world.now
            )
            error = run_steps(beat)
            if error is not NONE:
                self._refused(error)

    def _refused(self, error: ErrorCode) -> None:
        # An eager consumer owns nothing while it joins, whatever the error was.
        self.owned, self.joined, self.synced = {}, None, None
        if error is ErrorCode.unknown_member_id:
            self.member_id = ""
        if error in (REBALANCING, ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._join()

    def _join(self) -> None:
        self.owned, self.joined = {}, []
        request = JoinRequest(
            group_id=GROUP,
            who=MemberIdentity(self.member_id),
            client_id="old",
            client_host="/h",
            rebalance_timeout_ms=10_000,
            session_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(MemberProtocol("range", subscription(("t", "u"), {})),),
            needs_member_id=False,
            may_skip_assignment=True,
            # The log only grows, so that no id is used twice.
            new_id=f"{self.name}-{len(self.world.log.records)}",
            answer=self.joined.append,
        )
        try:
            answer = run_steps(self.world.shard.join(request, self.world.version, self.world.now))
        except CoordinatorError:
            self.joined = None
            return
        if answer is not None:
            self.joined = [answer]

    def _receive_join(self, answer: JoinAnswer) -> None:
        if answer.error is not NONE:
            self._refused(answer.error)
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        dealt = self._deal([member.member_id for member in answer.members])
        self.synced = []
        request = SyncRequest(
            group_id=GROUP,
            who=MemberIdentity(self.member_id),
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=tuple(dealt.items()),
            answer=self.synced.append,
        )
        sync_answer = run_steps(self.world.shard.sync(request, self.world.now))
        if sync_answer is not None:
            self.synced = [sync_answer]

    def _deal(self, members: list[str]) -> dict[str, bytes]:
        dealt: dict[str, dict[str, set[int]]] = {member: {} for member in members}
        everything = [
            (name, number)
            for name, topic in self.world.topics.items()
            for number in range(topic.partitions)
        ]
        for place, (name, number) in enumerate(everything):
            if members:
                dealt[members[place % len(members)]].setdefault(name, set()).add(number)
        return {item: _HEAD + partitions(of) + b"\xff" * 4 for item, of in dealt.items()}

    def _receive_sync(self, sync_answer: SyncAnswer) -> None:
        if sync_answer.error is not NONE:
            self._refused(sync_answer.error)
            return
        self.owned = {
            name: set(numbers) for name, numbers in assigned(sync_answer.assignment).items()
        }

    @property
    def owned_partitions(self) -> list[tuple[Any, int]]:
        return [
            (self.world.topics[name].topic_id, number)
            for name, numbers in self.owned.items()
            for number in numbers
        ]


class MigrationSimulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = ConsumerWorld(
            consumer_assignment_interval_ms=1000, consumer_session_timeout_ms=5000
        )
        self.world.topics = topics(t=4, u=3)
        self.count = 0
        self.eager: list[Eager] = []
        self.clients: list[ConsumerClient] = []
        #: Protocols that the group has had, in this order.
        self.protocols: list[str] = []
        self.steps = 0
        self.change()

    def change(self) -> None:
        """Alternate between members of the classic protocol alone and of both protocols."""
        if self.steps % (2 * _PHASE):
            self.become(self.random.randrange(3), self.random.randrange(1, 3))
        else:
            self.become(self.random.randrange(1, 4), 0)

    def become(self, eager: int, clients: int) -> None:
        while len(self.eager) < eager:
            self.count += 1
            self.eager.append(Eager(self.world, f"e{self.count}"))
        while len(self.clients) < clients:
            self.count += 1
            self.clients.append(ConsumerClient(self.world, f"c{self.count}", "t", "u"))
        for client in self.clients[clients:]:
            self.leave(client)
        for old in self.eager[eager:]:
            if old.member_id and self.random.random() < 0.7:  # Otherwise its session expires.
                self.world.shard.leave(GROUP, [MemberIdentity(old.member_id)], self.world.now)
        del self.eager[eager:], self.clients[clients:]

    def leave(self, client: ConsumerClient) -> None:
        # Three clients in ten vanish without leaving, until their sessions expire.
        if client.epoch and self.random.random() < 0.7:
            try:
                self.world.beat(client.name, LEAVE)
            except CoordinatorError as error:
                if error.error_code not in REJOIN_ERRORS:
                    raise

    def step(self) -> None:
        chance = self.random.random()
        self.steps += 1
        if not self.steps % _PHASE:
            self.change()
        elif chance < 0.02:
            self.fail_over()
        self.run()

    def fail_over(self) -> None:
        # Everything is committed before the failover: lost records are another simulation's
        # subject.
        self.world.commit_all()
        self.world = self.world.failover()
        for client in (*self.eager, *self.clients):
            client.world = self.world  # type: ignore[attr-defined]

    def run(self) -> None:
        members = [*self.eager, *self.clients]
        for item in self.random.sample(members, len(members)):
            if self.random.random() < 0.6:
                self.beat(item)
        self.world.after(STEP_MS)
        self.world.commit_all()
        self.check()

    def beat(self, member: "Eager | ConsumerClient") -> None:
        if isinstance(member, Eager):
            member.live()
            return
        try:
            member.beat()
        except CoordinatorError as error:
            # The client joins again. An error other than fencing fails the simulation.
            member.epoch, member.owned, member.reported = 0, {}, None
            if error.error_code not in REJOIN_ERRORS:
                raise

    def check(self) -> None:
        group = self.world.shard.group_offsets.find(GROUP)
        present = {} if group is None else group.members
        protocol = "" if not present else type(group).__name__
        if self.protocols[-1:] != [protocol]:
            self.protocols.append(protocol)
        together = sorted(
            [
                *owned_partitions(
                    *(client for client in self.clients if client.name in present and client.epoch)
                ),
                *(
                    p
                    for item in self.eager
                    if item.member_id in present
                    for p in item.owned_partitions
                ),
            ]
        )
        assert len(together) == len(set(together)), "a partition has two owners"
        # The counter of memory is right in either protocol.
        used = self.world.shard.offsets.weight_bytes + (group.weighed_bytes if group else 0)
        assert self.world.room.used_bytes == used

    def is_settled(self) -> bool:
        everything = sorted(
            (t.topic_id, n) for t in self.world.topics.values() for n in range(t.partitions)
        )
        together = sorted(
            [*owned_partitions(*self.clients), *(p for e in self.eager for p in e.owned_partitions)]
        )
        # With clients of KIP-848's protocol the group must use it, and otherwise the classic one.
        groups = self.world.shard.consumer_groups if self.clients else self.world.shard.groups
        return GROUP in groups and groups[GROUP].state == "Stable" and together == everything


@pytest.mark.parametrize("seed", range(20))
def test_group_settles_after_faults(seed: int) -> None:
    simulation = MigrationSimulation(seed)
    for _ in range(STEPS):
        simulation.step()
    # The run is worthless unless the group has migrated in both directions.
    changes = set(itertools.pairwise(simulation.protocols))
    assert ("ClassicGroup", "ConsumerGroup") in changes
    assert ("ConsumerGroup", "ClassicGroup") in changes
    # The members change a last time, and have 120 s to settle.
    simulation.change()
    for _ in range(300):
        simulation.run()
        if simulation.is_settled():
            break
    assert simulation.is_settled(), [
        vars(client) for client in [*simulation.eager, *simulation.clients]
    ]
