"""Simulate groups from a seed: members crash, answers are lost, commits wait and coordinators
change.

All members of a generation receive the assignments of one leader. No two members of a generation
have the same task. An acknowledged offset is never forgotten. Once the faults end, the group is
stable and contains every member.
"""

import random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.groups.members import REBALANCE_MS, SESSION_MS, Told, World
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.classic_group import PENDING_BYTES, ClassicGroup
from tidemark_broker.groups.core.values import GroupState, MemberIdentity, SyncRequest

STEPS, STEP_MS = 400, 500
REQUEST_TIMEOUT_STEPS, HEARTBEAT_STEPS = 200, 6
#: Errors after which a client retries unchanged, rejoins unchanged, or joins as a new member.
AGAIN = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
JOIN_AGAIN = (ErrorCode.rebalance_in_progress,)
ANEW = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation)


class Member:
    """A client's side of the protocol, one request at a time."""

    def __init__(self, lives: "Lives", name: str, instance_id: str | None) -> None:
        self.lives = lives
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.generation_id = -1
        self.assignment: bytes | None = None
        self.members: tuple[Any, ...] = ()
        self.asked: tuple[str, Told] | None = None
        self.asked_for = self.since_beat = 0

    def step(self) -> None:
        if self.asked is None:
            self._ask()
            return
        kind, told = self.asked
        answers: list[Any] = told.joins if kind == "join" else told.syncs
        self.asked_for += 1
        if not answers:
            if self.asked_for > REQUEST_TIMEOUT_STEPS or self.lives.chance(0.01):
                self.asked = None  # the connection was lost: the client retries
            return
        self.asked = None
        if self.lives.chance(self.lives.losses):
            return
        if kind == "join":
            self._joined(answers[0])
        else:
            self._synced(answers[0])

    def _ask(self) -> None:
        self.asked_for = 0
        if self.generation_id < 0:
            told = self.lives.world.join(
                self.member_id, instance_id=self.instance_id, version=5, session_ms=SESSION_MS
            )
            self.asked = ("join", told)
        elif self.assignment is None:
            self.asked = ("sync", self._sync())
        else:
            self.since_beat += 1
            if self.since_beat >= HEARTBEAT_STEPS:
                self.since_beat = 0
                self._beat()

    def _sync(self) -> Told:
        told = Told()
        given = {member.member_id: f"{self.lives.token()}".encode() for member in self.members}
        self.lives.proposed.update(given.values())
        self.lives.world.rebalancing.sync(
            SyncRequest(
                group_id="g",
                who=MemberIdentity(self.member_id, self.instance_id),
                generation_id=self.generation_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=tuple(given.items()),
                answer=told.syncs.append,
            ),
            self.lives.world.now,
        )
        for value in given.values():
            self.lives.sets[value] = frozenset(given.values())
        return told

    def _beat(self) -> None:
        world = self.lives.world
        error = world.heartbeat(self.member_id, self.generation_id, self.instance_id)
        if not self.lives.chance(self.lives.losses):
            self._failed(error)
        if error is ErrorCode.none and self.lives.chance(0.5):
            self.lives.commit(self)

    def _joined(self, answer: Any) -> None:
        if answer.error is ErrorCode.member_id_required:
            self.member_id = answer.member_id
        elif answer.error is ErrorCode.none:
            self.member_id = answer.member_id
            self.generation_id, self.members = answer.generation_id, tuple(answer.members)
            assert not self.members or answer.leader == self.member_id
        else:
            self._failed(answer.error)

    def _synced(self, answer: Any) -> None:
        if answer.error is ErrorCode.none:
            self.assignment = answer.assignment
            self.lives.told(self)
        else:
            self._failed(answer.error)

    def _failed(self, error: ErrorCode) -> None:
        if error is ErrorCode.none or error in AGAIN:
            return
        assert error in (*JOIN_AGAIN, *ANEW, ErrorCode.fenced_instance_id), error
        self.generation_id, self.assignment, self.members = -1, None, ()
        if error in ANEW or error is ErrorCode.fenced_instance_id:
            self.member_id = ""


class Lives:
    """A group, and what is known of it from outside."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.world = World()
        self.losses = 0.05
        self._tokens = 0
        self.proposed: set[bytes] = set()
        #: All that one leader gave out with a value.
        self.sets: dict[bytes, frozenset[bytes]] = {}
        self.by_generation: dict[int, frozenset[bytes]] = {}
        self.holders: dict[tuple[int, bytes], str] = {}
        self.acknowledged = self.tried = 0
        self.members = [
            Member(self, f"m{number}", f"i{number}" if number % 3 == 0 else None)
            for number in range(self._random.randrange(2, 7))
        ]

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def token(self) -> int:
        self._tokens += 1
        return self._tokens

    def told(self, member: Member) -> None:
        """A member knows what it is to do."""
        value = member.assignment
        if not value:
            return  # the leader did not know of it
        assert value in self.proposed
        generation = self.by_generation.setdefault(member.generation_id, self.sets[value])
        assert value in generation, f"generation {member.generation_id} was assigned twice"
        who = member.instance_id or member.member_id
        holder = self.holders.setdefault((member.generation_id, value), who)
        assert holder == who, f"{value!r} is given to {holder} and to {who}"

    def commit(self, member: Member) -> None:
        """The group's one offset only grows."""
        self.tried += 1
        try:
            (error,) = self.world.commit(
                member.member_id, member.generation_id, {("t", 0): self.tried}
            )
        except CoordinatorError:
            return
        if error is ErrorCode.none:
            end_offset, value = len(self.world.log.records), self.tried

            def acknowledge(_: object) -> None:
                assert self.world.log.committed >= end_offset
                self.acknowledged = max(self.acknowledged, value)

            self.world.log.when_committed(end_offset, acknowledge)

    def step(self) -> None:
        log = self.world.log
        if self.chance(0.05):
            log.commits = not log.commits
            if log.commits:
                log.commit()
        if self.chance(0.02):
            log.refuses = None if log.refuses else ErrorCode.coordinator_not_available
        if self.chance(0.02):
            self._fail_over()
        if self.chance(0.02):
            index = self._random.randrange(len(self.members))
            crashed = self.members[index]
            self.members[index] = Member(self, crashed.name, crashed.instance_id)
        self.run()

    def _fail_over(self) -> None:
        log = self.world.log
        kept = self._random.randint(log.committed, len(log.records))
        self.world = self.world.failover(kept)
        known = self.world.committed().get(("t", 0), 0)
        assert known >= self.acknowledged, f"{self.acknowledged} was acknowledged, {known} is known"

    def run(self) -> None:
        for member in self._random.sample(self.members, len(self.members)):
            member.step()
        self.world.after(STEP_MS)
        for group in self.world.groups.values():
            members = sum(item.weight_bytes for item in group.members.values())
            pending = len(group.pending_join) * PENDING_BYTES
            assert group.weight_bytes == ClassicGroup("g").weight_bytes + members + pending
        groups = sum(item.weight_bytes for item in self.world.groups.values())
        assert self.world.room.used_bytes == groups + self.world.offsets.weight_bytes

    def is_well(self) -> bool:
        return (
            "g" in self.world.groups
            and self.world.state is GroupState.STABLE
            and len(self.world.group.members) == len(self.members)
            and all(
                member.generation_id == self.world.group.generation_id and member.assignment
                for member in self.members
            )
        )


@pytest.mark.parametrize("seed", range(40))
def test_a_group_lives_through_it(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(STEPS):
        lives.step()
    lives.losses = 0.0
    lives.world.log.refuses = None
    lives.world.log.commits = True
    lives.world.log.commit()
    for _ in range(4 * (REBALANCE_MS + SESSION_MS) // STEP_MS):
        lives.run()
        if lives.is_well():
            break
    assert lives.is_well(), (lives.world.state, [vars(member) for member in lives.members])
    assert lives.acknowledged > 0 or lives.tried == 0


def test_the_checks_find_what_is_wrong() -> None:
    lives = Lives(0)
    first, second = lives.members[:2]
    lives.proposed |= {b"1", b"2"}
    lives.sets = {b"1": frozenset({b"1"}), b"2": frozenset({b"2"})}
    for member, value in ((first, b"1"), (second, b"2")):
        member.member_id, member.generation_id, member.assignment = member.name, 1, value
    lives.told(first)
    with pytest.raises(AssertionError, match="assigned twice"):
        lives.told(second)
    second.assignment = b"1"
    with pytest.raises(AssertionError, match="is given to"):
        lives.told(second)
    lives.acknowledged = 1
    with pytest.raises(AssertionError, match="was acknowledged"):
        lives._fail_over()
