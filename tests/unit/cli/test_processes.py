"""Processes of a local cluster: none is lost, mistaken for another, or left as a zombie."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidemark_cli.cluster.up import await_interrupt
from tidemark_devcluster import processes
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.layout import Layout
from tidemark_devcluster.settings import LocalClusterSettings

SETTINGS = LocalClusterSettings(
    cluster="local",
    namespace="default",
    tier="directory",
    kubeconfig="",
    control_port=0,
    metrics_port=0,
)
READY = 'print(\'{"ready": true, "port": 7}\', flush=True); '
SLEEPS = READY + "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    + READY
    + "time.sleep(60)"
)


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    made = Layout(tmp_path / "cluster")
    made.create()
    yield made
    for record in processes.running(made):
        processes.kill(made, record)


def start(layout: Layout, code: str, *, timeout_s: float = 20) -> processes.ProcessRecord:
    return processes.ensure(layout, "one", [sys.executable, "-c", code], timeout_s=timeout_s)


def exists(pid: int) -> bool:
    """Return whether a process or its zombie exists."""
    return Path(f"/proc/{pid}").exists()


def test_started_process_is_found_with_its_ready_line(layout: Layout) -> None:
    record = start(layout, SLEEPS)
    assert record.ready["port"] == 7
    assert processes.find(layout, "one") == record
    assert processes.running(layout) == [record]


def test_a_process_that_is_stopped_leaves_neither_record_nor_zombie(layout: Layout) -> None:
    record = start(layout, SLEEPS)
    assert processes.stop(layout, record, timeout_s=20)
    assert not exists(record.pid)
    assert processes.running(layout) == []


def test_process_that_was_killed_by_others_is_reaped(layout: Layout) -> None:
    record = start(layout, SLEEPS)
    os.kill(record.pid, signal.SIGKILL)
    # Wait for its end, and leave it a zombie.
    os.waitid(os.P_PID, record.pid, os.WEXITED | os.WNOWAIT)
    assert exists(record.pid), "a zombie until it is reaped"
    assert processes.running(layout) == []
    assert not exists(record.pid)


def test_a_process_that_does_not_stop_on_request_is_killed(layout: Layout) -> None:
    record = start(layout, STUBBORN)
    assert not processes.stop(layout, record, timeout_s=0.2)
    assert not exists(record.pid)


def test_an_id_that_the_kernel_gave_to_another_process_is_not_signalled(layout: Layout) -> None:
    record = start(layout, SLEEPS)
    # The record is of an earlier process with the same id.
    former = replace(record, start_ticks=record.start_ticks - 1)
    assert not former.alive()
    processes.kill(layout, former)
    # The process still runs. Its own record can end it.
    assert record.alive()
    record.signal(signal.SIGKILL)
    assert record.wait_ended(20)


@pytest.mark.parametrize(
    ("code", "timeout_s", "message"),
    [
        ("import sys; sys.exit('no such disk')", 20, "ended with status 1.*\n.*no such disk"),
        ("import time; time.sleep(60)", 0.3, "was not ready after 0 s"),
    ],
    ids=["ends", "silent"],
)
def test_a_start_that_fails_quotes_the_log_and_leaves_nothing(
    layout: Layout, code: str, timeout_s: float, message: str
) -> None:
    with pytest.raises(processes.ProcessStartError, match=message):
        start(layout, code, timeout_s=timeout_s)
    assert processes.running(layout) == []
    assert list(layout.run.iterdir()) == []


WAITS = (
    "import pathlib, time\n"
    "while not pathlib.Path('{go}').exists(): time.sleep(0.01)\n"
    'print(\'{{"ready": true, "port": 8}}\', flush=True); time.sleep(60)'
)
OTHER = """
import pathlib, sys
from tidemark_cli.cluster.up import await_interrupt
from tidemark_devcluster import processes
from tidemark_devcluster.layout import Layout
command = [sys.executable, "-c", sys.argv[2]]
processes.ensure(Layout(pathlib.Path(sys.argv[1])), "one", command, timeout_s=60)
"""


@pytest.fixture
def not_ready(layout: Layout, tmp_path: Path) -> processes.ProcessRecord:
    """Return a process whose starter was killed before the ready line.

    The process becomes ready once the file ``go`` exists.
    """
    code = WAITS.format(go=tmp_path / "go")
    other = subprocess.Popen([sys.executable, "-c", OTHER, str(layout.root), code])
    # The starter records the process, and then waits for its ready line.
    while (found := processes.find(layout, "one")) is None:
        assert other.poll() is None
        time.sleep(0.01)
    other.kill()
    other.wait()
    return found


def ensure(layout: Layout, *, timeout_s: float) -> processes.ProcessRecord:
    return processes.ensure(layout, "one", [sys.executable, "-c", SLEEPS], timeout_s=timeout_s)


def test_a_process_that_is_not_ready_yet_is_waited_for(
    layout: Layout, not_ready: processes.ProcessRecord, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    record = ensure(layout, timeout_s=20)
    assert (record.pid, record.ready["port"]) == (not_ready.pid, 8)
    assert ensure(layout, timeout_s=0) == record


def test_a_process_that_never_becomes_ready_is_restarted(
    layout: Layout, not_ready: processes.ProcessRecord
) -> None:
    with pytest.raises(processes.ProcessStartError, match="was not ready after 0 s"):
        ensure(layout, timeout_s=0.1)
    assert processes.running(layout) == []
    record = ensure(layout, timeout_s=20)
    assert record.pid != not_ready.pid
    assert record.ready["port"] == 7


def test_a_process_that_is_not_ready_yet_has_no_address(
    layout: Layout, not_ready: processes.ProcessRecord
) -> None:
    # Turn the process into a broker that has not reported its address.
    (layout.run / "one.json").rename(layout.run / "broker-1.json")
    text = (layout.run / "broker-1.json").read_text().replace('"one"', '"broker-1"')
    (layout.run / "broker-1.json").write_text(text)
    found = LocalCluster(layout, SETTINGS, print).addresses()
    assert found.processes == {"broker-1": not_ready.pid}
    assert found.bootstrap == ""


def test_a_waiting_up_ends_when_another_command_stops_its_processes(layout: Layout) -> None:
    started = [start(layout, SLEEPS)]
    stopping = threading.Timer(0.3, processes.stop, (layout, started[0]), {"timeout_s": 20})
    stopping.start()
    assert not await_interrupt(threading.Event(), started)
    stopping.join()


def test_an_interrupt_stops_only_the_processes_of_its_own_start(layout: Layout) -> None:
    """A newer cluster in the same folder has processes of the same names."""
    interrupted = threading.Event()
    interrupted.set()
    started = [start(layout, SLEEPS)]
    assert await_interrupt(interrupted, started)
    processes.stop(layout, started[0], timeout_s=20)
    newer = start(layout, SLEEPS)
    assert not await_interrupt(interrupted, started)
    assert newer.alive()


def test_a_failed_start_stops_only_processes_that_it_started(
    layout: Layout, not_ready: processes.ProcessRecord
) -> None:
    """Another command may start the same cluster at the same time."""
    own = processes.ensure(layout, "two", [sys.executable, "-c", SLEEPS], timeout_s=20)
    assert LocalCluster(layout, SETTINGS, print).stop(only_own=True) == ["two"]
    assert not_ready.alive()
    assert not own.alive()
