"""Disablement of tiering (KIP-950): a strict order of states, Disabled only when all is done."""

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.effort import examples
from tests.unit.controller.controller_world import (
    T0,
    TIERED,
    ControllerWorld,
    acknowledge,
    broker,
    cluster,
    fence,
    local_bytes,
    messages,
    numbered_uuid,
    ready,
    row,
    tiered,
    topic,
)
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark.wire.control import DisableRemoteTopicResponse
from tidemark_operator.controller import elections, registration, tiering_disablement
from tidemark_operator.controller.state.model import PartitionRow, PersistedTiering, TieringSpec
from tidemark_operator.controller.tiering_disablement import DisablementProgress, step_by_spec

NONE, ENABLED = TieringState.NONE, TieringState.ENABLED
DISABLING, DISABLED = TieringState.DISABLING, TieringState.DISABLED
RETAIN, DELETE = DisablePolicy.RETAIN, DisablePolicy.DELETE
OFF, ON = TieringSpec(enabled=False), TieringSpec(enabled=True)


def _status(
    state: TieringState, epoch: int = 0, policy: DisablePolicy | None = None
) -> PersistedTiering:
    return PersistedTiering(tiering=Tiering(state, epoch, policy), since_ms=T0)


def _next(status: PersistedTiering, spec: TieringSpec, **config: str) -> PersistedTiering:
    return step_by_spec(
        status, spec, cluster({k.replace("_", "."): v for k, v in config.items()}), now_ms=T0 + 1
    )


def test_first_enablement_starts_at_epoch_0() -> None:
    never = PersistedTiering()
    assert _next(never, OFF) is never
    assert _next(never, ON) == dataclasses.replace(_status(ENABLED), since_ms=T0 + 1)


@pytest.mark.parametrize(
    ("spec", "default", "policy"),
    [
        (OFF, "retain", RETAIN),
        (OFF, "delete", DELETE),
        (TieringSpec(policy=DELETE), "retain", DELETE),
        (TieringSpec(policy=RETAIN), "delete", RETAIN),
    ],
)
def test_disabling_raises_the_epoch_and_freezes_the_policy(
    spec: TieringSpec, default: str, policy: DisablePolicy
) -> None:
    new = _next(_status(ENABLED, 4), spec, remote_log_disable_policy=default)
    assert new.tiering == Tiering(DISABLING, 5, policy)


def test_spec_is_ignored_while_disabling() -> None:
    status = _status(DISABLING, 1, RETAIN)
    for spec in (ON, OFF, TieringSpec(policy=DELETE)):
        assert _next(status, spec) is status


def test_disabled_is_enabled_again_under_the_same_epoch() -> None:
    new = _next(_status(DISABLED, 3, DELETE), ON)
    assert (new.tiering.state, new.tiering.epoch) == (ENABLED, 3)


def test_retained_data_is_deleted_only_by_the_topics_own_policy() -> None:
    retained = _status(DISABLED, 1, RETAIN)
    new = _next(retained, TieringSpec(policy=DELETE))
    # From Retain to Delete needs another disablement, under a new epoch.
    assert new.tiering == Tiering(DISABLING, 2, DELETE)
    assert _next(retained, OFF, remote_log_disable_policy="delete") is retained
    deleted = _status(DISABLED, 1, DELETE)
    assert _next(deleted, TieringSpec(policy=RETAIN)) is deleted


# ---------------------------------------------------------------- acknowledgements


def _disabling_world() -> ControllerWorld:
    return ControllerWorld(
        # Broker 3 is down, and it is a follower of partition 1.
        brokers=[broker(1), broker(2), broker(3, fenced=True)],
        topics=[
            topic(
                partitions=2,
                partitions_placed=2,
                tiering_spec=OFF,
                tiering_status=_status(DISABLING, 1, DELETE),
            )
        ],
        rows=[
            row((1, 2, -1), partition=0, leader_epoch=3),
            row((2, 3, -1), isr=(2,), leader=2, partition=1),
        ],
        view=cluster(TIERED),
    )


def _pending(world: ControllerWorld) -> dict[int, tuple[int, ...]]:
    return tiering_disablement.pending(world.state, world.view(), world.disablements)


def _ack(world: ControllerWorld, node_id: int, *, now_ms: int = T0, **fields: object) -> bool:
    pending_requests = tiering_disablement.requests(world.state, world.view(), world.disablements)
    answer = acknowledge(world, node_id, pending_requests[node_id])
    answer = dataclasses.replace(answer, **fields)  # type: ignore[arg-type]
    return world.disablements.take(world.state, numbered_uuid(1), node_id, answer, now_ms=now_ms)


def test_each_broker_is_queried_for_its_replicas() -> None:
    world = _disabling_world()
    pending_requests = tiering_disablement.requests(world.state, world.view(), world.disablements)
    assert {node: request.partitions for node, request in pending_requests.items()} == {
        1: (0,),
        2: (0, 1),
        3: (1,),
    }
    assert {(r.tiered_epoch, r.disable_policy) for r in pending_requests.values()} == {(1, DELETE)}


def test_stalled_disablement_names_the_slow_broker() -> None:
    world = _disabling_world()
    for node_id in (1, 2):
        _ack(world, node_id)
    late = T0 + tiering_disablement.STALL_MS
    result = world.reconcile(now_ms=late)
    assert ready(result)["Stalled"] == ("True", "NoProgress")
    assert "waiting for broker 3" in messages(result)["Stalled"]
    assert "Start those brokers" in messages(result)["Stalled"]
    # The slow broker returns and acknowledges.
    world.state.put_broker(broker(3))
    _ack(world, 3, now_ms=late)
    result = world.reconcile(now_ms=late)
    assert ready(result)["Stalled"][0] == "False"
    assert ready(result)["TieringSettled"] == ("True", "Disabled")


def test_pending_deletion_is_not_reported_as_deleted() -> None:
    world = _disabling_world()
    for node_id in (1, 2):
        _ack(world, node_id)
    world.state.put_broker(broker(3))
    _ack(world, 3)
    report = local_bytes((numbered_uuid(1), 0), 0)
    for remaining, text in ((3, "is being deleted"), (0, "the tiered data is deleted")):
        world.state.reports[numbered_uuid(1), 0] = dataclasses.replace(
            # The leader still reports three segments in the tier, and later none.
            report,
            remaining_segments=remaining,
        )
        result = world.reconcile()
        assert ready(result)["TieringSettled"] == ("True", "Disabled")
        assert text in messages(result)["TieringSettled"]


def test_disabled_once_all_brokers_acknowledged() -> None:
    world = _disabling_world()
    assert _ack(world, 1)
    assert _ack(world, 2)
    new, event = tiering_disablement.step(
        world.state, world.view(), world.disablements, now_ms=T0 + 9
    )
    assert new == dataclasses.replace(_status(DISABLING, 1, DELETE), pending_brokers=(3,))
    assert event is None
    assert _ack(world, 3)
    new, event = tiering_disablement.step(
        world.state, world.view(), world.disablements, now_ms=T0 + 9
    )
    assert new == PersistedTiering(tiering=Tiering(DISABLED, 1, DELETE), since_ms=T0 + 9)
    assert event is not None
    assert event.reason == "TieringDisabled"


def test_repeated_answer_is_no_progress() -> None:
    world = _disabling_world()
    answers = tiering_disablement.requests(world.state, world.view(), world.disablements)
    answer = acknowledge(world, 1, answers[1])
    taken = [
        world.disablements.take(world.state, numbered_uuid(1), 1, answer, now_ms=T0)
        for _ in range(2)
    ]
    assert taken == [True, False]


@pytest.mark.parametrize("fields", [{"tiered_epoch": 0}, {"broker_epoch": 1}])
def test_answers_of_other_epochs_are_ignored(fields: dict[str, object]) -> None:
    world = _disabling_world()
    assert not _ack(world, 1, **fields)
    assert 1 in _pending(world)


def test_a_restarted_broker_is_queried_again() -> None:
    world = _disabling_world()
    _ack(world, 2)
    # A new process may have lost the state that the former one acknowledged.
    world.register(2, incarnation=9000)
    assert _pending(world)[2] == (0, 1)


def test_the_leaders_part_is_requested_again_from_a_new_leader() -> None:
    world = _disabling_world()
    for node in (1, 2, 3):
        _ack(world, node)
    assert _pending(world) == {}
    draft = world.draft()
    # The new leader must stop uploads of partition 0 itself.
    elections.fence(draft, [1], reason="test")
    world.commit(draft)
    assert _pending(world) == {2: (0,)}


def test_partition_without_a_leader_delays_disabled() -> None:
    world = _disabling_world()
    for node in (1, 2, 3):
        _ack(world, node)
    draft = world.draft()
    elections.fence(draft, [2], reason="test")
    world.commit(draft)
    assert _pending(world) == {2: (1,)}


def test_a_failure_is_remembered_for_the_condition() -> None:
    world = _disabling_world()
    pending_requests = tiering_disablement.requests(world.state, world.view(), world.disablements)
    answer = acknowledge(world, 1, pending_requests[1])
    failed = dataclasses.replace(answer.results[0], error_code=56, message="bucket not found")
    world.disablements.take(
        world.state,
        numbered_uuid(1),
        1,
        dataclasses.replace(answer, results=(failed,)),
        now_ms=T0,
    )
    assert world.disablements.errors == {
        numbered_uuid(1): "broker 1, partition 0: bucket not found"
    }


def _stalled(world: ControllerWorld, progress: DisablementProgress, ms: int) -> bool:
    status = world.view().tiering_status
    return progress.stalled(numbered_uuid(1), status, now_ms=T0 + ms)


def test_ten_minutes_without_progress_are_a_stall() -> None:
    world, stall_ms = _disabling_world(), tiering_disablement.STALL_MS
    acks = world.disablements
    assert not _stalled(world, acks, stall_ms - 1)
    assert _stalled(world, acks, stall_ms)
    # The first value is a baseline. Neither an equal nor a larger one is progress.
    for remaining in (5, 5, 7):
        acks.note_remaining(world.view(), remaining, now_ms=T0 + stall_ms)
        assert _stalled(world, acks, stall_ms + 1), "nothing has become less"
    acks.note_remaining(world.view(), 4, now_ms=T0 + stall_ms)
    assert not _stalled(world, acks, stall_ms + 1)
    _ack(world, 1, now_ms=T0 + 2 * stall_ms)
    assert not _stalled(world, acks, 3 * stall_ms - 1)


def test_second_disablement_has_its_own_clock() -> None:
    world, stall_ms = _disabling_world(), tiering_disablement.STALL_MS
    world.disablements.note_remaining(world.view(), 4, now_ms=T0)
    # A later disablement of the same topic, under another epoch.
    second = PersistedTiering(tiering=Tiering(DISABLING, 9), since_ms=T0 + 5 * stall_ms)
    world.state.put_topic(dataclasses.replace(world.view(), tiering_status=second))
    assert not _stalled(world, world.disablements, 6 * stall_ms - 1)
    assert _stalled(world, world.disablements, 6 * stall_ms)
    world.disablements.note_remaining(world.view(), 3, now_ms=T0 + 6 * stall_ms)
    assert _stalled(world, world.disablements, 6 * stall_ms), "that was another epoch's"


def test_takeover_does_not_reset_the_stall_clock() -> None:
    """Repeated acknowledgements to the new controller are no progress either."""
    world, stall_ms = _disabling_world(), tiering_disablement.STALL_MS
    # The status of the former controller names the brokers that were still pending.
    waits = dataclasses.replace(world.view().tiering_status, pending_brokers=(2, 3))
    world.state.put_topic(dataclasses.replace(world.view(), tiering_status=waits))
    world.disablements = DisablementProgress()
    world.disablements.note_remaining(world.view(), 5, now_ms=T0 + stall_ms)
    # Broker 1 is not among the pending ones, so its answer is a repetition.
    assert _ack(world, 1, now_ms=T0 + stall_ms)
    assert _stalled(world, world.disablements, stall_ms)
    _ack(world, 2, now_ms=T0 + stall_ms)
    assert not _stalled(world, world.disablements, stall_ms)


def test_a_removed_broker_is_not_waited_for() -> None:
    world = _disabling_world()
    _ack(world, 1)
    _ack(world, 2)
    draft = world.draft()
    registration.remove_broker(draft, 3)
    world.commit(draft)
    assert _pending(world) == {}


def test_paused_and_deleted_topics_do_not_change_state() -> None:
    for fields in ({"paused": True}, {"deletion_ms": 1}):
        world = ControllerWorld(topics=[topic(**tiered(False, ENABLED), **fields)])  # type: ignore[arg-type]
        new, event = tiering_disablement.step(
            world.state, world.view(), world.disablements, now_ms=T0
        )
        assert (new, event) == (world.view().tiering_status, None)


# ---------------------------------------------------------------- state machine

_POLICIES = st.sampled_from([None, RETAIN, DELETE])
_LEGAL = {
    (NONE, ENABLED),
    (ENABLED, DISABLING),
    (DISABLING, DISABLED),
    (DISABLED, ENABLED),
    (DISABLED, DISABLING),
}


def test_late_answer_does_not_undo_a_newer_one() -> None:
    """Otherwise the completed part of the leader would be requested again."""
    world = _disabling_world()
    pending_requests = tiering_disablement.requests(world.state, world.view(), world.disablements)
    # The answer is sent before broker 2 becomes the leader, and delivered afterwards.
    late = acknowledge(world, 2, pending_requests[2])
    fence(world, 1)
    assert world.row().leader == 2
    assert _ack(world, 2)
    before = _pending(world)
    world.disablements.take(world.state, numbered_uuid(1), 2, late, now_ms=T0)
    assert _pending(world) == before
    assert 2 not in before


class TieringMachine(RuleBasedStateMachine):
    """One topic on three brokers that fail, return, lose leadership and answer late or twice."""

    def __init__(self) -> None:
        super().__init__()
        self.world = ControllerWorld(
            brokers=[broker(n) for n in (1, 2, 3)],
            topics=[topic(partitions=2, partitions_placed=2)],
            rows=[row((1, 2, 3), partition=0), row((2, 3, -1), partition=1)],
            view=cluster(TIERED),
        )
        self.late: list[tuple[int, DisableRemoteTopicResponse]] = []
        self.delivered: list[tuple[int, DisableRemoteTopicResponse]] = []
        self.starts = 0

    def tiering(self) -> Tiering:
        return self.world.view().tiering

    @rule(enabled=st.booleans(), policy=_POLICIES)
    def spec(self, enabled: bool, policy: DisablePolicy | None) -> None:
        spec = TieringSpec(enabled=enabled, policy=policy)
        self.world.state.put_topic(dataclasses.replace(self.world.view(), tiering_spec=spec))

    @rule()
    def reconcile(self) -> None:
        world, old = self.world, self.tiering()
        status, _ = tiering_disablement.step(
            world.state, world.view(), world.disablements, now_ms=T0
        )
        new = status.tiering
        # Every change of state must be an arrow of KIP-950's diagram.
        if new.state is not old.state:
            assert (old.state, new.state) in _LEGAL
            self._check_move(old, new)
        else:
            assert old == new, "7: no change in a state"
        world.state.put_topic(dataclasses.replace(world.view(), tiering_status=status))

    def _check_move(self, old: Tiering, new: Tiering) -> None:
        if old.state is NONE:
            assert new.epoch == 0
        else:
            # Only a disablement raises the tiered epoch.
            assert new.epoch == old.epoch + (new.state is DISABLING)
        if new.state is DISABLED:
            assert old.policy is new.policy
            assert self._all_acknowledged(new.epoch)

    def _all_acknowledged(self, tiered_epoch: int) -> bool:
        rows = list(self.world.state.all_rows())
        return all(
            made.leader != -1
            and all(self._has_acknowledged(made, node_id, tiered_epoch) for node_id in made.hosts)
            for made in rows
        )

    def _has_acknowledged(self, made: PartitionRow, node_id: int, tiered_epoch: int) -> bool:
        """Return whether this controller knows that the replica's current part is done."""
        broker_epoch = self.world.state.brokers[node_id].broker_epoch
        acknowledged = [
            result
            for sender, response in self.delivered
            if (sender, response.broker_epoch) == (node_id, broker_epoch)
            and response.tiered_epoch == tiered_epoch
            for result in response.results
            if result.partition == made.partition
        ]
        # The leader's part counts only under the current leader epoch.
        if node_id == made.leader:
            return any(r.is_leader and r.leader_epoch == made.leader_epoch for r in acknowledged)
        return bool(acknowledged)

    def _deliver(self, node_id: int, response: DisableRemoteTopicResponse) -> None:
        self.delivered.append((node_id, response))
        self.world.disablements.take(
            self.world.state, numbered_uuid(1), node_id, response, now_ms=T0
        )

    @rule(node_id=st.integers(1, 3), at_once=st.booleans())
    def answer(self, node_id: int, at_once: bool) -> None:
        world = self.world
        pending_requests = tiering_disablement.requests(
            world.state, world.view(), world.disablements
        )
        if node_id in pending_requests:
            response = acknowledge(world, node_id, pending_requests[node_id])
            if at_once:
                self._deliver(node_id, response)
            else:
                # The answer stays in the network, and later rules deliver it once or twice.
                self.late.append((node_id, response))

    @rule()
    def all_answer(self) -> None:
        for node_id in (1, 2, 3):
            self.answer(node_id, True)

    @precondition(lambda self: self.late)
    @rule(twice=st.booleans())
    def late_answer(self, twice: bool) -> None:
        node_id, response = self.late[0]
        if not twice:
            self.late.pop(0)
        self._deliver(node_id, response)

    @rule(node_id=st.integers(1, 3))
    def die(self, node_id: int) -> None:
        draft = self.world.draft()
        elections.fence(draft, [node_id], reason="test")
        self.world.commit(draft)

    @rule(node_id=st.integers(1, 3))
    def start_again(self, node_id: int) -> None:
        self.starts += 1
        self.world.register(node_id, incarnation=50_000 + self.starts)
        self.world.beat(node_id)

    @rule()
    def take_over(self) -> None:
        """Start a new controller, which knows only the persisted state."""
        self.world.disablements = DisablementProgress()
        self.delivered = []

    @invariant()
    def nothing_is_complete_before_all_acknowledged(self) -> None:
        present, world = self.tiering(), self.world
        if present.state is DISABLING:
            waiting = tiering_disablement.pending(world.state, world.view(), world.disablements)
            assert bool(waiting) is not self._all_acknowledged(present.epoch)

    @invariant()
    def epochs_only_grow(self) -> None:
        seen = getattr(self, "seen", -1)
        assert self.tiering().epoch >= seen
        self.seen = self.tiering().epoch


TieringMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30)
TestTieringMachine = TieringMachine.TestCase
