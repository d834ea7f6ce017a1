"""Run programs that cannot stop by themselves when their starter dies.

This small process starts the programs and stops them in reverse order on SIGTERM, SIGINT or the end
of its standard input. It ends when one of them ends. On Linux the kernel kills the programs if this
process is killed. ``python -m tidemark_devcluster.controlplane.supervisor COMMAND …`` supervises
one program.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType

POLL_S = 0.1
STOP_TIMEOUT_S = 20.0
PR_SET_PDEATHSIG = 1


class Supervisor:
    """Supervisor of child programs; for the main thread only, as it handles signals.

    ``watch_stdin``: stop at the end of standard input.
    """

    def __init__(self, *, watch_stdin: bool) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self._watch_stdin = watch_stdin
        self._stopping = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def start(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        log: Path | None = None,
        keep_open: Sequence[int] = (),
    ) -> None:
        """Start a program under supervision, with its output in ``log`` if given.

        ``folder``: its working directory. It inherits the file descriptors ``keep_open``, so that a
        lock stays held until it has ended.
        """
        # Without a log the program writes to this process's own output.
        sink = log.open("wb") if log else None
        # Children die with this process even if it is killed. Linux alone can guarantee that.
        try:
            child = subprocess.Popen(
                list(command),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                pass_fds=keep_open,
                preexec_fn=partial(_die_with, os.getpid()) if sys.platform == "linux" else None,  # noqa: PLW1509 - this process has one thread
            )
        # The child has a copy of the descriptor.
        finally:
            if sink:
                sink.close()
        self._children.append(child)

    def should_stop(self, wait_s: float) -> bool:
        """Wait up to ``wait_s`` seconds and return whether there is a reason to stop."""
        readable, _, _ = select.select([sys.stdin] if self._watch_stdin else [], [], [], wait_s)
        # An empty read is the end of the pipe: the starter has ended.
        if readable and not os.read(sys.stdin.fileno(), 4096):
            self._stopping = True
        return self._stopping or any(child.poll() is not None for child in self._children)

    def run(self) -> int:
        """Wait for a reason to stop, stop all programs, and return the exit status for this
        process.
        """
        while not self.should_stop(POLL_S):
            pass
        return self.stop()

    def stop(self) -> int:
        """Stop all programs, last first; return 0 if a stop was requested, 1 if a program ended
        itself.
        """
        for child in reversed(self._children):
            child.terminate()
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        return 0 if self._stopping else 1

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True


def _die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The kernel sends nothing for a parent that died before the call.
    if os.getppid() != parent:
        os._exit(1)


def main(command: Sequence[str]) -> int:
    """Run one program until standard input ends or a signal arrives."""
    supervisor = Supervisor(watch_stdin=True)
    supervisor.start(command)
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
