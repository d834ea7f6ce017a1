"""Process of a round's clients, which ends with the round.

A library's instance that hangs, or that cannot be closed, keeps its threads (some nine each) and
its memory until then, and a run of an hour would have thousands. The history is returned as a file,
which contains the recorded events even if the process dies.
"""

import faulthandler
import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.histories.clients import Run
from tests.histories.events import HistoryRecorder
from tests.histories.librdkafka_logs import write_down
from tests.histories.plan import RoundPlan
from tests.histories.workload import NothingToJudge

#: Maximum number of events in a history; with everything that the checker derives from it, it fits
#: a gigabyte of memory.
EVENTS_MAX = 500_000
#: To end, once it has said that it is done.
ENDED_S = 10.0

#: What the two processes tell one another, in this order, or FAILED with a reason.
BEGUN, DISTURBED, HEALED, DONE, FAILED = "begun", "disturbed", "healed", "done", "failed"

#: What clients do: raises :class:`NothingToJudge`.
Work = Callable[[Run, RoundPlan, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Job:
    """Input of the clients' process.

    ``began_ns``: of the monotonic clock that all processes of a machine share.
    """

    bootstrap: str
    topics: dict[str, str]
    plan: RoundPlan
    began_ns: int
    history: Path
    work: Work


class ClientsProcess:
    """A process that is started fresh, because a fork would inherit a library's locks without its
    threads.

    It is killed at the end of the ``with``.
    """

    def __init__(self, job: Job) -> None:
        context = get_context("spawn")
        self._connection, self._theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(job, self._theirs), name="clients", daemon=True
        )

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()  # so that its end is the end of the connection
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The process is given time only after success: after an error its state no longer matters.
        if error is None:
            self._process.join(ENDED_S)
        # Library threads that hang would keep it alive.
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()

    def say(self, what: str) -> None:
        """Send a message. :meth:`hear` detects a process that has ended."""
        with suppress(OSError):
            self._connection.send(what)

    def hear(self, what: str, seconds: float) -> None:
        """Wait until it says so. Raises :class:`NothingToJudge` if it says otherwise, or dies, or
        takes longer."""
        if not self._connection.poll(seconds):
            raise NothingToJudge(f"clients are not {what} after {seconds:.0f} s, and were killed")
        try:
            said, why = self._connection.recv()
        # The pipe ends when the process does, before it could say why.
        except (EOFError, OSError):
            self._process.join(ENDED_S)
            raise NothingToJudge(f"the clients' process ended: {self._ending()}") from None
        if said != what:
            raise NothingToJudge(why)

    def _ending(self) -> str:
        code = self._process.exitcode
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"


def _serve(job: Job, connection: Connection) -> None:
    """The clients' process. It does not end as others do, which would wait for the libraries."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who is at the terminal means the whole run
    faulthandler.enable()
    healed = threading.Event()
    # A thread listens, because the workload may be blocked in the library.
    threading.Thread(target=_listen, args=(connection, healed), daemon=True).start()
    # Unbuffered, so that every recorded event survives a kill.
    with job.history.open("ab", buffering=0) as into:
        recorder = HistoryRecorder(EVENTS_MAX, began_ns=job.began_ns, into=into)
        run = Run(job.bootstrap, job.topics, recorder, job.plan.seed)

        def until_healed() -> None:
            connection.send((DISTURBED, ""))
            healed.wait()

        try:
            connection.send((BEGUN, ""))
            job.work(run, job.plan, until_healed)
            answer = (DONE, "")
        # The parent reports the reason. The trace is printed here, where it exists.
        except NothingToJudge as error:
            if error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            answer = (FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - a mistake of the workload's own fails the round
            traceback.print_exc()
            answer = (FAILED, f"the workload failed: {error!r}")
        write_down(run.said, recorder)
    connection.send(answer)
    # An ordinary exit would wait for library threads, of which some may hang.
    os._exit(0)


def _listen(connection: Connection, healed: threading.Event) -> None:
    """End this process when the connection ends, because the parent no longer exists."""
    while True:
        try:
            connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        healed.set()
