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

from tests.unit.groups.consumers import GROUP, Client, World, held, taken, topics
from tests.unit.groups.test_migration import _HEAD, partitions, subscription
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.consumer_values import LEAVE
from tidemark_broker.groups.core.subscriptions import assigned
from tidemark_broker.groups.core.values import (
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
NONE, AGAIN = ErrorCode.none, ErrorCode.rebalance_in_progress
ANEW = (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found)


class Eager:
    """A consumer of the classic protocol that gives up everything before it joins; as the leader it
    deals out the partitions one by one."""

    def __init__(self, world: World, name: str) -> None:
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
            self._heard(answer)
        elif self.synced:
            told, self.synced = self.synced.pop(), None
            self._told(told)
        elif self.joined is None and self.synced is None:
            if not self.member_id:
                self._join()
                return
            beat = self.world.shard.classic_heartbeat(
                GROUP, MemberIdentity(self.member_id), self.generation, self.world.now
            )
            error = taken(beat)
            if error is not NONE:
                self._refused(error)

    def _refused(self, error: ErrorCode) -> None:
        self.owned, self.joined, self.synced = {}, None, None
        if error is ErrorCode.unknown_member_id:
            self.member_id = ""
        if error in (AGAIN, ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
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
            new_id=f"{self.name}-{len(self.world.log.records)}",
            answer=self.joined.append,
        )
        try:
            answer = taken(self.world.shard.join(request, self.world.version, self.world.now))
        except CoordinatorError:
            self.joined = None
            return
        if answer is not None:
            self.joined = [answer]

    def _heard(self, answer: JoinAnswer) -> None:
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
        told = taken(self.world.shard.sync(request, self.world.now))
        if told is not None:
            self.synced = [told]

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

    def _told(self, told: SyncAnswer) -> None:
        if told.error is not NONE:
            self._refused(told.error)
            return
        self.owned = {name: set(numbers) for name, numbers in assigned(told.assignment).items()}

    @property
    def held(self) -> list[tuple[Any, int]]:
        return [
            (self.world.topics[name].topic_id, number)
            for name, numbers in self.owned.items()
            for number in numbers
        ]


class Lives:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(consumer_assignment_interval_ms=1000, consumer_session_timeout_ms=5000)
        self.world.topics = topics(t=4, u=3)
        self.count = 0
        self.eager: list[Eager] = []
        self.clients: list[Client] = []
        #: Of which protocol the group was, one after the other.
        self.protocols: list[str] = []
        self.steps = 0
        self.change()

    def change(self) -> None:
        """From members of the classic protocol alone to those of both, or of the other one, and
        back."""
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
            self.clients.append(Client(self.world, f"c{self.count}", "t", "u"))
        for client in self.clients[clients:]:
            self.leave(client)
        for old in self.eager[eager:]:
            if old.member_id and self.random.random() < 0.7:  # otherwise it falls silent
                self.world.shard.leave(GROUP, [MemberIdentity(old.member_id)], self.world.now)
        del self.eager[eager:], self.clients[clients:]

    def leave(self, client: Client) -> None:
        if client.epoch and self.random.random() < 0.7:
            try:
                self.world.beat(client.name, LEAVE)
            except CoordinatorError as error:
                if error.error_code not in ANEW:
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
        self.world.commit_all()
        self.world = self.world.failover()
        for client in (*self.eager, *self.clients):
            client.world = self.world  # type: ignore[attr-defined]

    def run(self) -> None:
        everybody = [*self.eager, *self.clients]
        for item in self.random.sample(everybody, len(everybody)):
            if self.random.random() < 0.6:
                self.beat(item)
        self.world.after(STEP_MS)
        self.world.commit_all()
        self.check()

    def beat(self, member: "Eager | Client") -> None:
        if isinstance(member, Eager):
            member.live()
            return
        try:
            member.beat()
        except CoordinatorError as error:
            member.epoch, member.owned, member.said = 0, {}, None
            if error.error_code not in ANEW:
                raise

    def check(self) -> None:
        group = self.world.shard.group_offsets.find(GROUP)
        there = {} if group is None else group.members
        protocol = "" if not there else type(group).__name__
        if self.protocols[-1:] != [protocol]:
            self.protocols.append(protocol)
        together = sorted(
            [
                *held(
                    *(client for client in self.clients if client.name in there and client.epoch)
                ),
                *(p for item in self.eager if item.member_id in there for p in item.held),
            ]
        )
        assert len(together) == len(set(together)), "a partition is held by two"
        used = self.world.shard.offsets.weight_bytes + (group.weighed_bytes if group else 0)
        assert self.world.room.used_bytes == used

    def is_well(self) -> bool:
        everything = sorted(
            (t.topic_id, n) for t in self.world.topics.values() for n in range(t.partitions)
        )
        together = sorted([*held(*self.clients), *(p for e in self.eager for p in e.held)])
        groups = self.world.shard.consumer_groups if self.clients else self.world.shard.groups
        return GROUP in groups and groups[GROUP].state == "Stable" and together == everything


@pytest.mark.parametrize("seed", range(20))
def test_a_group_lives_through_it(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(STEPS):
        lives.step()
    changes = set(itertools.pairwise(lives.protocols))
    assert ("ClassicGroup", "ConsumerGroup") in changes
    assert ("ConsumerGroup", "ClassicGroup") in changes
    lives.change()
    for _ in range(300):
        lives.run()
        if lives.is_well():
            break
    assert lives.is_well(), [vars(client) for client in [*lives.eager, *lives.clients]]
