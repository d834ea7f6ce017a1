"""``make bench-operator``: cost of many Topics for the operator and the API server.

N Topics of three partitions and three replicas are applied over 16 connections. Then single Topics
are changed, then all of them several times in a row, with requests to ``/healthz`` meanwhile. Then
up to 1,000 tiered Topics are created and disabled at once, and finally the system rests. Figures
neither pass nor fail, with two exceptions: no change is lost, and ``/healthz`` always succeeds.
"""

import argparse
import asyncio
import contextlib
import pstats
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.operator_bench import OperatorBench, plane_of, running, said
from tests.benchmarks.pod_limits import Cgroup, Limits, limited
from tests.benchmarks.topic_watch import Seen
from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_operator.kube.kinds import TOPIC

CHANGES = 200
STORM_EACH = 10
STORM_MAX = 10_000
DISABLED_MAX = 1_000
HEALTH_S = 0.5
HEARD_S = 3.0
REST_S = 60.0
#: Figures go to the status up to half a minute late (``broker_reports.FIGURES_S``).
SETTLE_S = 60.0
PROFILED = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorBenchSizes:
    """Amounts of each kind of work."""

    topics: int
    changes: int = CHANGES
    storm: int = STORM_MAX
    disabled: int = DISABLED_MAX
    settle_s: float = SETTLE_S
    rest_s: float = REST_S


async def measure(
    plane: ControlPlane,
    folder: Path,
    sizes: OperatorBenchSizes,
    profile: Path | None = None,
    cgroup: Cgroup | None = None,
) -> list[str]:
    """The figures, in words."""
    async with running(plane, folder, profile, cgroup) as bench:
        return [
            *await applied(bench, sizes.topics),
            *await changed(bench, sizes.topics, sizes.changes),
            *await storm(bench, sizes.topics, sizes.storm),
            *await disabled(bench, min(sizes.topics, sizes.disabled)),
            *await resting(bench, sizes.settle_s, sizes.rest_s),
            *(() if cgroup is None else within(cgroup)),
        ]


async def applied(bench: OperatorBench, topics: int) -> list[str]:
    """From the first request until the last Topic is Ready."""
    # All counters are read before the first request.
    cpu, writes = bench.cpu(), bench.writes()
    # The watch counts while Topics are still being created.
    ready = asyncio.create_task(bench.until(lambda item: item.ready, topics, "Ready"))
    accepted_s = await bench.create(f"t{number}" for number in range(topics))
    ready_s = await ready
    spent = {name: value - cpu[name] for name, value in bench.cpu().items()}
    written = bench.writes() - writes
    memory = bench.memory()
    return [
        said(f"{topics:,} Topics accepted in {accepted_s:.1f} s, Ready in {ready_s:.1f} s"),
        said(f"{topics / ready_s:.0f} Ready a second"),
        *(said(f"{name}: {spent[name] / topics * 1000:.1f} CPU-ms each") for name in spent),
        *(said(f"{name}: {memory[name][0]:.0f} MB, {memory[name][1]:.0f} most") for name in memory),
        *(said(f"{count:,} {what}") for what, count in sorted(written.items())),
    ]


async def changed(bench: OperatorBench, topics: int, changes: int) -> list[str]:
    """Measure the time from a change of a Topic until a broker receives it."""
    chance = random.Random(7)
    took_s = []
    for number in range(changes):
        name, value = f"t{chance.randrange(topics)}", str(3_600_000 + number)
        began_s = time.monotonic()
        await bench.world.patch(TOPIC, name, config={"retention.ms": value})
        async with asyncio.timeout(60):
            while not bench.heard(name, value):  # noqa: ASYNC110 - the value has no event
                await asyncio.sleep(0.002)
        took_s.append(time.monotonic() - began_s)
    took_s.sort()
    low, high = (took_s[changes * share // 100] * 1000 for share in (50, 99))
    return [said(f"one change among them: p50 {low:.0f} ms, p99 {high:.0f} ms")]


async def storm(bench: OperatorBench, topics: int, most: int) -> list[str]:
    """Every Topic is changed several times in a row, as fast as the API server takes it."""
    # Each Topic several times in a row, so changes of one Topic overlap.
    names = [f"t{number % topics}" for number in range(min(most, STORM_EACH * topics))]
    values: dict[str, int] = {}
    generations: dict[str, int] = {}
    writes = bench.writes()
    # Liveness probes continue during the storm, as the kubelet's do.
    health = _Health()
    asking = asyncio.create_task(health.ask(bench))

    async def change(name: str) -> None:
        values[name] = values.get(name, 7_200_000) + 1
        body = await bench.world.patch(TOPIC, name, config={"retention.ms": str(values[name])})
        generations[name] = max(generations.get(name, 0), body["metadata"]["generation"])

    took_s = await bench.each(names, change)
    # One more of each, alone: those before it may have come in any order.
    await bench.each(list(values), change)
    settled_s = await bench.until(
        lambda item: item.ready and item.observed >= generations.get(item.name, 0),
        len(bench.watch.seen),
        "observed",
    )
    await asyncio.sleep(HEARD_S)  # brokers are notified after the status is written
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    # The last value of each Topic has to reach the brokers, whatever was merged before.
    lost = sum(not bench.heard(name, str(value)) for name, value in values.items())
    written = (bench.writes() - writes)["topics/status PUT"]
    if lost:
        raise SystemExit(
            f"{lost} of {len(values)} Topics: a broker has not received the last change"
        )
    if red := health.statuses.total() - health.statuses[200]:
        raise SystemExit(f"/healthz was red {red} times: {health.worst}")
    return [
        said(
            f"{len(names):,} changes in {took_s:.1f} s, all observed {settled_s:.1f} s after the "
            f"last, nothing lost, {written:,} statuses, /healthz green {health.statuses[200]} times"
        )
    ]


class _Health:
    """All answers of ``/healthz`` during the run."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.worst = ""

    async def ask(self, bench: OperatorBench) -> None:
        """Again and again, until cancelled."""
        while True:
            status, body = await bench.operator.get("/healthz")
            self.statuses[status] += 1
            if status != 200:
                self.worst = body
            await asyncio.sleep(HEALTH_S)


async def disabled(bench: OperatorBench, topics: int) -> list[str]:
    """Tiered ones are made, and disabled at once."""
    names = [f"d{number}" for number in range(topics)]
    await bench.create(names, tiering={"enabled": True})
    await bench.until(_tiered("Enabled"), topics, "tiered")
    cpu, writes = bench.cpu(), bench.writes()
    # Watched from the start, as the first may be done before the last is requested.
    over = asyncio.create_task(bench.until(_tiered("Disabled"), topics, "disabled"))
    off = {"enabled": False, "disablePolicy": "Delete"}
    await bench.each(names, lambda name: bench.world.patch(TOPIC, name, tiering=off))
    took_s = await over
    statuses = (bench.writes() - writes)["topics/status PUT"]
    spent = {name: value - cpu[name] for name, value in bench.cpu().items()}
    costs = ", ".join(f"{name} {s / topics * 1000:.1f} CPU-ms each" for name, s in spent.items())
    return [said(f"{topics:,} disabled at once in {took_s:.1f} s, {statuses:,} statuses, {costs}")]


def _tiered(state: str) -> Callable[[Seen], bool]:
    def look(each: Seen) -> bool:
        return each.tiering == state and each.settled

    return look


async def resting(bench: OperatorBench, settle_s: float, rest_s: float) -> list[str]:
    """Measure the system at rest."""
    await asyncio.sleep(settle_s)
    # After the last delayed status, so that only what never ends is counted.
    cpu, writes = bench.cpu(), bench.writes()
    await asyncio.sleep(rest_s)
    share = (bench.cpu()["operator"] - cpu["operator"]) / rest_s
    written = bench.writes() - writes
    others = {what: count for what, count in written.items() if not what.startswith("leases")}
    told = ", ".join(f"{count} {what}" for what, count in sorted(others.items())) or "none"
    now, most = bench.memory()["operator"]
    return [
        said(f"at rest, {rest_s:.0f} s: writes but the Lease's: {told}; {share:.1%} of a core"),
        said(f"operator in the end: {now:.0f} MB, {most:.0f} at most"),
    ]


def within(cgroup: Cgroup) -> list[str]:
    """Describe the usage of a cgroup and its limits."""
    used = f"{cgroup.most_mb():.0f} MiB at most, caches of files included"
    if cgroup.limits.cpus is not None:
        used += f", held up in {cgroup.held_up():.0%} of all periods"
    return [said(f"in a pod's limits ({cgroup.limits}): {used}, killed {cgroup.killed()} times")]


def main() -> None:
    """Measure, and print all of it once more in one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--limits", action="store_true", help="those of the chart; root alone")
    parser.add_argument(
        "--cpus", type=float, help="the same with this number of cores, 0 for what is requested"
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-operator-"))
        profile = Path(name) / "profile" if options.profile else None
        sizes = OperatorBenchSizes(topics=options.topics)
        cgroup = None
        # The chart's own limits, to measure what a user's operator has.
        if options.limits or options.cpus is not None:
            cgroup = stack.enter_context(limited(Limits.of_the_operator(options.cpus)))
        with plane_of(Path(name)) as plane:
            lines = asyncio.run(measure(plane, Path(name), sizes, profile, cgroup))
        if profile is not None:
            pstats.Stats(str(profile)).sort_stats("tottime").print_stats(PROFILED)
    print("bench-operator: " + "; ".join(lines))


if __name__ == "__main__":
    main()
