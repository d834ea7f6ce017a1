"""A start of the control plane after a kill -9 of the one before."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemark_devcluster.controlplane.launcher import await_end_of_killed
from tidemark_devcluster.controlplane.process import ServerStartError

#: Holds the lock with a program that inherits it, as the control plane does, and waits.
HOLDER = """
import fcntl, os, subprocess, sys, time
file = open(sys.argv[1], "w+")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(f"{os.getpid()}\\n")
file.flush()
program = [sys.executable, "-c", "import sys, time; time.sleep(float(sys.argv[1]))", sys.argv[2]]
subprocess.Popen(program, pass_fds=[file.fileno()])
print("ready", flush=True)
time.sleep(60)
"""

Hold = Callable[[float], "subprocess.Popen[str]"]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Start a holder whose program runs for some seconds."""
    started: list[subprocess.Popen[str]] = []

    def start(program_s: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock"), str(program_s)]
        # A group of its own, so that the test ends the program too.
        holder = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        return holder

    yield start
    for holder in started:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()


def kill(holder: "subprocess.Popen[str]") -> None:
    """Kill a holder, and leave it a zombie, as the child of an earlier command may be."""
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)


def test_start_waits_for_the_programs_of_a_killed_control_plane(hold: Hold, tmp_path: Path) -> None:
    """Programs may need longer than the three seconds that a control plane itself waits."""
    holder = hold(4.0)
    began = time.monotonic()
    kill(holder)
    await_end_of_killed(tmp_path)
    assert time.monotonic() - began > 3.0


def test_programs_that_do_not_end_are_named(hold: Hold, tmp_path: Path) -> None:
    holder = hold(30.0)
    kill(holder)
    with pytest.raises(ServerStartError, match=f"process {holder.pid}.*still uses {tmp_path}"):
        await_end_of_killed(tmp_path, timeout_s=0.2)


def test_start_does_not_wait_for_a_control_plane_that_runs(hold: Hold, tmp_path: Path) -> None:
    hold(30.0)
    began = time.monotonic()
    await_end_of_killed(tmp_path)
    assert time.monotonic() - began < 2.0


def test_a_free_folder_is_used_at_once(tmp_path: Path) -> None:
    await_end_of_killed(tmp_path)
    (tmp_path / "lock").write_text("1\n")
    await_end_of_killed(tmp_path)
    await_end_of_killed(tmp_path)
