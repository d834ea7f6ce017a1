"""Simulate groups of KIP-848's protocol from a seed: members crash, answers are lost, the log
refuses writes, coordinators change and forget uncommitted records, and topics grow.

Two members of a group never own the same partition. Once the faults end, every partition has an
owner in the group's epoch.
"""

import random

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.groups.consumers import Client, World, held, topics
from tidemark_broker.coordinators.errors import CoordinatorError

STEPS, STEP_MS = 200, 500
ANEW = (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found)


class Lives:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(consumer_assignment_interval_ms=1000)
        self.world.topics = topics(t=4, u=3)
        self.losses = 0.2
        #: Number of committed records, None for all; the others are never announced.
        self.committed: int | None = None
        self.count = 0
        self.clients = [self.born(number) for number in range(4)]

    def born(self, place: int) -> Client:
        self.count += 1
        names = ("t", "u") if self.random.random() < 0.6 else (self.random.choice("tu"),)
        more = {"instance_id": f"i{place}"} if place == 0 else {}
        more["server_assignor"] = self.random.choice(["uniform", "range"])
        return Client(self.world, f"m{self.count}", *names, **more, rebalance_timeout_ms=10_000)

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.02:
            place = self.random.randrange(len(self.clients))
            self.clients[place] = self.born(place)  # the former client falls silent
        elif chance < 0.03:
            count = 2 + self.random.randrange(6)
            self.world.change_topics(t=4, u=count)
        elif chance < 0.05:
            self.fail_over()
        elif chance < 0.10:
            self.committed = len(self.world.log.records) if self.committed is None else None
        elif chance < 0.13:
            refuses = self.world.log.refuses
            self.world.log.refuses = None if refuses else ErrorCode.coordinator_not_available
        self.run()

    def fail_over(self) -> None:
        self.world.log.refuses = None
        self.world = self.world.failover(self.committed)
        self.committed = None
        for client in self.clients:
            client.world = self.world

    def run(self) -> None:
        for item in self.random.sample(self.clients, len(self.clients)):
            if self.random.random() < 0.3:
                self.beat(item)
        self.world.after(STEP_MS)
        self.world.make_offloaded()
        self.check()

    def beat(self, client: Client) -> None:
        before = client.epoch, dict(client.owned), client.said
        try:
            client.beat()
        except CoordinatorError as error:
            if error.error_code in ANEW:
                client.epoch, client.owned, client.said = 0, {}, None
            else:
                client.epoch, client.owned, client.said = before
            return
        if self.committed is not None or self.random.random() < self.losses:
            client.epoch, client.owned, client.said = before[0], before[1], None

    def check(self) -> None:
        group = self.world.shard.consumer_groups.get("g")
        if group is None:
            return
        alive = [
            client
            for client in self.clients
            if client.name in group.members
            and client.epoch
            in (
                group.members[client.name].position.epoch,
                group.members[client.name].position.previous_epoch,
            )
        ]
        together = held(*alive)
        assert len(together) == len(set(together)), "a partition is held by two"
        offsets = self.world.shard.offsets.weight_bytes
        assert self.world.room.used_bytes == group.weighed_bytes + offsets
        if self.random.random() < 0.05:
            assert self.world.replayed().picture() == self.world.picture()

    def is_well(self) -> bool:
        group = self.world.shard.consumer_groups.get("g")
        if group is None or group.state != "Stable" or len(group.members) != len(self.clients):
            return False
        names = group.subscribed
        wanted = [(t.topic_id, n) for name, t in self.world.topics.items() if name in names
                  for n in range(t.partitions)]  # fmt: skip
        return held(*self.clients) == sorted(wanted)


@pytest.mark.parametrize("seed", range(20))
def test_a_group_lives_through_it(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(STEPS):
        lives.step()
    lives.losses, lives.committed = 0.0, None
    lives.world.log.refuses = None
    for _ in range(400):
        lives.run()
        if lives.is_well():
            break
    assert lives.is_well(), (lives.world.picture(), [vars(client) for client in lives.clients])


def test_the_checks_find_what_is_wrong() -> None:
    lives = Lives(0)
    for _ in range(40):
        lives.run()
    first, second = lives.clients[1:3]
    first.owned = second.owned = {lives.world.topics["t"].topic_id: frozenset({0})}
    for item in (first, second):
        item.epoch = lives.world.group.members[item.name].position.epoch
    with pytest.raises(AssertionError, match="held by two"):
        lives.check()
