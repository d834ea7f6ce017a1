"""Running the tests of a program, each within its time, however it ends.

A program is given all tests that are left. One that takes too long, or takes the program down with
it, has failed; the program is started again with those behind it. So a suite of hundreds costs one
start of its program where nothing goes wrong, and no test is lost where something does.
"""

import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.suites.child_processes import Child
from tests.suites.outcomes import Report, Result, SuiteOutcome
from tests.suites.outputs import Began, Event, OutputReader

_CHUNK = 1 << 16
#: For a program to end once it has run its tests.
_END_S = 10.0
#: So often a program is started that says nothing of any test.
_SILENT_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """``command`` makes the arguments that run some tests, in their order, one at a time;
    ``prepare`` is called before each start, since a test that was ended leaves things as they
    are."""

    command: Callable[[Sequence[str]], list[str]]
    reader: OutputReader
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] = lambda: None


class SuiteBatch:
    """Remaining and running tests of a batch, with their start times.

    It has no clock: times in seconds are parameters.
    """

    def __init__(self, tests: Sequence[str]) -> None:
        self._left = dict.fromkeys(tests)
        self._ended: dict[str, SuiteOutcome] = {}
        self._current: str | None = None
        self._since = 0.0
        self._silent = 0
        self._is_between = False

    @property
    def left(self) -> list[str]:
        """The tests that nothing is known of."""
        return list(self._left)

    @property
    def current(self) -> str | None:
        """The running test: the last that started, else the first that remains."""
        return self._current or next(iter(self._left), None)

    def started(self, now: float) -> None:
        """A program was started for all that are left."""
        self._current, self._since, self._is_between = None, now, False
        self._silent += 1

    def read(self, event: Event, now: float) -> Result | None:
        """The result that it is, if it is a new one."""
        test = event.test
        if test not in self._left and test not in self._ended:
            return None  # a helper process of the suite's own, say
        self._since, self._silent = now, 0
        self._is_between = isinstance(event, Result) and test == self._current
        if isinstance(event, Began):
            # A test that has ended runs again if its result cannot be separated from its
            # neighbours'.
            self._current = test if test in self._left else None
            return None
        return self._noted(event)

    def late_s(self, limit_s: float, now: float) -> float:
        """Return the remaining time of the current test; 0 or less: it is late."""
        return self._since + limit_s - now

    def lost(self, why: str, now: float) -> list[Result]:
        """Handle a program that ended with tests left: the running test has failed.

        If it reported no test twice in a row, a third run would not either, so all remaining tests
        have failed. A program that reports starts may end between two tests: a panic follows the
        result of the test that it ends.
        """
        if self._is_between:
            return []
        gone = [self.current] if self._silent < _SILENT_MAX else self.left
        since = self._since
        return [
            result
            for test in gone
            if test is not None
            and (result := self._noted(Result(test, SuiteOutcome.FAILED, now - since, why)))
        ]

    def _noted(self, result: Result) -> Result | None:
        # A failure is final. A later pass of the same test does not change it.
        if self._ended.get(result.test) in (result.outcome, SuiteOutcome.FAILED):
            return None
        self._left.pop(result.test, None)
        self._ended[result.test] = result.outcome
        self._current = None
        return result


def run(
    program: Program,
    tests: Sequence[str],
    *,
    limit_s: Callable[[str], float],
    log: Path,
    report: Report,
) -> None:
    """Run the tests and append to ``log``.

    All processes that the program starts are ended afterwards.
    """
    batch = SuiteBatch(tests)
    # Each round starts the program for the tests without a result.
    while batch.left:
        why = _run_once(program, batch, limit_s, log, report)
        for result in batch.lost(why, time.monotonic()) if batch.left else ():
            report(result)


def _run_once(
    program: Program,
    batch: SuiteBatch,
    limit_s: Callable[[str], float],
    log: Path,
    report: Report,
) -> str:
    """Until the program has ended, or a test is late; says which."""
    # Repair what the last test left, such as stopped brokers.
    program.prepare()
    batch.started(time.monotonic())
    rest = b""
    with (
        Child(
            program.command(batch.left),
            folder=program.folder,
            environ=program.environ,
            errors=log,
        ) as child,
        selectors.DefaultSelector() as ready,
        log.open("ab") as sink,
    ):
        ready.register(child.output, selectors.EVENT_READ)
        while True:
            # The limit belongs to the running test. After the last one the program has a time to
            # end.
            limit = limit_s(batch.current) if batch.current else _END_S
            left_s = batch.late_s(limit, time.monotonic())
            if left_s <= 0:
                # The stacks of a hanging test are the only trace of what it waits for.
                child.ask_for_stacks()
                return f"took longer than {limit:.0f} s"
            if not ready.select(left_s):
                continue
            chunk = child.output.read1(_CHUNK)
            if not chunk:
                return f"the program ended with status {child.wait(_END_S)} before the test did"
            sink.write(chunk)
            # The last piece may be the beginning of a line.
            *lines, rest = (rest + chunk).split(b"\n")
            _read(program.reader, batch, lines, report)


def _read(reader: OutputReader, batch: SuiteBatch, lines: Sequence[bytes], report: Report) -> None:
    for line in lines:
        for event in reader.read(line.decode(errors="replace")):
            result = batch.read(event, time.monotonic())
            if result is not None:
                report(result)
