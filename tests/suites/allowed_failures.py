"""The list of a suite's tests that may fail, which only shrinks, and what a run means by it.

A line is ``test  # reason``. A test that fails and is not listed fails the run; so does one that is
listed and passes: the line goes then. What fails, or is skipped, against Apache Kafka as well needs
no line: it does not apply. A test that Apache Kafka passes must not be skipped either.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.suites.outcomes import Result, SuiteOutcome

FOLDER = Path(__file__).with_name("allowed")


class AllowedError(ValueError):
    """A list that is not as it has to be; the message names the line."""


def parse(text: str) -> dict[str, str]:
    """Test → reason. Raises :class:`AllowedError` for a line without a reason, a test that stands
    there twice, or one out of order."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        test, mark, reason = (part.strip() for part in line.partition("  # "))
        if not (test and mark and reason):
            raise AllowedError(f"line {number}: write 'test  # reason', not {line!r}")
        # An ordered list shows a duplicate, and merges well.
        if found and test <= max(found):
            raise AllowedError(f"line {number}: {test} is there twice, or out of order")
        found[test] = reason
    return found


def read(suite: str, folder: Path = FOLDER) -> dict[str, str]:
    """The list of a suite; the file has to be there, empty where nothing may fail."""
    path = folder / f"{suite}.txt"
    try:
        return parse(path.read_text("utf-8"))
    except (FileNotFoundError, AllowedError) as error:
        raise AllowedError(f"{path}: {error}") from error


@dataclass(slots=True)
class SuiteVerdict:
    """Why a run fails: tests by name, each list in the order of the run."""

    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One for each, with what to do."""
        return [
            *(f"{test} failed and is not listed" for test in self.failed),
            *(f"{test} was skipped, and Apache Kafka passes it" for test in self.skipped),
            *(f"{test} is listed and passed: take its line out" for test in self.passed),
            *(f"{test} is listed and not in the suite: take its line out" for test in self.missing),
        ]


def judge(
    results: Iterable[Result],
    allowed: Mapping[str, str],
    *,
    kafka: Mapping[str, SuiteOutcome] | None,
    whole: bool,
) -> SuiteVerdict:
    """``kafka``: what became of the tests against Apache Kafka, where that was tried; a test that
    is not in it passed. ``whole``: every test of the suite was run."""
    verdict = SuiteVerdict()
    seen = set()
    for result in results:
        seen.add(result.test)
        theirs = (
            SuiteOutcome.PASSED if kafka is None else kafka.get(result.test, SuiteOutcome.PASSED)
        )
        # A listed test that passes has to leave the list. An unlisted failure counts only if Apache
        # Kafka passes the test.
        match result.outcome:
            case SuiteOutcome.PASSED if result.test in allowed:
                verdict.passed.append(result.test)
            case SuiteOutcome.FAILED if (
                result.test not in allowed and theirs is SuiteOutcome.PASSED
            ):
                verdict.failed.append(result.test)
            case SuiteOutcome.SKIPPED if kafka is not None and result.test not in allowed:
                if theirs is SuiteOutcome.PASSED:
                    verdict.skipped.append(result.test)
    # Names that no test has any more are found by a complete run only.
    if whole:
        verdict.missing.extend(test for test in allowed if test not in seen)
    return verdict
