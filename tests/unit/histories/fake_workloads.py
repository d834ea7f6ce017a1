"""Clients' actions in place of a workload, for a process that imports nothing else."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.histories.clients import Run
from tests.histories.plan import RoundPlan
from tests.histories.workload import NothingToJudge


def _note(run: Run) -> None:
    """Record the process id, so that a reader of the history can look for the process."""
    run.recorder.point("client", "note", pid=os.getpid(), topics=run.topics)


def leave_threads(run: Run, plan: RoundPlan, healed: Callable[[], None]) -> None:
    """Leave threads for which an interpreter would wait before it ends."""
    for _ in range(20):
        threading.Thread(target=threading.Event().wait).start()
    _note(run)
    run.said.append((0, "client", "a line of the library"))
    healed()
    run.recorder.invoke("client", "send").ok(offset=None)


def give_up(run: Run, plan: RoundPlan, healed: Callable[[], None]) -> None:
    leave_threads(run, plan, healed)
    raise NothingToJudge("nothing could be read")


def die(run: Run, plan: RoundPlan, healed: Callable[[], None]) -> None:
    _note(run)
    os.kill(os.getpid(), signal.SIGKILL)


def hang(run: Run, plan: RoundPlan, healed: Callable[[], None]) -> None:
    _note(run)
    healed()
    threading.Event().wait()


def await_a_fault(run: Run, plan: RoundPlan, healed: Callable[[], None]) -> None:
    _note(run)
    while not Path(run.bootstrap).exists():
        time.sleep(0.01)
    healed()
