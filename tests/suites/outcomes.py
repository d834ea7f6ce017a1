"""Outcome of one test of a suite."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class SuiteOutcome(StrEnum):
    """As all suites know them."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """``test`` as the suite names it; ``said``: why it failed, where that is not in the log."""

    test: str
    outcome: SuiteOutcome
    seconds: float = 0.0
    said: str = ""


#: Callback for each result as soon as it is known.
Report = Callable[[Result], None]
