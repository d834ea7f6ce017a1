"""No run of `make e2e` leaves anything on the node, however its starter ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.pods.node import leftovers
from e2e.pods.node.leftovers import folder_made, folder_of

TIMEOUT_S = 20
RUNTIME = "io.containerd.grpc.v1.cri"
#: A run that starts a program which names its folder and outlives it; then the run waits.
RUN = """
import signal, subprocess, sys, time
from pathlib import Path
from e2e.pods.node.leftovers import folder_made
signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent of the tests may ignore it
with folder_made(Path(sys.argv[1])) as folder:
    (folder / "A").mkdir()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)", f"{folder}/A"])
    print(folder, flush=True)
    time.sleep(600)
"""


def started(cache: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a run; return it and its folder."""
    command = [sys.executable, "-c", RUN, str(cache)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    with run.stdout as output:
        return run, Path(output.readline().strip())


def named(folder: Path) -> bool:
    """Return whether a process names the folder."""
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return f"{folder}/" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_folder_is_deleted_with_its_run(tmp_path: Path, number: signal.Signals) -> None:
    run, folder = started(tmp_path / "cache")
    # The folder's name has the process id of the run.
    assert folder == folder_of(tmp_path / "cache", run.pid)
    assert (folder / "A").is_dir()
    run.send_signal(number)
    run.wait(TIMEOUT_S)
    deadline_s = time.monotonic() + TIMEOUT_S
    while folder.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    # With SIGKILL another process has to clean up, including programs of the run.
    assert number == signal.SIGINT or not named(folder)


@pytest.mark.parametrize("hierarchies", [("cpu", "memory"), ("",)], ids=["version 1", "version 2"])
def test_cgroups_of_containers_are_deleted_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hierarchies: tuple[str, ...]
) -> None:
    cgroups = tmp_path / "cgroups"
    monkeypatch.setattr(leftovers, "CGROUPS", cgroups)
    tops = [cgroups / name / leftovers.PARENT for name in hierarchies]
    with folder_made(tmp_path / "cache") as folder:
        # Containers and sandboxes are found in containerd's folder.
        for kind, name in (("sandboxes", "one"), ("containers", "two")):
            (folder / "B" / "data" / "containerd" / RUNTIME / kind / name).mkdir(parents=True)
        for top in tops:
            for name in ("one", "two", "another's"):
                (top / name).mkdir(parents=True)
    for top in tops:
        # Cgroups of live_run programs stay.
        assert [path.name for path in top.iterdir()] == ["another's"]


def test_next_run_deletes_leftovers_of_a_crashed_machine(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import os; print(os.getpid())"]
    # A process id that no longer exists, and one that does.
    ended = subprocess.run(program, capture_output=True, check=True)
    dead_run, live_run = folder_of(tmp_path, int(ended.stdout)), folder_of(tmp_path, os.getppid())
    for folder in (dead_run, live_run):
        (folder / "images").mkdir(parents=True)
    with folder_made(tmp_path) as own_folder:
        # The dead run's folder was deleted, the live one's was not.
        assert sorted(tmp_path.iterdir()) == sorted([own_folder, live_run])
    assert [*tmp_path.iterdir()] == [live_run]
