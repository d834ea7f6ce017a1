"""Simulate groups of KIP-848's protocol from a seed: members crash, answers are lost, the log
refuses writes, coordinators change and forget uncommitted records, and topics grow.

Two members of a group never own the same partition. Once the faults end, every partition has an
owner in the group's epoch.
"""

import random

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.groups.consumers import ConsumerClient, ConsumerWorld, owned_partitions, topics
from tidemark_broker.coordinators.errors import CoordinatorError

STEPS, STEP_MS = 200, 500
# Errors after which a client joins again with epoch 0.
REJOIN_ERRORS = (
    ErrorCode.fenced_member_epoch,
    ErrorCode.unknown_member_id,
    ErrorCode.group_id_not_found,
)


class ConsumerSimulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = ConsumerWorld(consumer_assignment_interval_ms=1000)
        self.world.topics = topics(t=4, u=3)
        self.losses = 0.2
        #: Number of committed records, None for all; the others are never announced.
        self.committed: int | None = None
        self.count = 0
        self.clients = [self.born(number) for number in range(4)]

    def born(self, place: int) -> ConsumerClient:
        self.count += 1
        names = ("t", "u") if self.random.random() < 0.6 else (self.random.choice("tu"),)
        more = {"instance_id": f"i{place}"} if place == 0 else {}
        more["server_assignor"] = self.random.choice(["uniform", "range"])
        return ConsumerClient(
            self.world, f"m{self.count}", *names, **more, rebalance_timeout_ms=10_000
        )

    def step(self) -> None:
        # Expected in 200 steps: 4 crashes, 2 changed topics, 4 failovers, 10 pauses or resumptions
        # of commits, and 6 changes between refusing and accepting appends.
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
        # The next coordinator has only the committed records. The others never existed for it.
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

    def beat(self, client: ConsumerClient) -> None:
        before = client.epoch, dict(client.owned), client.reported
        try:
            client.beat()
        except CoordinatorError as error:
            if error.error_code in REJOIN_ERRORS:
                # Fenced: the member abandons its partitions, as KIP-848 requires.
                client.epoch, client.owned, client.reported = 0, {}, None
            else:
                client.epoch, client.owned, client.reported = before
            return
        # The answer is lost, or never sent because its write is not committed. The client repeats
        # the request in full.
        if self.committed is not None or self.random.random() < self.losses:
            client.epoch, client.owned, client.reported = before[0], before[1], None

    def check(self) -> None:
        group = self.world.shard.consumer_groups.get("g")
        if group is None:
            return
        # Only members whose epoch the coordinator accepts may act on their partitions.
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
        together = owned_partitions(*alive)
        assert len(together) == len(set(together)), "a partition has two owners"
        offsets = self.world.shard.offsets.weight_bytes
        assert self.world.room.used_bytes == group.weighed_bytes + offsets
        # Replaying the complete log is slow, so that one check in twenty does it.
        if self.random.random() < 0.05:
            assert self.world.replayed().picture() == self.world.picture()

    def is_settled(self) -> bool:
        group = self.world.shard.consumer_groups.get("g")
        if group is None or group.state != "Stable" or len(group.members) != len(self.clients):
            return False
        names = group.subscribed
        expected = [(t.topic_id, n) for name, t in self.world.topics.items() if name in names
                  for n in range(t.partitions)]  # fmt: skip
        return owned_partitions(*self.clients) == sorted(expected)


@pytest.mark.parametrize("seed", range(20))
def test_group_settles_after_faults(seed: int) -> None:
    simulation = ConsumerSimulation(seed)
    for _ in range(STEPS):
        simulation.step()
    # The faults end: no answer is lost, and every append succeeds and is committed.
    simulation.losses, simulation.committed = 0.0, None
    simulation.world.log.refuses = None
    # 400 rounds of 500 ms are 200 s, several times the session and rebalance timeouts.
    for _ in range(400):
        simulation.run()
        if simulation.is_settled():
            break
    assert simulation.is_settled(), (
        simulation.world.picture(),
        [vars(client) for client in simulation.clients],
    )


def test_checks_detect_violations() -> None:
    simulation = ConsumerSimulation(0)
    # Without faults, 40 rounds are enough for a stable group.
    for _ in range(40):
        simulation.run()
    first, second = simulation.clients[1:3]
    first.owned = second.owned = {simulation.world.topics["t"].topic_id: frozenset({0})}
    # Both are in their current epoch, so that the check does not skip them.
    for item in (first, second):
        item.epoch = simulation.world.group.members[item.name].position.epoch
    with pytest.raises(AssertionError, match="two owners"):
        simulation.check()
