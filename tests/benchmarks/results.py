"""Figures of a benchmark: rounds of both sides, their comparison, and the file of results.

A file of results has all rounds, with the commit, the machine and the versions they belong to.
"""

import json
import math
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from tests.apache_kafka import VERSION
from tests.benchmarks.sides import KAFKA, OURS
from tidemark_devcluster.toolchain.golang import required_module

#: Figures of one round of one side, by name. A name ends with its unit.
Figures = Mapping[str, float]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "benchmarks"
_GO_CLIENT = Path(__file__).with_name("latency") / "go" / "go.mod"
#: Figure that says whether a rate was sustained: 1 or 0.
SUSTAINED = "sustained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Origin of figures. With ``is_changed`` the checkout was not that of ``commit``.

    ``load``: the machine's load average at the start. ``versions``: of everything that changes
    figures. ``python_call_ns``: CPU time of a call with a few operations, None in older files. A
    build of Python without profile-guided optimisation needs 20 to 40 % more.
    """

    commit: str
    committed: str
    is_changed: bool
    kernel: str
    cores: int
    processor: str
    load: float
    versions: Mapping[str, str]
    python_call_ns: float | None = None

    @classmethod
    def here(cls) -> "Provenance":
        """Return that of this checkout and machine."""
        return cls(
            commit=_output("git", "rev-parse", "HEAD"),
            committed=_output("git", "show", "--no-patch", "--format=%cs", "HEAD"),
            # Figures of a changed checkout belong to no commit.
            is_changed=bool(_output("git", "status", "--porcelain", "--untracked-files=no")),
            kernel=platform.release(),
            cores=os.cpu_count() or 1,
            processor=_processor(),
            load=os.getloadavg()[0],
            versions={
                "tidemark": version("tidemark"),
                "python": f"{platform.python_version()} ({platform.python_compiler()})",
                "uvloop": uvloop.__version__,
                "kafka": VERSION,
                "java": _output("java", "-version").splitlines()[0],
                "librdkafka": version("confluent-kafka"),
                "franz-go": required_module(
                    _GO_CLIENT.read_text(encoding="utf-8"), "github.com/twmb/franz-go"
                ),
            },
            python_call_ns=round(_python_call_ns(), 1),
        )


@dataclass(slots=True, kw_only=True)
class Results:
    """Figures of all rounds: ``figures[measure][side][round]``.

    - ``setting``: sizes of the run, such as seconds or records
    - ``stalls``: lines about what slow requests of ours coincide with, by measure
    - ``failures``: measures without figures, and why
    """

    benchmark: str
    rounds: int
    setting: Mapping[str, float | str] = field(default_factory=dict)
    figures: dict[str, dict[str, dict[int, Figures]]] = field(default_factory=dict)
    stalls: dict[str, list[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, measure: str, side: str, number: int, figures: Figures) -> None:
        """Add the figures of one side in round ``number``."""
        self.figures.setdefault(measure, {}).setdefault(side, {})[number] = figures

    def lines(self) -> Iterator[str]:
        """Yield a table: medians of both sides, and median, least and greatest ratio of rounds."""
        yield f"{'medians':26} {OURS:>12} {KAFKA:>12}    ratio (range over rounds)"
        for measure, sides in self.figures.items():
            yield measure
            # Medians are of all rounds of a side, ratios of rounds with both.
            for name in names_of(sides):
                ours, theirs = (shown(median(sides.get(side, {}), name)) for side in (OURS, KAFKA))
                found = ratios(sides, name)
                compared = (
                    f"{statistics.median(found):8.2f} ({min(found):.2f} to {max(found):.2f})"
                    if found
                    else f"{'-':>8}"
                )
                yield f"  {name:24} {ours:>12} {theirs:>12} {compared}"
            for side in (OURS, KAFKA):
                count = sum(
                    not figures.get(SUSTAINED, 1) for figures in sides.get(side, {}).values()
                )
                if count:
                    yield f"  {side} did not sustain the rate in {count} rounds"

    def path(self) -> Path:
        """Return the path of the results of the checked-out commit."""
        commit = _output("git", "rev-parse", "--short=12", "HEAD")
        return FOLDER / f"{self.benchmark}-{commit}.json"

    def resume(self) -> None:
        """Start with the results of earlier runs of this commit, if there are any.

        A long benchmark can then be measured in parts. A changed checkout has none. Raises
        ``ValueError`` if the parts would be of different versions, such as two builds of Python.
        """
        path = self.path()
        try:
            provenance, former = load(path)
        except (OSError, ValueError):
            return
        versions = Provenance.here().versions
        if provenance.versions != versions:
            raise ValueError(
                f"{path} was measured with {dict(provenance.versions)}, and these are installed: "
                f"{dict(versions)}. Delete the file to measure all again"
            )
        self.figures = former.figures

    def write(self) -> None:
        """Write all rounds so far with their provenance, in place of earlier ones."""
        path = self.path()
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = {"provenance": asdict(Provenance.here()), **asdict(self)}
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[Provenance, Results]:
    """Read a file of results. Raises ``ValueError`` for figures of a changed checkout."""
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    provenance = Provenance(**stored.pop("provenance"))
    if provenance.is_changed:
        raise ValueError(
            f"{path} was measured with changes after {provenance.commit[:12]}: commit them, "
            "and measure again"
        )
    results = Results(**stored)
    # JSON has no integers as keys.
    for sides in results.figures.values():
        for side, rounds in sides.items():
            sides[side] = {int(number): figures for number, figures in rounds.items()}
    return provenance, results


def names_of(sides: Mapping[str, Mapping[int, Figures]]) -> list[str]:
    """Return the names of the figures of a measure, in their order."""
    rounds = [figures for side in sides.values() for figures in side.values()]
    return [name for name in dict.fromkeys(n for f in rounds for n in f) if name != SUSTAINED]


def median(rounds: Mapping[int, Figures], name: str) -> float | None:
    """Return the median of a figure, None if no round has it."""
    found = [figures[name] for figures in rounds.values() if name in figures]
    return statistics.median(found) if found else None


def ratios(sides: Mapping[str, Mapping[int, Figures]], name: str) -> list[float]:
    """Return ours / Kafka's of each round that has both."""
    ours, theirs = sides.get(OURS, {}), sides.get(KAFKA, {})
    return [
        ours[number][name] / theirs[number][name]
        for number in ours
        if number in theirs and theirs[number].get(name) and name in ours[number]
    ]


def shown(value: float | None) -> str:
    """Return a figure as text, with thousands separated."""
    return "-" if value is None else f"{value:,.2f}"


def one_line(figures: Figures) -> str:
    """Return the figures of one round as one line."""
    return "  ".join(
        f"{name} {shown(value)}" for name, value in figures.items() if name != SUSTAINED
    )


def sides_of(number: int) -> Sequence[str]:
    """Return the order of the sides in round ``number``, so that a slower machine affects both."""
    return (KAFKA, OURS) if number % 2 else (OURS, KAFKA)


def _output(*command: str) -> str:
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    # Java prints its version to standard error.
    return (done.stdout or done.stderr).strip()


def _python_call_ns() -> float:
    """Return the least CPU time of a call. How the interpreter was built is recorded nowhere."""
    calls, best = 10_000, math.inf
    for _ in range(20):
        start = time.process_time_ns()
        for number in range(calls):
            _count(number, {})
        best = min(best, (time.process_time_ns() - start) / calls)
    return best


def _count(number: int, counts: dict[int, int]) -> int:
    key = number & 63
    counts[key] = counts.get(key, 0) + 1 if number % 3 else number
    return key


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
