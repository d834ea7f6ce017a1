"""``make bench``: our brokers and Apache Kafka in turn, on the same machine, by the same clients.

Prints every round, then medians and ratios (ours / Kafka's). No figure is a pass or a failure: it
is a measurement to be reported. ``BENCH_ROUNDS`` (3) and ``BENCH_RECORDS`` (400,000) say how much;
``--only`` names the measures to take.
"""

import argparse
import os
import re
import resource
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests import apache_kafka as kafka
from tests.benchmarks.measures import MEASURES, RECORDS, Measure, MeasureSetting, throughput
from tests.benchmarks.results import Results, one_line, sides_of
from tests.benchmarks.sides import STARTS

#: Errors of one measure: its client failed, or no broker answered.
FAILURES = (subprocess.CalledProcessError, OSError)
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
#: Apache Kafka needs half as much CPU again in the first measure after one warm-up run.
_WARM_UPS = 3


def one_round(number: int, name: str, measures: Sequence[Measure], results: Results) -> None:
    """Run the measures of one side once, on one cluster for each number of brokers.

    Warm-up runs precede them: a JVM has to compile hot code, and both sides create their
    coordinators' topics. Failed measures are reported and the others are taken.
    """
    # One cluster serves all measures of its size, which are sorted by that.
    for brokers, those in groupby(measures, key=lambda item: item.brokers):
        with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
            side = STARTS[name](Path(folder), brokers)
            try:
                for warm_up in range(_WARM_UPS):
                    is_idempotent = warm_up == 0
                    throughput(side, MeasureSetting(replicas=brokers, idempotent=is_idempotent))
                for item in those:
                    load = os.getloadavg()[0]
                    try:
                        figures = item.take(side)
                    except FAILURES as error:
                        results.failures.append(f"{item.name}, {name}: {error}")
                        print(
                            f"round {number}  {name:12}  {item.name}: failed: {error}", flush=True
                        )
                        continue
                    results.add(item.name, name, number, figures)
                    print(
                        f"round {number}  {name:12}  {item.name}: {one_line(figures)}  "
                        f"(load before {load:.1f})",
                        flush=True,
                    )
            finally:
                side.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Alternate the two sides and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression that measures' names have")
    asked = parser.parse_args(arguments)
    chosen = [measure for measure in MEASURES if re.search(asked.only, measure.name)]
    if not chosen:
        parser.error(f"no measure has {asked.only!r}: {', '.join(m.name for m in MEASURES)}")
    # Downloads are made before the first round.
    try:
        kafka.jars()
    except kafka.MavenMissing as error:
        raise SystemExit(str(error)) from error
    _let_open_many_files()
    # One cluster serves all measures of the same number of brokers.
    ordered = sorted(chosen, key=lambda item: item.brokers)
    results = Results(benchmark="brokers", rounds=ROUNDS, setting={"records": RECORDS})
    print(
        f"{ROUNDS} rounds, {RECORDS:,} records in each throughput; results in {results.path()}",
        flush=True,
    )
    # Results so far are kept if the run is interrupted.
    for number in range(1, ROUNDS + 1):
        for name in sides_of(number):
            one_round(number, name, ordered, results)
            results.write()
    print()
    for line in results.lines():
        print(line)
    if results.failures:
        raise SystemExit("\n".join(("failed:", *results.failures)))


def _let_open_many_files() -> None:
    """This process and those that it starts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
