"""``python -m tests.suites [SUITE …]``: run other people's suites, and judge what comes of it.

Exit status 1 where a test fails that is not listed, or passes that is; the last line has the
figures.
"""

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.apache_kafka import MavenMissing
from tests.suites import allowed_failures
from tests.suites.catalogue import SUITES
from tests.suites.outcomes import Result, SuiteOutcome
from tests.suites.packages import Missing
from tests.suites.recorded_results import KAFKAS, OURS, RESULTS, Recorded, dumped, load, noted
from tests.suites.suite import Suite
from tests.suites.targets import apache_kafka, tidemark
from tidemark_devcluster.processes import ProcessStartError

LOGS = Path("build/suites")


class SuiteProgress:
    """A line for each test, with how many have been."""

    def __init__(self, total: int) -> None:
        self.results: list[Result] = []
        self._total = total
        self._began = time.monotonic()

    def report(self, result: Result) -> None:
        """Print a result and count it."""
        self.results.append(result)
        done = len({item.test for item in self.results})
        elapsed = time.monotonic() - self._began
        print(
            f"[{done}/{self._total} {elapsed:5.0f} s] {result.outcome:7} {result.test}", flush=True
        )
        if result.said:
            print("    " + result.said.replace("\n", "\n    "), flush=True)


def run_suite(suite: Suite, *, side: str, only: str, folder: Path) -> "Ended | None":
    """Run it, judge it, note what came of it; None where it has no such test."""
    ready = suite.prepare()
    tests = [test for test in ready.tests if re.search(only, test)]
    # The recorded figures and the list of allowed failures change with complete runs alone.
    whole = len(tests) == len(ready.tests)
    if not tests:
        return None
    logs = folder / suite.name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    progress = SuiteProgress(len(tests))
    print(f"{suite.title} against {side}: {len(tests)} tests", flush=True)
    # A cluster of the suite's own, with the settings that its authors document.
    cluster = tidemark if side == OURS else apache_kafka
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-suite-") as temporary,
        cluster(Path(temporary), suite.wants) as target,
    ):
        ready.run(tests, target, logs.resolve(), progress.report)
    return _judged(suite, side, progress.results, whole=whole)


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a suite. ``wrong``: one line per problem. ``retried``: tests that failed first and
    passed when they were repeated."""

    run: Recorded
    wrong: Sequence[str]
    retried: Sequence[str] = ()

    def __str__(self) -> str:
        figures = (
            f"{self.run.passed} {SuiteOutcome.PASSED}, "
            f"{len(self.run.failed)} {SuiteOutcome.FAILED}, "
            f"{len(self.run.skipped)} {SuiteOutcome.SKIPPED}"
        )
        verdict = f"{len(self.wrong)} to look at" if self.wrong else "as it should be"
        retried = f"; passed only when run again: {', '.join(self.retried)}" if self.retried else ""
        return f"{figures}; {verdict}{retried}"


def _judged(suite: Suite, side: str, results: Sequence[Result], *, whole: bool) -> Ended:
    records = load(RESULTS.read_text("utf-8"))
    run = Recorded.of(results)
    if whole:
        records = noted(records, suite.name, suite.title, side, run)
        RESULTS.write_text(dumped(records), encoding="utf-8")
    retried = retried_tests(results)
    if side != OURS:
        return Ended(run, (), retried)
    theirs = records[suite.name].sides.get(KAFKAS) if suite.name in records else None
    # A test may have run several times. Its last result counts.
    last = {result.test: result for result in results}
    verdict = allowed_failures.judge(
        last.values(),
        allowed_failures.read(suite.name),
        kafka=None if theirs is None else theirs.outcomes,
        whole=whole,
    )
    return Ended(run, verdict.lines(), retried)


def retried_tests(results: Sequence[Result]) -> list[str]:
    """Return the tests that failed, and passed when they were run again."""
    failed = {result.test for result in results if result.outcome is SuiteOutcome.FAILED}
    last = {result.test: result.outcome for result in results}
    return sorted(test for test in failed if last[test] is SuiteOutcome.PASSED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run those that are named, else all; 1 where one is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--kafka", action="store_true", help="against Apache Kafka itself")
    parser.add_argument("--only", default="", help="a regular expression that tests' names have")
    parser.add_argument("--logs", type=Path, default=LOGS, help="where programs' output is kept")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.suites) - set(SUITES):
        parser.error(f"no suite is {', '.join(sorted(unknown))}: there are {', '.join(SUITES)}")
    signal.signal(signal.SIGTERM, _leave)
    ended: list[Ended] = []
    refused: list[str] = []
    for name in asked.suites or SUITES:
        # A suite whose tools are missing does not keep the others from running.
        try:
            found = run_suite(
                SUITES[name],
                side=KAFKAS if asked.kafka else OURS,
                only=asked.only,
                folder=asked.logs,
            )
        except (Missing, MavenMissing, ProcessStartError, TimeoutError, ValueError) as error:
            refused.append(name)
            print(f"{name}: cannot be run here: {error}", flush=True)
            continue
        if found is not None:
            ended.append(found)
            print("\n".join([*found.wrong, f"{name}: {found}"]), flush=True)
    if asked.only and not ended and not refused:
        parser.error(f"no test's name has {asked.only!r}")
    print(summary(ended, refused))
    return 1 if refused or any(item.wrong for item in ended) else 0


def summary(ended: Sequence[Ended], refused: Sequence[str]) -> str:
    """One line of figures of all of them."""
    whole = Ended(
        Recorded(
            sum(item.run.passed for item in ended),
            tuple(test for item in ended for test in item.run.failed),
            tuple(test for item in ended for test in item.run.skipped),
        ),
        [line for item in ended for line in item.wrong],
        [test for item in ended for test in item.retried],
    )
    not_run = f"; not run: {', '.join(refused)}" if refused else ""
    return f"{len(ended)} suite{'' if len(ended) == 1 else 's'}: {whole}{not_run}"


def _leave(*_: object) -> None:
    """Stop all started processes on exit."""
    raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
