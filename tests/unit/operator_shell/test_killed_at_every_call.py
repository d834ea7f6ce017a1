"""The operator is killed at every call it makes, of the API server or of a broker, before it takes
effect or before its answer comes; the next one brings everything to the same end (invariant 20)."""

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


# ---------------------------------------------------------------- what users do


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


def asked(world: MortalWorld) -> None:
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


# ---------------------------------------------------------------- what has come of it


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


def gone(world: MortalWorld) -> None:
    assert not world.services.state.topics
    assert world.server.find(TOPIC, "t") is None


def left_behind(world: MortalWorld) -> None:
    gone(world)
    assert [left["topicName"] for left in world.status(CLUSTER, "main")["leftBehind"]] == ["t"]


def taken_over(world: MortalWorld) -> None:
    placed()(world)
    assert not world.status(CLUSTER, "main").get("leftBehind")


def records_deleted(world: MortalWorld) -> None:
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[0] == "True"


def exporting(run: int) -> Act:
    def check(world: MortalWorld) -> None:
        assert world.condition(EXPORT, "x", "Ready")[:2] == ("True", "Running")
        assert list(world.jobs.seen) == [("ns/x", run)]

    return check


def has_nothing(world: MortalWorld) -> None:
    placed()(world)
    assert world.condition(BROKER, "broker-1", "Draining")[:2] == ("False", "Drained")
    assert not world.services.state.keys_on(1)


def broker_gone(world: MortalWorld) -> None:
    placed()(world)
    assert world.server.find(BROKER, "broker-1") is None


# ---------------------------------------------------------------- flows


@dataclasses.dataclass(frozen=True)
class Flow:
    """``acts`` are done one after another, an operator's life apart; the one that follows the last
    is disturbed. ``check``: what it is for has come about, else its matrix would show nothing."""

    acts: tuple[Act, ...]
    check: Act
    brokers: tuple[int, ...] = (1, 2)


DISABLE_RETAIN = edited(tiering={"enabled": False, "disablePolicy": "Retain"})
DISABLE_DELETE = edited(tiering={"enabled": False, "disablePolicy": "Delete"})
ORPHAN = edited(deletionPolicy="Orphan")

FLOWS = {
    "create": Flow((made,), placed()),
    "grow": Flow((made, edited(partitions=4)), placed(partitions=4)),
    "create-among-many": Flow((made_among_many,), placed()),
    "grow-among-many": Flow((made_among_many, edited(partitions=4)), placed(partitions=4)),
    "disable-retain": Flow((made, DISABLE_RETAIN), disabled),
    "disable-delete": Flow((made, DISABLE_DELETE), disabled),
    "delete": Flow((made, deleted), gone),
    "leave-behind": Flow((made, ORPHAN, deleted), left_behind),
    "adopt": Flow((made, ORPHAN, deleted, adopted), taken_over),
    "record-deletion": Flow((made, asked), records_deleted),
    "export": Flow((made, exported), exporting(1)),
    "export-otherwise": Flow((made, exported, export_edited), exporting(2)),
    "drain": Flow((made, drained), has_nothing, (1, 2, 3)),
    "remove-broker": Flow((made, broker_deleted), broker_gone, (1, 2, 3)),
    "more-replicas": Flow((made, edited(replicationFactor=3)), placed(replicas=3), (1, 2, 3)),
    "fewer-replicas": Flow((made, edited(replicationFactor=1)), placed(replicas=1)),
}


def end(world: MortalWorld) -> dict[str, object]:
    """All that was decided, without times and what tells one controller from another."""
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


#: What counts lives, and what is drawn by chance.
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


async def begun(flow: Flow, tier: Path, clock: WallClock) -> MortalWorld:
    """Return the settled world at the start of the flow, after its controller has ended."""
    world = MortalWorld(clock)
    world.begin(tier, flow.brokers)
    for act in flow.acts:
        world.life.begins()
        await world.lives()
        act(world)
    return world


@pytest.mark.parametrize("after", [False, True], ids=["call-lost", "answer-lost"])
@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
async def test_the_result_is_the_same_as_without_a_kill(
    flow: Flow, after: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wall = WallClock()
    monkeypatch.setattr(clock, "time", wall)
    monkeypatch.setattr(takeover, "SLICES_DEFAULT", 2)
    monkeypatch.setattr(committer, "GROWS_WITHIN_S", 0)
    start = await begun(flow, tmp_path, wall)
    undisturbed = start.again()
    undisturbed.life.begins()
    await undisturbed.lives()
    wanted = end(undisturbed)
    flow.check(undisturbed)
    for number in itertools.count():
        world = start.again()
        world.life.begins(number, after=after)
        await world.lives()
        if not world.life.ended.is_set():
            assert number >= undisturbed.life.calls
            return
        world.life.begins()
        await world.lives()
        assert end(world) == wanted, f"killed at call {number}"
