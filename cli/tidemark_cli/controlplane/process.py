"""Starting a server as a child process, waiting until it is ready, and stopping it again.

A child runs in a session of its own, so that Ctrl-C reaches the starter alone, which then stops its
children in order. A child that is not detached also ends when its starter dies, however that
happens: its standard input is a pipe from the starter, and it stops when that ends.
"""

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

logger = logging.getLogger(__name__)

PRIVATE_DIR = 0o700
POLL_S = 0.02
TAIL_BYTES = 4000
KILL_WAIT_S = 5.0
STOP_TIMEOUT_S = 30.0

# A Popen that is collected while its process runs warns. A detached child is meant to run on, so
# its Popen is kept for as long as this process lives.
_detached: list["subprocess.Popen[bytes]"] = []


class StartError(RuntimeError):
    """A server did not become ready; the message quotes the end of what it said."""


def private_dir(path: Path) -> Path:
    """Make a folder that only its owner can enter; its absolute path."""
    path.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR)
    path.chmod(PRIVATE_DIR)
    return path.resolve()


@dataclass(slots=True)
class ServerProcess:
    """A server that was started here. ``errors`` is the file with its standard error."""

    name: str
    errors: Path
    child: "subprocess.Popen[bytes]"

    @classmethod
    def spawn(
        cls,
        name: str,
        command: Sequence[str],
        *,
        errors: Path,
        detached: bool,
        environ: Mapping[str, str] | None = None,
    ) -> "ServerProcess":
        """Start ``command``. What it says on its two output streams goes to ``errors``."""
        private_dir(errors.parent)
        with errors.open("wb") as sink:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                env=dict(environ) if environ is not None else None,
                start_new_session=True,
            )
        if detached:
            _detached.append(child)
        logger.info("started %s (process %d)", name, child.pid)
        return cls(name, errors, child)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.child.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.child.poll() is None

    def await_ready(self, is_ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait for a condition; when it does not come, stop the process and raise StartError."""
        deadline_s = time.monotonic() + timeout_s
        while not is_ready():
            if not self.alive:
                self._release()
                raise StartError(f"{self.name} ended while it started: {self._tail()}")
            if time.monotonic() > deadline_s:
                self.stop(timeout_s=KILL_WAIT_S)
                raise StartError(
                    f"{self.name} is not ready after {timeout_s:.0f} s: {self._tail()}"
                )
            time.sleep(POLL_S)

    def stop(self, *, timeout_s: float) -> bool:
        """Ask the process to stop, then kill it; False where it had to be killed."""
        clean = True
        if self.alive:
            self.child.terminate()
            try:
                self.child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                logger.warning("%s did not stop in %.0f s: killed", self.name, timeout_s)
                clean = False
                self.child.kill()
                self.child.wait(KILL_WAIT_S)
        self._release()
        return clean

    def _release(self) -> None:
        if self.child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.child.stdin.close()

    def _tail(self) -> str:
        with self.errors.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            output = file.read().decode(errors="replace").strip()
        return output or f"it said nothing; see {self.errors.parent}"


@dataclass(slots=True, kw_only=True)
class Server:
    """A server that runs in a folder; a context manager that stops it. Its data stays."""

    data_dir: Path
    process: ServerProcess

    @property
    def pid(self) -> int:
        """The one process to signal."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.alive

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Stop it. False where it had to be killed."""
        return self.process.stop(timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
