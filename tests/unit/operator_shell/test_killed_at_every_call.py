"""The operator is killed at each of its calls, and its successor reaches the same state.

The calls are those to the API server and to brokers. The kill strikes before the call has its
effect, or before its answer arrives (invariant 20).
"""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.operator_shell.killable_world import MortalWorld, WallClock
from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.tiering import TieringState
from tidemark_operator import clock
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    EXPORT,
    PARTITION_SLICE,
    RECORD_DELETION,
    TOPIC,
    Json,
)
from tidemark_operator.slices import committer
from tidemark_operator.term import takeover

TIERING: Json = {"enabled": True}

Act = Callable[[MortalWorld], None]


# ---------------------------------------------------------------- actions of users


def made(world: MortalWorld) -> None:
    world.make_topic(replicas=2, partitions=2, tiering=TIERING)


def made_among_many(world: MortalWorld) -> None:
    """Create a topic of which only the placement is announced at first."""
    world.busy = True
    world.make_topic(replicas=2, partitions=2)


def edited(**spec: Any) -> Act:
    return lambda world: world.edit(TOPIC, "t", **spec)


def deleted(world: MortalWorld) -> None:
    world.server.delete("user", TOPIC, "t")


def adopted(world: MortalWorld) -> None:
    """Create a Topic with the name of the one that was left behind."""
    (left,) = world.status(CLUSTER, "main")["leftBehind"]
    made(world)
    world.annotate(TOPIC, "t", **{ADOPT_TOPIC_ID: left["topicId"]})


def deletion_requested(world: MortalWorld) -> None:
    spec = {"topicRef": {"name": "t"}, "partitions": [{"partition": 0, "beforeOffset": 40}]}
    world.make(RECORD_DELETION, "d", spec)


def exported(world: MortalWorld) -> None:
    world.make_export()


def export_edited(world: MortalWorld) -> None:
    world.edit(EXPORT, "x", source={"options": {"failOnDataLoss": "false"}})


def drained(world: MortalWorld) -> None:
    world.edit(BROKER, "broker-1", drain=True)


def broker_deleted(world: MortalWorld) -> None:
    world.server.delete("user", BROKER, "broker-1")


# ---------------------------------------------------------------- expected results


def placed(partitions: int = 2, replicas: int = 2) -> Act:
    def check(world: MortalWorld) -> None:
        assert world.condition(TOPIC, "t", "Ready")[:2] == ("True", "Serving")
        rows = list(world.services.state.all_rows())
        assert [len(row.replicas) for row in rows] == [replicas] * partitions
        assert all(set(row.isr) == set(row.replicas) for row in rows)
        assert not any(row.adding or row.removing for row in rows)

    return check


def disabled(world: MortalWorld) -> None:
    assert world.services.state.topics["ns/t"].tiering.state is TieringState.DISABLED


def topic_deleted(world: MortalWorld) -> None:
    assert not world.services.state.topics
    assert world.server.find(TOPIC, "t") is None


def left_behind(world: MortalWorld) -> None:
    topic_deleted(world)
    assert [left["topicName"] for left in world.status(CLUSTER, "main")["leftBehind"]] == ["t"]


def topic_adopted(world: MortalWorld) -> None:
    placed()(world)
    assert not world.status(CLUSTER, "main").get("leftBehind")


def records_deleted(world: MortalWorld) -> None:
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[0] == "True"


def exporting(run: int) -> Act:
    def check(world: MortalWorld) -> None:
        assert world.condition(EXPORT, "x", "Ready")[:2] == ("True", "Running")
        assert list(world.jobs.seen) == [("ns/x", run)]

    return check


def broker_drained(world: MortalWorld) -> None:
    placed()(world)
    assert world.condition(BROKER, "broker-1", "Draining")[:2] == ("False", "Drained")
    assert not world.services.state.partitions.keys_on(1)


def broker_removed(world: MortalWorld) -> None:
    placed()(world)
    assert world.server.find(BROKER, "broker-1") is None


# ---------------------------------------------------------------- flows


@dataclasses.dataclass(frozen=True)
class KillFlow:
    """Actions of users, each followed by a life of the operator.

    The life after the last action is killed. ``check`` proves that the flow did what it is for.
    """

    acts: tuple[Act, ...]
    check: Act
    brokers: tuple[int, ...] = (1, 2)


DISABLE_RETAIN = edited(tiering={"enabled": False, "disablePolicy": "Retain"})
DISABLE_DELETE = edited(tiering={"enabled": False, "disablePolicy": "Delete"})
ORPHAN = edited(deletionPolicy="Orphan")

FLOWS = {
    "create": KillFlow((made,), placed()),
    "grow": KillFlow((made, edited(partitions=4)), placed(partitions=4)),
    "create-among-many": KillFlow((made_among_many,), placed()),
    "grow-among-many": KillFlow((made_among_many, edited(partitions=4)), placed(partitions=4)),
    "disable-retain": KillFlow((made, DISABLE_RETAIN), disabled),
    "disable-delete": KillFlow((made, DISABLE_DELETE), disabled),
    "delete": KillFlow((made, deleted), topic_deleted),
    "leave-behind": KillFlow((made, ORPHAN, deleted), left_behind),
    "adopt": KillFlow((made, ORPHAN, deleted, adopted), topic_adopted),
    "record-deletion": KillFlow((made, deletion_requested), records_deleted),
    "export": KillFlow((made, exported), exporting(1)),
    "export-otherwise": KillFlow((made, exported, export_edited), exporting(2)),
    "drain": KillFlow((made, drained), broker_drained, (1, 2, 3)),
    "remove-broker": KillFlow((made, broker_deleted), broker_removed, (1, 2, 3)),
    "more-replicas": KillFlow((made, edited(replicationFactor=3)), placed(replicas=3), (1, 2, 3)),
    "fewer-replicas": KillFlow((made, edited(replicationFactor=1)), placed(replicas=1)),
}
#: Flows of `make test`: others reach the same calls.
SHORT = {"create", "delete", "remove-broker"}


def final_state(world: MortalWorld) -> dict[str, object]:
    """Return all decided state, without times and without the controller's identity."""
    state = world.services.state
    rows = sorted(
        (row.key, row.replicas, row.leader, sorted(row.isr), row.adding, row.removing)
        for row in state.all_rows()
    )
    found: dict[str, object] = {"rows": rows}
    for kind in (TOPIC, RECORD_DELETION, EXPORT, BROKER, CLUSTER):
        for body in world.server.of_kind(kind):
            found[body["metadata"]["name"]] = (
                body["metadata"].get("finalizers"),
                _timeless(body.get("status") or {}),
            )
    found["jobs"] = sorted(world.jobs.seen)
    found["tombstones"] = sum(
        len(body["tombstones"]) for body in world.server.of_kind(PARTITION_SLICE)
    )
    return found


#: Fields that count controllers or contain random values.
_SKIPPED = (
    "brokerEpoch",
    "path",
    "storeId",
    "lastTransitionTime",
    "since",
    "controllerEpoch",
    "controller",
    "startTime",
    "endTime",
    "time",
    "completionTime",
)


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(item) for name, item in value.items() if name not in _SKIPPED}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


async def begun(flow: KillFlow, tier: Path, clock: WallClock) -> MortalWorld:
    """Return the settled world at the start of the flow, after its controller has ended."""
    world = MortalWorld(clock)
    world.begin(tier, flow.brokers)
    for act in flow.acts:
        world.life.begins()
        await world.lives()
        act(world)
    return world


@pytest.mark.parametrize(
    "after",
    [pytest.param(False, marks=pytest.mark.full), True],
    ids=["call-lost", "answer-lost"],
)
@pytest.mark.parametrize(
    "flow",
    [
        pytest.param(flow, id=name, marks=[] if name in SHORT else pytest.mark.full)
        for name, flow in FLOWS.items()
    ],
)
async def test_the_result_is_the_same_as_without_a_kill(
    flow: KillFlow, after: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wall = WallClock()
    # Statuses contain times: with a controlled clock they are the same in every run.
    monkeypatch.setattr(clock, "time", wall)
    # Two slices instead of 64: each slice adds several kill points.
    monkeypatch.setattr(takeover, "SLICES_DEFAULT", 2)
    monkeypatch.setattr(committer, "GROWS_WITHIN_S", 0)
    start = await begun(flow, tmp_path, wall)
    # The reference run, without a kill.
    undisturbed = start.again()
    undisturbed.life.begins()
    await undisturbed.lives()
    expected = final_state(undisturbed)
    flow.check(undisturbed)
    # Kill at call 0, 1, 2, … until a run completes before the kill.
    for number in itertools.count():
        world = start.again()
        world.life.begins(number, after=after)
        await world.lives()
        if not world.life.ended.is_set():
            # No kill point of the undisturbed run was skipped.
            assert number >= undisturbed.life.calls
            return
        # A second operator takes over and must reach the reference state.
        world.life.begins()
        await world.lives()
        assert final_state(world) == expected, f"killed at call {number}"
