"""Measures of latency, their order in a round, and the last line of a run."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tests.benchmarks.results import SUSTAINED, Results, ratios
from tests.benchmarks.sides import KAFKA, OURS

RATES = (1_000, 5_000, 10_000, 20_000)
LOAD, REST = "a throughput load", "rest"
#: Figures whose ratios the last line summarizes.
_SUMMARIZED = ("p50 ms", "p99 ms", "p99.9 ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMeasure:
    """One setting. ``after``: what the brokers did right before."""

    rate: int
    replicas: int
    partitions: int
    linger_ms: int
    after: str

    def __str__(self) -> str:
        partitions = f"{self.partitions} partition{'s' if self.partitions > 1 else ''}"
        return (
            f"{self.rate:,}/s, RF {self.replicas}, {partitions}, linger {self.linger_ms} ms, "
            f"after {self.after}"
        )


LATENCY_MEASURES = tuple(
    LatencyMeasure(rate=rate, replicas=rf, partitions=partitions, linger_ms=linger, after=after)
    for rf, partitions, linger, after, rate in product((1, 3), (1, 6), (0, 5), (LOAD, REST), RATES)
)


def rotated(measures: Sequence[LatencyMeasure], number: int) -> list[LatencyMeasure]:
    """Return the measures of round ``number``, each round beginning with another one."""
    first = (number - 1) % len(measures)
    return [*measures[first:], *measures[:first]]


def summary(results: Results) -> str:
    """Return one line of figures of the whole run."""
    parts = [f"{len(results.figures)} measures, {results.rounds} rounds"]
    for name in _SUMMARIZED:
        medians = [
            statistics.median(found)
            for sides in results.figures.values()
            if (found := ratios(sides, name))
        ]
        if medians:
            middle = statistics.median(medians)
            parts.append(f"{name[:-3]} {middle:.2f} ({min(medians):.2f} to {max(medians):.2f})")
    for side in (OURS, KAFKA):
        # A measure counts if most rounds did not sustain it.
        count = sum(
            statistics.median(figures[SUSTAINED] for figures in rounds.values()) < 1
            for sides in results.figures.values()
            if (rounds := sides.get(side))
        )
        parts.append(f"{side} did not sustain {count}")
    return "ratios of latency: " + "; ".join(parts)
