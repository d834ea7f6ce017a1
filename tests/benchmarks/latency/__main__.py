"""``make bench-latency``: see the package, and the README in the folder of benchmarks."""

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

from tests import apache_kafka as kafka
from tests.benchmarks.latency.requests import MODULE, OpenLoop, Requests, run
from tests.benchmarks.latency.rounds import (
    LATENCY_MEASURES,
    LOAD,
    LatencyMeasure,
    rotated,
    summary,
)
from tests.benchmarks.latency.stalls import read_events, report
from tests.benchmarks.load import ClientLoad
from tests.benchmarks.load_process import run as run_load
from tests.benchmarks.processes import cpu_seconds
from tests.benchmarks.results import SUSTAINED, Figures, Results, one_line, sides_of
from tests.benchmarks.sides import STARTS, BenchmarkSide, start_tidemark
from tests.suites.packages import Missing, go_program

#: Errors of one measure: its client failed, or no broker answered.
FAILURES = (subprocess.CalledProcessError, OSError)
#: Rate and duration of the requests that warm up a new cluster.
_WARM_RATE, _WARM_S = 5_000, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySizes:
    """Numbers of a run. ``load``: records of a throughput load; durations in seconds."""

    rounds: int
    seconds: float
    warm_s: float
    rest_s: float
    load: int


FULL = LatencySizes(rounds=5, seconds=10, warm_s=2, rest_s=5, load=200_000)
#: To try the command: the figures are noise.
QUICK = LatencySizes(rounds=1, seconds=2, warm_s=0.5, rest_s=1, load=20_000)


def take(
    side: BenchmarkSide, measure: LatencyMeasure, sizes: LatencySizes
) -> tuple[Requests, Figures]:
    """Load the brokers or let them rest, then send single records at a fixed rate."""
    loop = OpenLoop(
        rate=measure.rate,
        seconds=sizes.seconds,
        warm_s=sizes.warm_s,
        partitions=measure.partitions,
        linger_ms=measure.linger_ms,
    )
    # Both topics exist before, so that their creation is part of neither.
    loaded = side.topic(measure.partitions, measure.replicas)
    topic = side.topic(measure.partitions, measure.replicas)
    if measure.after == LOAD:
        _load(side, loaded, measure.partitions, sizes.load)
    else:
        time.sleep(sizes.rest_s)
    before = _cpu_s(side)
    requests, client = run(loop, side.bootstrap, topic)
    broker_cpu_s = _cpu_s(side) - before
    # The folder of a cluster would grow by gigabytes otherwise.
    for name in (loaded, topic):
        side.delete(name)
    return requests, {
        **requests.figures(),
        SUSTAINED: float(requests.is_sustained(measure.rate)),
        **client,
        "broker CPU-s": broker_cpu_s,
    }


def _load(side: BenchmarkSide, topic: str, partitions: int, records: int) -> None:
    run_load(
        ClientLoad(
            kind="produce",
            bootstrap=side.bootstrap,
            topic=topic,
            records=records,
            partitions=partitions,
        )
    )


def _cpu_s(side: BenchmarkSide) -> float:
    return sum(map(cpu_seconds, side.pids()))


def warm_up(side: BenchmarkSide, replicas: int, sizes: LatencySizes) -> None:
    """Let a JVM compile hot code, and both sides create what they create at first use."""
    topic = side.topic(1, replicas)
    _load(side, topic, 1, sizes.load)
    seconds = min(_WARM_S, sizes.seconds)
    loop = OpenLoop(rate=_WARM_RATE, seconds=seconds, warm_s=0, partitions=1, linger_ms=0)
    run(loop, side.bootstrap, topic)
    side.delete(topic)


def one_round(
    number: int,
    name: str,
    measures: Sequence[LatencyMeasure],
    sizes: LatencySizes,
    results: Results,
) -> None:
    """Run the measures of one side once, on one cluster for each replication factor."""
    for replicas, chosen in _by_replicas(measures):
        with tempfile.TemporaryDirectory(prefix="tidemark-latency-") as folder:
            side = STARTS[name](Path(folder), replicas)
            # A failed measure is reported, and the others are taken.
            try:
                warm_up(side, replicas, sizes)
                for measure in rotated(chosen, number):
                    # The load of the machine says how far a figure can be trusted.
                    prefix = f"round {number}  {name:12}  {measure}"
                    load = os.getloadavg()[0]
                    try:
                        _, figures = take(side, measure, sizes)
                    except FAILURES as error:
                        results.failures.append(f"{measure}, {name}: {error}")
                        print(f"{prefix}: failed: {error}", flush=True)
                        continue
                    results.add(str(measure), name, number, figures)
                    # One line of progress for each measure.
                    kept_up = "" if figures[SUSTAINED] else "  RATE NOT SUSTAINED"
                    print(
                        f"{prefix}: {one_line(figures)}{kept_up}  (load before {load:.1f})",
                        flush=True,
                    )
            finally:
                side.stop()


def record_stalls(
    measures: Sequence[LatencyMeasure], sizes: LatencySizes, results: Results
) -> None:
    """Run the measures on brokers of ours that record their stalls, and print the largest ones."""
    for replicas, chosen in _by_replicas(measures):
        taken: dict[LatencyMeasure, tuple[Requests, Figures]] = {}
        with tempfile.TemporaryDirectory(prefix="tidemark-latency-") as folder:
            side = start_tidemark(Path(folder), replicas, recorded=True)
            try:
                warm_up(side, replicas, sizes)
                for measure in chosen:
                    try:
                        taken[measure] = take(side, measure, sizes)
                    except FAILURES as error:
                        results.failures.append(f"{measure}, stalls: {error}")
                        print(f"stalls  {measure}: failed: {error}", flush=True)
                        continue
                    print(f"stalls  {measure}: recorded", flush=True)
            finally:
                side.stop()
            # Brokers write their events when they shut down.
            events = [
                event
                for path in sorted(Path(folder).rglob("*.stalls.json"))
                for event in read_events(path)
            ]
        for measure, (requests, figures) in taken.items():
            lines = report(events, requests.window, requests.slow())
            results.stalls[str(measure)] = lines
            p50, p999 = figures["p50 ms"], figures["p99.9 ms"]
            print(f"{measure} (recorded: p50 {p50:.2f}, p99.9 {p999:.2f} ms)")
            for line in lines:
                print(f"  {line}", flush=True)


def _by_replicas(
    measures: Sequence[LatencyMeasure],
) -> "list[tuple[int, list[LatencyMeasure]]]":
    ordered = sorted(measures, key=lambda measure: measure.replicas)
    grouped = groupby(ordered, key=lambda measure: measure.replicas)
    return [(replicas, list(chosen)) for replicas, chosen in grouped]


def measure_all(
    measures: Sequence[LatencyMeasure],
    sizes: LatencySizes,
    results: Results,
    *,
    stalls: bool = True,
) -> None:
    """Alternate the two sides, then record the stalls of ours. Results are written meanwhile."""
    for number in range(1, sizes.rounds + 1):
        for name in sides_of(number):
            one_round(number, name, measures, sizes, results)
            results.write()
    if stalls:
        print("\nwhat the slowest requests of Tidemark coincide with", flush=True)
        record_stalls(measures, sizes, results)
    results.write()


def main(arguments: Sequence[str] | None = None) -> None:
    """Take the chosen measures, print the table and a last line of figures."""
    parser = argparse.ArgumentParser(prog="make bench-latency", description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression that measures' names have")
    parser.add_argument("--rounds", type=int, help="rounds of both sides (5)")
    parser.add_argument("--quick", action="store_true", help="one short round, to try the command")
    parser.add_argument("--without-stalls", action="store_true", help="record no stalls")
    asked = parser.parse_args(arguments)
    measures = [item for item in LATENCY_MEASURES if re.search(asked.only, str(item))]
    if not measures:
        names = "\n".join(map(str, LATENCY_MEASURES))
        parser.error(f"no measure has {asked.only!r}. They are:\n{names}")
    sizes = QUICK if asked.quick else FULL
    if asked.rounds:
        sizes = replace(sizes, rounds=asked.rounds)
    # Programs are built before the first round.
    try:
        kafka.jars()
        go_program(MODULE)
    except (kafka.MavenMissing, Missing) as error:
        raise SystemExit(str(error)) from error
    results = Results(benchmark="latency", rounds=sizes.rounds, setting=asdict(sizes))
    print(
        f"{len(measures)} measures, {sizes.rounds} rounds of {sizes.seconds:g} s; "
        f"results in {results.path()}"
    )
    measure_all(measures, sizes, results, stalls=not asked.without_stalls)
    print()
    for line in results.lines():
        print(line)
    print(summary(results))
    if results.failures:
        raise SystemExit("\n".join(("failed:", *results.failures)))


if __name__ == "__main__":
    main()
