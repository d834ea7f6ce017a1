"""Parsers for the output of running test programs: Go's, pytest's, Rust's.

Each parser reads one line and yields its events: a test has started (or resumed after others), or
has an outcome. Go's tests have subtests; only the outer ones count, as in the figures that suites
publish.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tests.suites.outcomes import Result, SuiteOutcome


@dataclass(frozen=True, slots=True)
class Began:
    """A test runs from now on."""

    test: str


Event = Began | Result

#: The words of all of them.
_OUTCOMES = {
    **dict.fromkeys(("PASS", "PASSED", "XPASS", "ok"), SuiteOutcome.PASSED),
    **dict.fromkeys(("SKIP", "SKIPPED", "XFAIL", "ignored"), SuiteOutcome.SKIPPED),
    **dict.fromkeys(("FAIL", "FAILED", "ERROR"), SuiteOutcome.FAILED),
}


class OutputReader(Protocol):
    """One for each kind of program."""

    def read(self, line: str) -> Iterator[Event]:
        """Yield the events of a line."""


class GoTest:
    """``-test.v=test2json``: a byte 0x16 stands before each mark, wherever in a line it is."""

    _BEGAN = re.compile(r"\x16=== (?:RUN|CONT) +([^\s/]+)\s*$")
    _ENDED = re.compile(r"\x16--- (PASS|FAIL|SKIP): ([^\s/]+) \(([\d.]+)s\)")

    def read(self, line: str) -> Iterator[Event]:
        if found := self._BEGAN.search(line):
            yield Began(found[1])
        elif found := self._ENDED.search(line):
            yield Result(found[2], _OUTCOMES[found[1]], float(found[3]))


class Pytest:
    """``pytest -v``, not on a terminal. A test that passed may fail once more, as it is taken
    down."""

    _ENDED = re.compile(
        r"^(\S+?::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: \(.*\))?\s*(?:\[ *\d+%\].*)?$"
    )

    def read(self, line: str) -> Iterator[Event]:
        if found := self._ENDED.match(line.rstrip()):
            yield Result(found[1], _OUTCOMES[found[2]])


@dataclass(frozen=True, slots=True)
class RustTest:
    """``--test-threads=1``; ``program`` goes before each name of a test."""

    program: str

    def read(self, line: str) -> Iterator[Event]:
        found = re.search(r"\btest (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", line)
        if found:
            yield Result(f"{self.program}::{found[1]}", _OUTCOMES[found[2]])
