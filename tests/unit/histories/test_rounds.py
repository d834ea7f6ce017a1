"""A round's clients always end with it, and their recorded events remain."""

import multiprocessing
import os
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.histories.clients_process import DONE, ClientsProcess, Work
from tests.histories.plan import ANY, KILL, TOPICS, PlannedFault, RoundPlan
from tests.histories.rounds import FAULT_IDS, RoundFailed, run_round
from tests.histories.workload import NothingToJudge
from tests.unit.histories.fake_workloads import await_a_fault, die, give_up, hang, leave_threads
from tests.unit.histories.test_faults import Nodes

#: The plan has no faults and 60 s, long before which its clients are done.
PLAN = RoundPlan(1, (), (), 60.0)


class ClientlessCluster(Nodes):
    """Cluster without clients; ``bootstrap`` is a file that exists once a node was disturbed."""

    def __init__(self, file: Path, broken: str = "") -> None:
        super().__init__(broken)
        self.bootstrap = str(file)

    def create_topics(self, partitions: dict[str, int], tiered: Collection[str] = ()) -> None:
        self.topics = partitions

    def kill(self, node: str) -> None:
        super().kill(node)
        Path(self.bootstrap).touch()


@pytest.fixture
def cluster(tmp_path: Path) -> ClientlessCluster:
    return ClientlessCluster(tmp_path / "disturbed")


def _assert_gone(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert multiprocessing.active_children() == []


def test_a_round_leaves_its_history_and_nothing_that_runs(cluster: ClientlessCluster) -> None:
    threads = set(threading.enumerate())
    events = run_round(cluster, PLAN, work=leave_threads)
    recorded = [(event.type, event.f) for event in events]
    assert recorded == [("ok", "said"), ("ok", "note"), ("invoke", "send"), ("ok", "send")]
    note = events[1].value
    assert cluster.topics == {note["topics"][topic]: count for topic, count in TOPICS.items()}
    _assert_gone(note["pid"])
    assert set(threading.enumerate()) == threads


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (give_up, "nothing could be read"),
        (die, "the clients' process ended: SIGKILL"),
        (hang, "clients are not done after 0 s, and were killed"),
    ],
    ids=["give up", "die", "hang"],
)
def test_a_round_that_fails_leaves_its_history_and_nothing_that_runs(
    cluster: ClientlessCluster, work: Work, why: str
) -> None:
    # A client that hangs is not given a minute.
    done_s = 0.1 if work is hang else 60.0
    with pytest.raises(RoundFailed) as failed:
        run_round(cluster, PLAN, work=work, done_s=done_s)
    assert str(failed.value) == why
    _assert_gone(next(event.value["pid"] for event in failed.value.events if event.f == "note"))


def test_faults_are_in_the_history_and_a_missing_node_is_reported(tmp_path: Path) -> None:
    plan = RoundPlan(1, (), (PlannedFault(KILL, ANY, 0.0, 0.0),), 60.0)
    cluster = ClientlessCluster(tmp_path / "disturbed", broken="broker-2")
    cluster.nodes = ("broker-2",)
    with pytest.raises(RoundFailed) as failed:
        run_round(cluster, plan, work=await_a_fault)
    assert str(failed.value) == "a node did not come back: broker-2 does not start"
    by_name = {event.f: event for event in failed.value.events}
    assert {f: event.id for f, event in by_name.items()} == {"note": 1, "fault": FAULT_IDS}
    assert by_name["fault"].value["target"] == "broker-2"
    _assert_gone(by_name["note"].value["pid"])


@pytest.mark.parametrize("is_interrupted", [True, False], ids=["interrupted", "gone"])
def test_clients_do_not_outlive_their_parent(
    cluster: ClientlessCluster, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """Clients end at Ctrl-C and after a parent that could not stop them."""
    hear, pids = ClientsProcess.hear, []

    def until_done(clients: ClientsProcess, message: str, seconds: float) -> None:
        if message != DONE:
            hear(clients, message, seconds)
            return
        pids.append(clients._process.pid)
        # The parent is interrupted, or its connection breaks as if it had been killed.
        if is_interrupted:
            raise KeyboardInterrupt
        clients._connection.close()
        clients._process.join(60)
        raise NothingToJudge(f"exit code {clients._process.exitcode}")

    monkeypatch.setattr(ClientsProcess, "hear", until_done)
    with pytest.raises(KeyboardInterrupt if is_interrupted else RoundFailed) as ended:
        run_round(cluster, PLAN, work=hang)
    assert str(ended.value) == ("" if is_interrupted else "exit code 1")
    _assert_gone(pids[0])
