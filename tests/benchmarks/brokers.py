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
from tests.benchmarks.figures import Table, one_line
from tests.benchmarks.measures import MEASURES, RECORDS, Measure, MeasureSetting, throughput
from tests.benchmarks.sides import KAFKA, OURS, STARTS

#: Errors of one measure: its client failed, or no broker answered.
FAILURES = (subprocess.CalledProcessError, OSError)
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))


def one_round(number: int, name: str, measures: Sequence[Measure], table: Table) -> None:
    """Run the measures of one side once, on one cluster for each number of brokers.

    A warm-up run precedes them: a JVM has to compile hot code, and both sides create their
    coordinators' topics. Failed measures are reported and the others are taken.
    """
    # One cluster serves all measures of its size, which are sorted by that.
    for brokers, those in groupby(measures, key=lambda item: item.brokers):
        with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
            side = STARTS[name](Path(folder), brokers)
            try:
                throughput(side, MeasureSetting(replicas=brokers, idempotent=True))
                for item in those:
                    load = os.getloadavg()[0]
                    try:
                        figures = item.take(side)
                    except FAILURES as error:
                        table.failures.append(f"{item.name}, {name}: {error}")
                        print(
                            f"round {number}  {name:12}  {item.name}: failed: {error}", flush=True
                        )
                        continue
                    table.add(item.name, name, figures)
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
    try:
        kafka.jars()
    except kafka.MavenMissing as error:
        raise SystemExit(str(error)) from error
    _let_open_many_files()
    table = Table()
    ordered = sorted(chosen, key=lambda item: item.brokers)
    print(f"{ROUNDS} rounds, {RECORDS:,} records in each throughput")
    for number in range(1, ROUNDS + 1):
        # The order alternates, so that a machine that slows down affects both sides.
        for name in (KAFKA, OURS) if number % 2 else (OURS, KAFKA):
            one_round(number, name, ordered, table)
    print(f"\nmedians{'':19} {OURS:>12} {KAFKA:>12}    ratio")
    for line in table.lines():
        print(line)
    if table.failures:
        raise SystemExit("\n".join(("failed:", *table.failures)))


def _let_open_many_files() -> None:
    """This process and those that it starts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
