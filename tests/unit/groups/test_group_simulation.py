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

from tests.unit.groups.members import REBALANCE_MS, SESSION_MS, ClassicWorld, MemberAnswers
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.classic_group import PENDING_BYTES, ClassicGroup
from tidemark_broker.groups.core.values import GroupState, MemberIdentity, SyncRequest

STEPS, STEP_MS = 400, 500
REQUEST_TIMEOUT_STEPS, HEARTBEAT_STEPS = 200, 6
#: Errors after which a client retries unchanged, rejoins unchanged, or joins as a new member.
RETRY_ERRORS = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
REJOIN_ERRORS = (ErrorCode.rebalance_in_progress,)
NEW_MEMBER_ERRORS = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation)


class SimulatedMember:
    """A client's side of the protocol, one request at a time."""

    def __init__(self, simulation: "ClassicSimulation", name: str, instance_id: str | None) -> None:
        self.simulation = simulation
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.generation_id = -1
        self.assignment: bytes | None = None
        self.members: tuple[Any, ...] = ()
        self.request: tuple[str, MemberAnswers] | None = None
        self.steps_waited = self.since_beat = 0

    def step(self) -> None:
        if self.request is None:
            self._ask()
            return
        kind, received = self.request
        answers: list[Any] = received.joins if kind == "join" else received.syncs
        self.steps_waited += 1
        if not answers:
            if self.steps_waited > REQUEST_TIMEOUT_STEPS or self.simulation.chance(0.01):
                self.request = None  # the connection was lost: the client retries
            return
        self.request = None
        # The coordinator has acted, but its answer is lost.
        if self.simulation.chance(self.simulation.losses):
            return
        if kind == "join":
            self._joined(answers[0])
        else:
            self._synced(answers[0])

    def _ask(self) -> None:
        self.steps_waited = 0
        if self.generation_id < 0:
            answers = self.simulation.world.join(
                self.member_id, instance_id=self.instance_id, version=5, session_ms=SESSION_MS
            )
            self.request = ("join", answers)
        elif self.assignment is None:
            self.request = ("sync", self._sync())
        else:
            self.since_beat += 1
            if self.since_beat >= HEARTBEAT_STEPS:
                self.since_beat = 0
                self._beat()

    def _sync(self) -> MemberAnswers:
        answers = MemberAnswers()
        # Every proposal has new values, so that a value identifies the proposal it is from.
        given = {member.member_id: f"{self.simulation.token()}".encode() for member in self.members}
        self.simulation.proposed.update(given.values())
        self.simulation.world.rebalancing.sync(
            SyncRequest(
                group_id="g",
                who=MemberIdentity(self.member_id, self.instance_id),
                generation_id=self.generation_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=tuple(given.items()),
                answer=answers.syncs.append,
            ),
            self.simulation.world.now,
        )
        for value in given.values():
            self.simulation.sets[value] = frozenset(given.values())
        return answers

    def _beat(self) -> None:
        world = self.simulation.world
        error = world.heartbeat(self.member_id, self.generation_id, self.instance_id)
        # Without the answer, the member does not notice an error before its next heartbeat.
        if not self.simulation.chance(self.simulation.losses):
            self._failed(error)
        if error is ErrorCode.none and self.simulation.chance(0.5):
            self.simulation.commit(self)

    def _joined(self, answer: Any) -> None:
        if answer.error is ErrorCode.member_id_required:
            self.member_id = answer.member_id
        elif answer.error is ErrorCode.none:
            self.member_id = answer.member_id
            self.generation_id, self.members = answer.generation_id, tuple(answer.members)
            # Only the leader receives the list of members.
            assert not self.members or answer.leader == self.member_id
        else:
            self._failed(answer.error)

    def _synced(self, answer: Any) -> None:
        if answer.error is ErrorCode.none:
            self.assignment = answer.assignment
            self.simulation.check_assignment(self)
        else:
            self._failed(answer.error)

    def _failed(self, error: ErrorCode) -> None:
        if error is ErrorCode.none or error in RETRY_ERRORS:
            return
        assert error in (*REJOIN_ERRORS, *NEW_MEMBER_ERRORS, ErrorCode.fenced_instance_id), error
        # The member leaves its generation. Some errors also cost it its member id.
        self.generation_id, self.assignment, self.members = -1, None, ()
        if error in NEW_MEMBER_ERRORS or error is ErrorCode.fenced_instance_id:
            self.member_id = ""


class ClassicSimulation:
    """A group, and what an observer outside the coordinator knows about it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.world = ClassicWorld()
        self.losses = 0.05
        self._tokens = 0
        self.proposed: set[bytes] = set()
        #: Each value's complete proposal.
        self.sets: dict[bytes, frozenset[bytes]] = {}
        self.by_generation: dict[int, frozenset[bytes]] = {}
        self.holders: dict[tuple[int, bytes], str] = {}
        self.acknowledged = self.tried = 0
        self.members = [
            SimulatedMember(self, f"m{number}", f"i{number}" if number % 3 == 0 else None)
            for number in range(self._random.randrange(2, 7))
        ]

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def token(self) -> int:
        self._tokens += 1
        return self._tokens

    def check_assignment(self, member: SimulatedMember) -> None:
        """Check that no other leader and no other member has the received assignment."""
        value = member.assignment
        if not value:
            return  # The leader did not include this member.
        assert value in self.proposed
        generation = self.by_generation.setdefault(member.generation_id, self.sets[value])
        assert value in generation, f"generation {member.generation_id} was assigned twice"
        who = member.instance_id or member.member_id
        holder = self.holders.setdefault((member.generation_id, value), who)
        assert holder == who, f"{value!r} is given to {holder} and to {who}"

    def commit(self, member: SimulatedMember) -> None:
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
        # Expected in 400 steps: 20 changes between waiting and committed appends, and 8 each of
        # refusals, failovers and crashes.
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
            self.members[index] = SimulatedMember(self, crashed.name, crashed.instance_id)
        self.run()

    def _fail_over(self) -> None:
        log = self.world.log
        # The next leader has all committed records, and any number of the uncommitted ones.
        surviving = self._random.randint(log.committed, len(log.records))
        self.world = self.world.failover(surviving)
        known = self.world.committed().get(("t", 0), 0)
        assert known >= self.acknowledged, f"{self.acknowledged} was acknowledged, {known} is known"

    def run(self) -> None:
        for member in self._random.sample(self.members, len(self.members)):
            member.step()
        self.world.after(STEP_MS)
        # The counters of memory equal the weights, computed from the members and the pending ids.
        for group in self.world.groups.values():
            members = sum(item.weight_bytes for item in group.members.values())
            pending = len(group.pending_join) * PENDING_BYTES
            assert group.weight_bytes == ClassicGroup("g").weight_bytes + members + pending
        groups = sum(item.weight_bytes for item in self.world.groups.values())
        assert self.world.room.used_bytes == groups + self.world.offsets.weight_bytes

    def is_settled(self) -> bool:
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
def test_group_settles_after_faults(seed: int) -> None:
    simulation = ClassicSimulation(seed)
    for _ in range(STEPS):
        simulation.step()
    # The faults end: every append is accepted and committed.
    simulation.losses = 0.0
    simulation.world.log.refuses = None
    simulation.world.log.commits = True
    simulation.world.log.commit()
    # Four times both timeouts: members that crashed have to expire before a generation completes.
    for _ in range(4 * (REBALANCE_MS + SESSION_MS) // STEP_MS):
        simulation.run()
        if simulation.is_settled():
            break
    assert simulation.is_settled(), (
        simulation.world.state,
        [vars(member) for member in simulation.members],
    )
    assert simulation.acknowledged > 0 or simulation.tried == 0


def test_checks_detect_violations() -> None:
    simulation = ClassicSimulation(0)
    first, second = simulation.members[:2]
    simulation.proposed |= {b"1", b"2"}
    # Two leaders have proposed different tasks in generation 1.
    simulation.sets = {b"1": frozenset({b"1"}), b"2": frozenset({b"2"})}
    for member, value in ((first, b"1"), (second, b"2")):
        member.member_id, member.generation_id, member.assignment = member.name, 1, value
    simulation.check_assignment(first)
    with pytest.raises(AssertionError, match="assigned twice"):
        simulation.check_assignment(second)
    second.assignment = b"1"
    with pytest.raises(AssertionError, match="is given to"):
        simulation.check_assignment(second)
    # The offset was acknowledged, but the log has no record of it.
    simulation.acknowledged = 1
    with pytest.raises(AssertionError, match="was acknowledged"):
        simulation._fail_over()
