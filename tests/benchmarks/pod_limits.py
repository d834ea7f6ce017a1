"""A process under the limits of a pod: the cgroup that a kubelet would create for its container.

Memory includes what the kernel allocates for the process, and the kernel kills a process that
exceeds the limit. The CPU limit suspends a process for the rest of each tenth of a second. Both
require root, in the hierarchies of cgroup v1 or in that of v2, whichever is mounted.
"""

import contextlib
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml
from kubernetes.utils.quantity import parse_quantity

CHART = Path(__file__).parents[2] / "charts" / "tidemark" / "values.yaml"
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "cpu")
PERIOD_US = 100_000
MEBIBYTE = 2**20
REMOVED_S = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """``cpus``: cores, None for as many as there are."""

    memory_bytes: int
    cpus: float | None = None

    @classmethod
    def of_the_operator(cls, cpus: float | None = None) -> Self:
        """Return the limits of the chart's operator.

        ``cpus``: number of cores, 0 for those that it requests.
        """
        resources = yaml.safe_load(CHART.read_text("utf-8"))["operator"]["resources"]
        limits, requests = resources["limits"], resources["requests"]
        if cpus == 0:
            cpus = float(parse_quantity(requests["cpu"]))
        elif cpus is None and "cpu" in limits:
            cpus = float(parse_quantity(limits["cpu"]))
        return cls(int(parse_quantity(limits["memory"])), cpus)

    def __str__(self) -> str:
        cores = "no limit of CPU" if self.cpus is None else f"{self.cpus:g} cores"
        return f"{self.memory_bytes / MEBIBYTE:.0f} MiB, {cores}"


@dataclass(frozen=True, slots=True)
class Cgroup:
    """``folders``: by controller, where it is set; one folder for both in version 2."""

    folders: dict[str, Path]
    limits: Limits

    def command(self, command: Sequence[str]) -> list[str]:
        """``command``, to be run in it from its first instruction."""
        places = sorted({str(folder / "cgroup.procs") for folder in self.folders.values()})
        joined = "".join(f"echo $$ > {shlex.quote(place)} && " for place in places)
        return ["sh", "-c", f'{joined}exec "$@"', "sh", *command]

    def most_mb(self) -> float:
        """The most memory that was ever charged, the kernel's and caches of files included."""
        path = self._first("memory", "memory.peak", "memory.max_usage_in_bytes")
        return int(path.read_text("ascii")) / MEBIBYTE

    def killed(self) -> int:
        """Number of times that the kernel has killed a process because of its memory limit."""
        path = self._first("memory", "memory.events", "memory.oom_control")
        return _figures(path).get("oom_kill", 0)

    def held_up(self) -> float:
        """The share of the periods in which it wanted more CPU than it had."""
        figures = _figures(self.folders["cpu"] / "cpu.stat")
        return figures.get("nr_throttled", 0) / max(figures.get("nr_periods", 0), 1)

    def _first(self, controller: str, *names: str) -> Path:
        paths = [self.folders[controller] / name for name in names]
        return next(path for path in paths if path.exists())


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[Cgroup]:
    """A cgroup until the block ends, by when its processes have ended. Raises OSError where one
    may not make it."""
    name = f"tidemark-bench-{os.getpid()}"
    # Version 2 has one hierarchy, in which controllers are enabled for children.
    if (CGROUPS / "cgroup.controllers").exists():
        with contextlib.suppress(OSError):  # where they are handed on already, or it is refused
            enabled = " ".join(f"+{controller}" for controller in CONTROLLERS)
            (CGROUPS / "cgroup.subtree_control").write_text(enabled, encoding="ascii")
        folders = dict.fromkeys(CONTROLLERS, CGROUPS / name)
    else:
        folders = {controller: CGROUPS / controller / name for controller in CONTROLLERS}
    made = set(folders.values())
    try:
        for folder in made:
            folder.mkdir()
        _set(folders, limits)
        yield Cgroup(folders, limits)
    finally:
        for folder in made:
            _remove(folder)


def _set(folders: dict[str, Path], limits: Limits) -> None:
    memory, cpu = folders["memory"], folders["cpu"]
    second = (memory / "memory.max").exists()
    name = "memory.max" if second else "memory.limit_in_bytes"
    (memory / name).write_text(str(limits.memory_bytes), encoding="ascii")
    if limits.cpus is None:
        return
    quota_us = round(limits.cpus * PERIOD_US)
    if second:
        (cpu / "cpu.max").write_text(f"{quota_us} {PERIOD_US}", encoding="ascii")
    else:
        (cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
        (cpu / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")


def _remove(folder: Path) -> None:
    """The kernel takes a moment to let go of a process that has ended."""
    deadline_s = time.monotonic() + REMOVED_S
    while folder.exists() and time.monotonic() < deadline_s:
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.05)


def _figures(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    rows = (line.split() for line in path.read_text("ascii").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
