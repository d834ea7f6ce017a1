"""Processes of ours that start as copies of one that has imported everything.

A broker or an operator imports for about a CPU second before it does anything, and tests start
hundreds of them. Each test process therefore has one template for each program, which has imported
its modules; a new process is a fork of it that runs the same ``__main__``. Otherwise it behaves as
if it were executed: it has its own arguments, environment, working directory, standard streams,
pid, signals and exit status, and no other descriptors. Programs are executed where they are
measured (``tests/benchmarks``), by the command line (``tests/conformance``, ``e2e``), and in
``tests/unit/test_lean_start.py``.

A request is one message with three descriptors: standard output, standard error, and one to which
the template writes the process's pid at once and its exit status in the end, a line each.
"""

import asyncio
import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.lean_start import importing, leave_out_hypothesis

ROOT = Path(__file__).resolve().parents[1]
#: Bytes of a request: the arguments and the environment.
MAX_REQUEST = 1 << 17


# ------------------------------------------------------------------ what tests use


class Forked:
    """A process: what tests use of ``asyncio.subprocess.Process``."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader, ended: "asyncio.Task[int]") -> None:
        self.pid = pid
        self.stdout = stdout
        self._ended = ended

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    def send_signal(self, number: int) -> None:
        """Nothing happens when it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait for the process and return its exit status."""
        return await asyncio.shield(self._ended)


async def start(program: str, command: Sequence[str], stderr: int) -> Forked:
    """``command`` (this interpreter, then ``-m`` and a module, or a script, then its arguments) as
    a fork of the template of ``program``, the module that it has imported. ``stderr``: a
    descriptor, which stays the caller's. Raises EOFError when the template has ended."""
    interpreter, *words = command
    if interpreter != sys.executable:
        raise ValueError(f"{interpreter} is not this interpreter: it has to be executed")
    # The fork gets what an executed process would inherit.
    request = {"words": words, "environment": dict(os.environ), "folder": str(Path.cwd())}
    # Two pipes: the program's output, and one for its pid and exit status.
    stdout, their_stdout = os.pipe()
    life, their_life = os.pipe()
    given = [their_stdout, stderr, their_life]
    # The descriptors belong to the fork once they are sent.
    try:
        socket.send_fds(_template(program), [json.dumps(request).encode()], given)
    finally:
        os.close(their_stdout)
        os.close(their_life)
    output, output_pipe = await _reader(stdout)
    news, news_pipe = await _reader(life)
    # The first line is the pid, the last one the exit status.
    pid = int(await news.readuntil())

    async def ended() -> int:
        try:
            return int(await news.readuntil())
        finally:
            output_pipe.close()
            news_pipe.close()

    return Forked(pid, output, asyncio.create_task(ended()))


async def _reader(descriptor: int) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader, transport


_templates: dict[str, socket.socket] = {}


def _template(program: str) -> socket.socket:
    """Return the socket of a program's template.

    It is started if it does not run, and ends with this process.
    """
    if program not in _templates:
        # Sequenced packets keep the borders of requests.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = (sys.executable, "-m", "tests.forked_processes", program, str(theirs.fileno()))
        with theirs:
            child = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        _templates[program] = ours
        atexit.register(_end, ours, child)
    return _templates[program]


def _end(requests: socket.socket, child: "subprocess.Popen[bytes]") -> None:
    requests.close()
    child.wait()


# ------------------------------------------------------------------ the template


@dataclass(frozen=True, slots=True)
class Template:
    """Forks itself on request, and reports the ends of its children."""

    requests: int
    #: Pid and where to tell of it, by the descriptor that becomes readable when it ends.
    children: dict[int, tuple[int, int]] = field(default_factory=dict)

    def serve(self) -> dict[str, Any] | None:
        """Return the request in a fork, and None in the template once no client is connected."""
        while True:
            poll = select.poll()
            for descriptor in (self.requests, *self.children):
                poll.register(descriptor, select.POLLIN)
            # Ended children first: their descriptors become readable.
            for descriptor, _ in poll.poll():
                if descriptor in self.children:
                    self._tell_of_the_end(descriptor)
                    continue
                with socket.socket(fileno=os.dup(self.requests)) as asked:
                    data, given, *_ = socket.recv_fds(asked, MAX_REQUEST, 3)
                if not data:
                    return None
                if self._fork(given):
                    return dict(json.loads(data))

    def _fork(self, given: Sequence[int]) -> bool:
        """Fork; return whether this is the child."""
        stdout, stderr, life = given
        pid = os.fork()
        if pid == 0:
            # The child gets the caller's streams and closes everything else of the template.
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            return True
        os.close(stdout)
        os.close(stderr)
        # A pidfd tells of the end without polling, and without the reuse of a pid.
        self.children[os.pidfd_open(pid)] = (pid, life)
        os.write(life, b"%d\n" % pid)
        return False

    def _tell_of_the_end(self, descriptor: int) -> None:
        pid, life = self.children.pop(descriptor)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):  # its test has ended
            os.write(life, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(life)
        os.close(descriptor)


def become(words: Sequence[str], environment: dict[str, str], folder: str) -> None:
    """Run ``words`` as the interpreter would."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def main(program: str, requests: int) -> None:
    """Run as the template of ``program`` until no client is connected."""
    # It ends after those who ask it; forks have what an executed process would inherit.
    inherited = signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave_out_hypothesis()
    with importing():  # no fork's collection looks at it either, and so copies it
        importlib.import_module(program)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError(f"importing {program} starts threads: it cannot be forked")
    asked = Template(requests).serve()
    if asked is not None:
        signal.signal(signal.SIGINT, inherited)
        become(**asked)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
