"""``results.json``: what became of each suite, against ours and against Apache Kafka, the last time
that all of it was run. Of tests that passed it has the number, of the others the names.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.suites.outcomes import Result, SuiteOutcome

RESULTS = Path(__file__).with_name("results.json")
OURS, KAFKAS = "Tidemark", "Apache Kafka"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run of all tests of a suite."""

    passed: int
    failed: tuple[str, ...]
    skipped: tuple[str, ...]

    @classmethod
    def of(cls, results: Iterable[Result]) -> "Recorded":
        """The last word on each test is what counts."""
        last = {result.test: result.outcome for result in results}
        return cls(
            sum(outcome is SuiteOutcome.PASSED for outcome in last.values()),
            tuple(sorted(test for test in last if last[test] is SuiteOutcome.FAILED)),
            tuple(sorted(test for test in last if last[test] is SuiteOutcome.SKIPPED)),
        )

    @property
    def outcomes(self) -> dict[str, SuiteOutcome]:
        """Outcomes of the tests that did not pass."""
        return dict.fromkeys(self.failed, SuiteOutcome.FAILED) | dict.fromkeys(
            self.skipped, SuiteOutcome.SKIPPED
        )

    def as_json(self) -> dict[str, object]:
        """As the file has it."""
        return {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}


@dataclass(frozen=True, slots=True)
class SuiteRecord:
    """``title``: with the version that was run; ``sides``: by the name of the software."""

    title: str
    sides: Mapping[str, Recorded]


def load(text: str) -> dict[str, SuiteRecord]:
    """Parse the results by suite name."""
    return {
        name: SuiteRecord(entry["title"], {side: _side(entry[side]) for side in _sides(entry)})
        for name, entry in json.loads(text).items()
    }


def dumped(records: Mapping[str, SuiteRecord]) -> str:
    """The text that :func:`load` reads, the same for the same records."""
    plain = {
        name: {"title": record.title}
        | {side: record.sides[side].as_json() for side in sorted(record.sides)}
        for name, record in sorted(records.items())
    }
    return json.dumps(plain, indent=1) + "\n"


def noted(
    records: Mapping[str, SuiteRecord], suite: str, title: str, side: str, run: Recorded
) -> dict[str, SuiteRecord]:
    """Return the records with one more run. Those of another version of the suite are dropped."""
    before = records.get(suite)
    # Results of another version are not comparable.
    kept = dict(before.sides) if before is not None and before.title == title else {}
    return {**records, suite: SuiteRecord(title, {**kept, side: run})}


def _sides(entry: Mapping[str, Any]) -> list[str]:
    return [side for side in (OURS, KAFKAS) if side in entry]


def _side(value: Mapping[str, Any]) -> Recorded:
    return Recorded(value["passed"], tuple(value["failed"]), tuple(value["skipped"]))
