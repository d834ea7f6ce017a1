"""Suites of programs that are no tests by themselves: each check runs some and looks at what they
say.

A check is a function that raises where something is not as it should be; it has a cluster, a folder
and a time by which all that it starts has to be done.
"""

import itertools
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.suites.child_processes import Child
from tests.suites.outcomes import Report, Result, SuiteOutcome
from tests.suites.targets import SuiteTarget, bootstrap

_POLL_S = 0.1
_SAID_CHARS = 2000
#: Most programs end after a second or two, so optimizations for longer runs are disabled.
_JAVA = ("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_names = itertools.count(1)


class CheckFailed(Exception):
    """Failed check, with the program's output."""


class Running:
    """A Java program in the background; what it says is in a file."""

    def __init__(self, name: str, child: Child, log: Path, deadline: float) -> None:
        self._name = name
        self._child = child
        self._log = log
        self._deadline = deadline

    @property
    def said(self) -> str:
        """All of it so far."""
        return self._log.read_text("utf-8", errors="replace")

    def await_said(self, text: str) -> None:
        """Until it has said this."""
        # The output is read once more after the end, as the text may have come last.
        while text not in self.said:
            if not self._child.alive and text not in self.said:
                raise CheckFailed(f"{self._name} ended and never said {text!r}: {self._tail()}")
            if time.monotonic() > self._deadline:
                raise CheckFailed(f"{self._name} never said {text!r}: {self._tail()}")
            time.sleep(_POLL_S)

    def await_end(self) -> str:
        """Until it has ended well; all that it said."""
        status = self._child.wait(max(0.0, self._deadline - time.monotonic()))
        if status != 0:
            raise CheckFailed(f"{self._name} ended with {status}: {self._tail()}")
        return self.said

    def stop(self) -> None:
        """Ask it to end, and wait."""
        self._child.stop()

    def kill(self) -> None:
        """Give it no time to say anything."""
        self._child.kill()

    def _tail(self) -> str:
        return self.said[-_SAID_CHARS:]


class CheckBench:
    """Tools of a check."""

    def __init__(self, target: SuiteTarget, jars: Path, folder: Path, limit_s: float) -> None:
        self.target = target
        self.folder = folder
        self.deadline = time.monotonic() + limit_s
        self._jars = jars
        self._running = ExitStack()

    @property
    def server(self) -> tuple[str, str]:
        """Options that nearly every program of Kafka requires."""
        return ("--bootstrap-server", bootstrap(self.target))

    def name(self, kind: str) -> str:
        """A name for a topic or a group that no other check has."""
        return f"{kind}-{next(_names)}"

    def file(self, name: str, content: str) -> str:
        """The path of a new file."""
        path = self.folder / name
        path.write_text(content, encoding="utf-8")
        return str(path)

    def java(self, program: str, *arguments: str, stdin: str = "") -> str:
        """Run a program; what it printed. Raises :class:`CheckFailed` unless it ends well."""
        try:
            done = subprocess.run(
                self._command(program, arguments),
                check=False,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=max(1.0, self.deadline - time.monotonic()),
            )
        except subprocess.TimeoutExpired as error:
            # What a program printed before its timeout usually names the cause.
            so_far = b"".join(item for item in (error.stdout, error.stderr) if item).decode(
                errors="replace"
            )
            raise CheckFailed(f"{program} did not end in time: {so_far[-_SAID_CHARS:]}") from error
        said = done.stdout + done.stderr
        # One log of all programs, in order, for a look afterwards.
        with (self.folder.parent / "output.log").open("a", encoding="utf-8") as log:
            log.write(f"{self.folder.name}: {program} {' '.join(arguments)}\n{said}\n")
        if done.returncode:
            raise CheckFailed(f"{program} ended with {done.returncode}: {said[-_SAID_CHARS:]}")
        return said

    def start(self, program: str, *arguments: str) -> Running:
        """Start a program that runs until the check ends."""
        log = self.folder / f"{program.rpartition('.')[2]}-{next(_names)}.log"
        child = Child(
            self._command(program, arguments),
            folder=self.folder,
            environ={},
            errors=log,
            output=log,
        )
        self._running.enter_context(child)
        return Running(program, child, log, self.deadline)

    def rest_a_moment(self, seen: str) -> None:
        """Before one looks again; fails with what was seen once there is no time left."""
        if time.monotonic() > self.deadline:
            raise CheckFailed(seen)
        time.sleep(_POLL_S)

    def topic(self, partitions: int = 1, *configs: str) -> str:
        """A new topic with as many replicas as there are brokers, three at most."""
        name = self.name("topic")
        settings = [item for config in configs for item in ("--config", config)]
        self.java(
            "org.apache.kafka.tools.TopicCommand",
            *(*self.server, "--create", "--topic", name, "--partitions", str(partitions)),
            *("--replication-factor", str(min(3, len(self.target.listeners))), *settings),
        )
        return name

    def close(self) -> None:
        """End what was started."""
        self._running.close()

    def _command(self, program: str, arguments: Sequence[str]) -> list[str]:
        """``program``: a class of the jars, or a file with the source of one."""
        own = f"-Djava.io.tmpdir={self.folder}"
        return [*_JAVA, own, "-cp", f"{self._jars}/*", program, *arguments]


Check = Callable[[CheckBench], None]


@dataclass(frozen=True, slots=True)
class ReadyChecks:
    """Checks that have their jars; named as their functions are."""

    checks: dict[str, Check]
    jars: Path
    limit_s: float

    @property
    def tests(self) -> Sequence[str]:
        return list(self.checks)

    def run(self, tests: Sequence[str], target: SuiteTarget, folder: Path, report: Report) -> None:
        for test in tests:
            own = folder / test
            own.mkdir()
            report(
                run_check(test, self.checks[test], CheckBench(target, self.jars, own, self.limit_s))
            )


def run_check(name: str, check: Check, bench: CheckBench) -> Result:
    """Run a check, end everything that it started, and return the outcome."""
    began = time.monotonic()
    try:
        check(bench)
    except (CheckFailed, AssertionError, subprocess.SubprocessError, OSError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        return Result(name, SuiteOutcome.FAILED, time.monotonic() - began, said)
    finally:
        bench.close()
    return Result(name, SuiteOutcome.PASSED, time.monotonic() - began)


def named(*checks: Check) -> dict[str, Check]:
    """Return the checks by the names of their functions."""
    return {check.__name__: check for check in checks}
