"""``python -m tests.suites [SUITE …]``: run other people's suites, and judge what comes of it.

Exit status 1 where a test fails that is not listed, or passes that is; the last line has the
figures.
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.kafka import KafkaMissing
from tests.suites import allowed
from tests.suites.catalogue import SUITES
from tests.suites.outcomes import Outcome, Result
from tests.suites.packages import Missing
from tests.suites.recorded import KAFKAS, OURS, RESULTS, Recorded, dumped, load, noted
from tests.suites.suite import Suite
from tests.suites.targets import apache_kafka, tidemark

LOGS = Path("build/suites")


class Progress:
    """A line for each test, with how many have been."""

    def __init__(self, total: int) -> None:
        self.results: list[Result] = []
        self._total = total
        self._began = time.monotonic()

    def report(self, result: Result) -> None:
        """One more."""
        self.results.append(result)
        done = len({each.test for each in self.results})
        elapsed = time.monotonic() - self._began
        print(
            f"[{done}/{self._total} {elapsed:5.0f} s] {result.outcome:7} {result.test}", flush=True
        )
        if result.said:
            print("    " + result.said.replace("\n", "\n    "), flush=True)


def run_suite(suite: Suite, *, side: str, only: str, folder: Path) -> bool:
    """Run it, judge it, note what came of it; whether it is as it should be."""
    ready = suite.prepare()
    tests = [test for test in ready.tests if re.search(only, test)]
    whole = len(tests) == len(ready.tests)
    if not tests:
        print(f"{suite.name} has no test that {only!r} finds")
        return False
    logs = folder / suite.name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    progress = Progress(len(tests))
    print(f"{suite.title} against {side}: {len(tests)} tests", flush=True)
    cluster = tidemark if side == OURS else apache_kafka
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-suite-") as temporary,
        cluster(Path(temporary), suite.wants) as target,
    ):
        ready.run(tests, target, logs.resolve(), progress.report)
    return _judged(suite, side, progress.results, whole=whole)


def _judged(suite: Suite, side: str, results: Sequence[Result], *, whole: bool) -> bool:
    records = load(RESULTS.read_text("utf-8"))
    run = Recorded.of(results)
    if whole:
        records = noted(records, suite.name, suite.title, side, run)
        RESULTS.write_text(dumped(records), encoding="utf-8")
    verdict = allowed.Verdict()
    if side == OURS:
        theirs = records[suite.name].sides.get(KAFKAS) if suite.name in records else None
        last = {result.test: result for result in results}
        verdict = allowed.judge(
            last.values(),
            allowed.read(suite.name),
            kafka=None if theirs is None else theirs.outcomes,
            whole=whole,
        )
    for line in verdict.lines():
        print(line)
    seconds = sum(result.seconds for result in results)
    print(
        f"{suite.name}: {run.passed} {Outcome.PASSED}, {len(run.failed)} {Outcome.FAILED}, "
        f"{len(run.skipped)} {Outcome.SKIPPED} in {seconds:.0f} s of tests; "
        f"{'as it should be' if not verdict.lines() else f'{len(verdict.lines())} to look at'}",
        flush=True,
    )
    return not verdict.lines()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run those that are named, else all; 1 where one is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--kafka", action="store_true", help="against Apache Kafka itself")
    parser.add_argument("--only", default="", help="a regular expression that tests' names have")
    parser.add_argument("--logs", type=Path, default=LOGS, help="where programs' output is kept")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.suites) - set(SUITES):
        parser.error(
            f"there is no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}"
        )
    side = KAFKAS if asked.kafka else OURS
    good = True
    for name in asked.suites or SUITES:
        try:
            good &= run_suite(SUITES[name], side=side, only=asked.only, folder=asked.logs)
        except (Missing, KafkaMissing) as error:
            print(f"{name}: cannot be run here: {error}", flush=True)
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
