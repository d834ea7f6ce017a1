"""Start a server as a child process, wait until it is ready, and stop it.

A child runs in its own session: Ctrl-C reaches only the starter, which then stops its children in
order. A child that is not detached also ends if its starter dies in any way: its standard input is
a pipe from the starter, and it stops when the pipe closes.
"""

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tidemark_devcluster.layout import private_dir

logger = logging.getLogger(__name__)

POLL_S = 0.02
TAIL_BYTES = 4000
KILL_WAIT_S = 5.0
STOP_TIMEOUT_S = 30.0

# A Popen that is garbage-collected while its process runs warns. Detached children keep running, so
# their Popen objects live as long as this process.
_detached: list["subprocess.Popen[bytes]"] = []


class ServerStartError(RuntimeError):
    """Server that did not become ready; the message quotes the end of its output."""


@dataclass(slots=True)
class ServerProcess:
    """Server that was started here; ``errors`` is the file with its output."""

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
        """Start a server as a child process; both output streams go to the file ``errors``.

        ``name``: for messages. Unless ``detached``, the server ends with this process. ``environ``
        None: this process's environment.
        """
        # Only the user may read the server's output.
        private_dir(errors.parent)
        with errors.open("wb") as sink:
            # A pipe as standard input tells the child when this process ends. A session of its own
            # keeps the terminal's signals away from it.
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
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    def await_ready(self, is_ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until the server is ready; after the timeout stop it and raise StartError."""
        deadline_s = time.monotonic() + timeout_s
        while not is_ready():
            if not self.alive:
                self._release()
                raise ServerStartError(f"{self.name} ended while it started: {self._tail()}")
            if time.monotonic() > deadline_s:
                self.stop(timeout_s=KILL_WAIT_S)
                raise ServerStartError(
                    f"{self.name} is not ready after {timeout_s:.0f} s: {self._tail()}"
                )
            time.sleep(POLL_S)

    def stop(self, *, timeout_s: float) -> bool:
        """Send SIGTERM, then SIGKILL after the timeout; return False if it had to be killed."""
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
        return output or f"it printed nothing; see {self.errors.parent}"


@dataclass(slots=True, kw_only=True)
class Server:
    """Server that runs in a folder; a context manager that stops it. The data stays."""

    data_dir: Path
    process: ServerProcess

    @property
    def pid(self) -> int:
        """Return the id of the process to signal."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.alive

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Stop the server; return False if it had to be killed."""
        return self.process.stop(timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
