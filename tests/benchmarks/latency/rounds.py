"""Measures of latency, rounds of both sides, their comparison, and the file of results."""

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import uvloop

from tests.apache_kafka import VERSION
from tests.benchmarks.figures import Figures
from tests.benchmarks.latency.requests import MODULE
from tests.benchmarks.sides import KAFKA, OURS
from tidemark_devcluster.toolchain.golang import required_module

ROOT = Path(__file__).resolve().parents[3]
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


def sides_of(number: int) -> tuple[str, str]:
    """Return the order of the sides in round ``number``, so that a slower machine affects both."""
    return (KAFKA, OURS) if number % 2 else (OURS, KAFKA)


@dataclass(slots=True)
class LatencyResults:
    """Figures of all rounds.

    ``stalls``: lines about what slow requests of ours coincide with, by measure. ``failures``:
    measures without figures, and why.
    """

    rounds: int
    figures: dict[str, dict[str, dict[int, Figures]]] = field(default_factory=dict)
    stalls: dict[str, list[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, measure: LatencyMeasure, side: str, number: int, figures: Figures) -> None:
        """Add the figures of one side in round ``number``."""
        self.figures.setdefault(str(measure), {}).setdefault(side, {})[number] = figures

    def lines(self) -> Iterator[str]:
        """Yield a table: medians of both sides, and median, least and greatest ratio of rounds."""
        yield f"{'':26} {OURS:>12} {KAFKA:>12}    ratio (range over rounds)"
        for measure, sides in self.figures.items():
            yield measure
            for name in _names(sides):
                ours, theirs = (_median(sides.get(side, {}), name) for side in (OURS, KAFKA))
                ratios = _ratios(sides, name)
                shown = (
                    f"{statistics.median(ratios):8.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                    if ratios
                    else f"{'-':>8}"
                )
                yield f"  {name:24} {ours:>12} {theirs:>12} {shown}"
            for side in (OURS, KAFKA):
                count = sum(not figures["sustained"] for figures in sides.get(side, {}).values())
                if count:
                    yield f"  {side} did not sustain the rate in {count} rounds"

    def summary(self) -> str:
        """Return one line of figures of the whole run."""
        parts = [f"{len(self.figures)} measures, {self.rounds} rounds"]
        for name in _SUMMARIZED:
            ratios = [
                statistics.median(found)
                for sides in self.figures.values()
                if (found := _ratios(sides, name))
            ]
            if ratios:
                middle = statistics.median(ratios)
                parts.append(f"{name[:-3]} {middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        for side in (OURS, KAFKA):
            # A measure counts if most rounds did not sustain it.
            count = sum(
                statistics.median(figures["sustained"] for figures in rounds.values()) < 1
                for sides in self.figures.values()
                if (rounds := sides.get(side))
            )
            parts.append(f"{side} did not sustain {count}")
        return "ratios of latency: " + "; ".join(parts)

    def write(self, path: Path, setting: Mapping[str, Any]) -> None:
        """Write all rounds with the machine, the versions and the ``setting`` of the run."""
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = {
            "benchmark": "latency",
            **provenance(),
            "rounds": self.rounds,
            "setting": setting,
            "figures": self.figures,
            "stalls": self.stalls,
            "failures": self.failures,
        }
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def _names(sides: Mapping[str, Mapping[int, Figures]]) -> list[str]:
    rounds = [figures for side in sides.values() for figures in side.values()]
    return [name for name in dict.fromkeys(n for f in rounds for n in f) if name != "sustained"]


def _median(rounds: Mapping[int, Figures], name: str) -> str:
    found = [figures[name] for figures in rounds.values() if name in figures]
    return f"{statistics.median(found):,.2f}" if found else "-"


def _ratios(sides: Mapping[str, Mapping[int, Figures]], name: str) -> list[float]:
    """Return ours / Kafka's of each round that has both."""
    ours, theirs = sides.get(OURS, {}), sides.get(KAFKA, {})
    return [
        ours[number][name] / theirs[number][name]
        for number in ours
        if number in theirs and theirs[number].get(name) and name in ours[number]
    ]


# ---------------------------------------------------------------- provenance


def provenance() -> dict[str, Any]:
    """Return commit, machine and versions."""
    # Figures of a changed checkout belong to no commit.
    changed = _output("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": _output("git", "rev-parse", "HEAD"),
        "is_changed": bool(changed),
        # The machine.
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "load": os.getloadavg()[0],
        # Everything whose version changes the figures.
        "versions": {
            "tidemark": version("tidemark"),
            "python": platform.python_version(),
            "uvloop": uvloop.__version__,
            "kafka": VERSION,
            "java": _output("java", "-version").splitlines()[0],
            "franz-go": required_module(
                (MODULE / "go.mod").read_text(encoding="utf-8"), "github.com/twmb/franz-go"
            ),
        },
    }


def results_path() -> Path:
    """Return the path of the results of the checked-out commit."""
    commit = _output("git", "rev-parse", "--short=12", "HEAD")
    return ROOT / "build" / "benchmarks" / f"latency-{commit}.json"


def _output(*command: str) -> str:
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    # Java prints its version to standard error.
    return (done.stdout or done.stderr).strip()


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
