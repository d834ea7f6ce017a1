"""A program that was started here, with all that it starts itself: it ends with the block."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

_STACKS_S = 5.0
_STOP_S = 30.0
_END_S = 10.0
_POLL_S = 0.02


class Child:
    """A process in a session of its own, so that its group is what it started and nothing else.
    What it says of errors is added to the file ``errors``; its standard output to ``output``, and
    without one it is read from the attribute of that name."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        environ: Mapping[str, str],
        errors: Path,
        output: Path | None = None,
    ) -> None:
        # A session of its own makes its id the id of its group, which includes all that it starts.
        with errors.open("ab") as sink, (output or errors).open("ab") as taken:
            self._process = subprocess.Popen(
                list(command),
                cwd=folder,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if output is None else taken,
                stderr=sink,
                start_new_session=True,
            )
        self._output = self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._signal(signal.SIGKILL)
        if self._output is not None:
            self._output.close()
        self._process.wait()

    @property
    def output(self) -> BufferedReader:
        """Output of the process."""
        assert isinstance(self._output, BufferedReader), "it goes to a file"
        return self._output

    @property
    def alive(self) -> bool:
        """Whether the process itself runs."""
        return self.wait(0) is None

    def wait(self, timeout_s: float) -> int | None:
        """Its status (of a signal: below zero), or None where it does not end. Its id stays its own
        until the block ends."""
        deadline = time.monotonic() + timeout_s
        # WNOWAIT leaves the process a zombie, so its id cannot be given to another one.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while True:
            ended = os.waitid(os.P_PID, self._process.pid, options)
            if ended is not None:
                killed = ended.si_code != os.CLD_EXITED
                return -ended.si_status if killed else ended.si_status
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)

    def stop(self) -> int | None:
        """Ask it to end; its status, None where it had to be killed."""
        self._signal(signal.SIGTERM)
        status = self.wait(_STOP_S)
        if status is None:
            self.kill()
        return status

    def kill(self) -> None:
        """Give it no time."""
        self._signal(signal.SIGKILL)
        self.wait(_END_S)

    def ask_for_stacks(self) -> None:
        """Go and Java print what each of their threads does; others end."""
        self._signal(signal.SIGQUIT)
        self.wait(_STACKS_S)

    def _signal(self, number: int) -> None:
        """The group of a process that has not been waited for has this id and no other."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
