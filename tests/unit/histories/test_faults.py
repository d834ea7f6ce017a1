"""Nodes that were killed, stopped or paused run again when the faults are over."""

import signal
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.histories.clients import Run
from tests.histories.events import HistoryRecorder
from tests.histories.faults import Faults
from tests.histories.plan import (
    ANY,
    KILL,
    LEADER,
    OLD_HEAD,
    OPERATOR,
    PAUSE,
    RESTART,
    RESTORE,
    ROLL,
    PlannedFault,
    RoundPlan,
)


class Nodes:
    """Processes that only know their state. ``broken`` is one that cannot start again."""

    bootstrap = ""
    admin = None
    nodes = ("broker-1", "broker-2", "broker-3", "operator")

    def __init__(self, broken: str = "") -> None:
        self.state = dict.fromkeys(self.nodes, "runs")
        self.actions: list[tuple[str, str]] = []
        self.disturbed = threading.Event()
        self._broken = broken

    logs: tuple[Path, ...] = ()

    def create_topics(self, partitions: dict[str, int], tiered: Collection[str] = ()) -> None:
        raise NotImplementedError

    def kill(self, node: str) -> None:
        self._become(node, "killed")

    def stop(self, node: str) -> None:
        self._become(node, "stopped")

    def start(self, node: str) -> None:
        if node == self._broken and self.state[node] == "killed":
            raise RuntimeError(f"{node} does not start")
        if self.state[node] != "held up":
            self._become(node, "runs")

    def signal(self, node: str, number: int) -> None:
        if self.state[node] in ("runs", "held up"):
            self._become(node, "held up" if number == signal.SIGSTOP else "runs")

    def back_up(self) -> None:
        self.actions.append(("etcd", "backed up"))

    def put_back(self) -> None:
        self.actions.append(("etcd", "put back"))

    def heads(self, topic: str) -> dict[int, bytes]:
        return {0: b"older"}

    def put_head_back(self, topic: str, partition: int, body: bytes) -> bool:
        """Refuse the first time, as if a replica did not know the newest head yet."""
        is_known = ("head", "refused") in self.actions
        self.actions.append(("head", body.decode() if is_known else "refused"))
        return is_known

    def tier_trouble(self, topics: Collection[str]) -> str:
        return ""

    def _become(self, node: str, state: str) -> None:
        self.state[node] = state
        self.actions.append((node, state))
        if state != "runs":
            self.disturbed.set()


def _faults(nodes: Nodes, *faults: PlannedFault) -> tuple[Faults, Run]:
    run = Run("", {}, HistoryRecorder(1000), 1)
    return Faults(run, RoundPlan(1, (), faults, 1.0), nodes), run


@pytest.mark.parametrize(
    ("kind", "state"), [(KILL, "killed"), (RESTART, "stopped"), (PAUSE, "held up")]
)
@pytest.mark.parametrize("role", [ANY, OPERATOR])
def test_a_fault_is_recorded_and_its_node_returns(kind: str, state: str, role: str) -> None:
    nodes = Nodes()
    faults, run = _faults(nodes, PlannedFault(kind, role, 0.0, 3600.0))
    faults.start()
    assert nodes.disturbed.wait(30)
    faults.stop()
    assert faults.failure is None
    (event,) = run.recorder.events
    assert event.value["kind"] == f"{kind} {role}"
    assert (event.value["target"], state) in nodes.actions
    assert (event.value["target"] == "operator") == (role == OPERATOR)
    assert set(nodes.state.values()) == {"runs"}


def test_all_brokers_are_restarted_one_after_the_other() -> None:
    nodes = Nodes()
    faults, _ = _faults(nodes, PlannedFault(ROLL, ANY, 0.0, 0.0))
    faults.start()
    faults._thread.join()
    brokers = [node for node in nodes.nodes if node != OPERATOR]
    expected = [(node, state) for node in brokers for state in ("stopped", "runs")]
    assert nodes.actions[: len(expected)] == expected


def test_etcd_is_put_back_while_a_broker_is_down_and_leaders_have_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes()
    faults, _ = _faults(nodes, PlannedFault(RESTORE, ANY, 0.0, 0.0))
    # Every random choice is the first of its options.
    monkeypatch.setattr(faults._chance, "choice", lambda options: next(iter(options)))
    faults.start()
    faults._thread.join()
    assert nodes.actions[:6] == [
        ("etcd", "backed up"),
        ("broker-2", "stopped"),
        ("broker-2", "runs"),
        ("broker-1", "killed"),
        ("etcd", "put back"),
        ("broker-1", "runs"),
    ]


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stays"])
def test_head_is_replaced_while_its_leader_is_paused(
    monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    nodes = Nodes()
    fault = PlannedFault(OLD_HEAD, LEADER if is_killed else ANY, 0.0, 0.0)
    run = Run("", {"b": "h1-b"}, HistoryRecorder(1000), 1)
    faults = Faults(run, RoundPlan(1, (), (fault,), 1.0), nodes)
    monkeypatch.setattr("tests.histories.faults.leaders", lambda *_: {("h1-b", 0): "broker-2"})
    faults.start()
    faults._thread.join()
    assert faults.failure is None
    paused = ("broker-2", "held up")
    # After the replacement, the leader either continues or is killed.
    then = [("broker-2", "killed"), ("broker-2", "runs")] if is_killed else [("broker-2", "runs")]
    # The first attempt is refused. The leader runs, and is paused for another attempt.
    expected = [paused, ("head", "refused"), ("broker-2", "runs")]
    expected += [paused, ("head", "older"), *then]
    assert nodes.actions[: len(expected)] == expected
    (event,) = run.recorder.events
    assert event.value == {"kind": fault.name, "target": "h1-b-0, led by broker-2"}


def test_no_head_is_replaced_before_there_is_one() -> None:
    nodes = Nodes()
    faults, run = _faults(nodes, PlannedFault(OLD_HEAD, ANY, 0.0, 0.0))
    faults.start()
    faults._thread.join()
    assert [event.value["kind"] for event in run.recorder.events] == ["no head yet"]


def test_a_node_that_does_not_return_is_reported_and_the_others_return() -> None:
    nodes = Nodes(broken="operator")
    faults, _ = _faults(nodes, PlannedFault(KILL, OPERATOR, 0.0, 0.0))
    faults.start()
    assert nodes.disturbed.wait(30)
    faults.stop()
    assert str(faults.failure) == "operator does not start"
    assert all(nodes.state[node] == "runs" for node in nodes.nodes[:3])
