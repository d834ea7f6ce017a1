"""Measures that ``make bench`` takes of a running side: throughput in several settings, latency
at a steady rate, groups, connections, and the time from a broker's start to its first answer.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.benchmarks import many_connections
from tests.benchmarks.load import RECORD_BYTES, Answer, ClientLoad
from tests.benchmarks.load_process import run
from tests.benchmarks.processes import cpu_seconds, peak_resident_mb, resident_mb
from tests.benchmarks.results import Figures
from tests.benchmarks.sides import BenchmarkSide

RECORDS = int(os.environ.get("BENCH_RECORDS", "400000"))
RATE, LATENCY_S = 1000, 12
MEMBERS, IDLE = 5_000, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """``brokers``: of the cluster that it is taken of; ``take``: the figures of one round."""

    name: str
    brokers: int
    take: Callable[[BenchmarkSide], Figures]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSetting:
    """Setting of a throughput measure.

    ``spread``: over three brokers, to show the gain of more processes.
    """

    partitions: int = 1
    record_bytes: int = RECORD_BYTES
    acks: str = "all"
    replicas: int = 1
    clients: int = 1
    idempotent: bool = False
    spread: bool = False

    @property
    def brokers(self) -> int:
        """Number of brokers in the cluster."""
        return 3 if self.spread else self.replicas

    def __str__(self) -> str:
        words = [
            f"{self.partitions} partition{'s' if self.partitions > 1 else ''}",
            f"{self.record_bytes} B",
            f"acks={self.acks}",
            f"RF {self.replicas}",
        ]
        words += [f"{self.clients} clients"] if self.clients > 1 else []
        words += ["idempotent"] if self.idempotent else []
        words += ["3 brokers"] if self.spread else []
        return ", ".join(words)


def throughput(side: BenchmarkSide, setting: MeasureSetting) -> Figures:
    """Produce all, then fetch all."""
    topic = side.topic(setting.partitions, setting.replicas)
    load = ClientLoad(
        kind="produce",
        bootstrap=side.bootstrap,
        topic=topic,
        records=RECORDS,
        record_bytes=setting.record_bytes,
        partitions=setting.partitions,
        acks=setting.acks,
        idempotent=setting.idempotent,
    )
    gigabytes = RECORDS * setting.record_bytes / 1e9
    # Fetch reads what the produce run wrote, through caches that are warm.
    found: dict[str, float] = {}
    for kind in ("produce", "fetch"):
        wanted = replace(load, kind=kind)
        # CPU of the brokers alone. The client is the same on both sides.
        before = _cpu(side)
        found[f"{kind} MB/s"] = _mb_s(run(wanted, setting.clients), setting.record_bytes)
        found[f"{kind} CPU-s/GB"] = (_cpu(side) - before) / gigabytes
    found["memory MB"] = sum(map(resident_mb, side.pids()))
    found["peak memory MB"] = sum(map(peak_resident_mb, side.pids()))
    return found


def _mb_s(answer: Answer, record_bytes: int) -> float:
    return answer["records"] * record_bytes / 1e6 / (answer["ended"] - answer["began"])


def _cpu(side: BenchmarkSide) -> float:
    return sum(map(cpu_seconds, side.pids()))


def latency(side: BenchmarkSide, replicas: int) -> Figures:
    """Milliseconds until a record is acknowledged by all."""
    load = ClientLoad(
        kind="latency",
        bootstrap=side.bootstrap,
        topic=side.topic(1, replicas),
        records=RATE * LATENCY_S,
        rate=RATE,
    )
    return {f"{name} ms": value for name, value in run(load).items()}


def group(side: BenchmarkSide, members: int) -> Figures:
    """A group reads what was produced before."""
    # A partition for each member, at least.
    partitions = max(6, members)
    topic = side.topic(partitions)
    load = ClientLoad(
        kind="produce",
        bootstrap=side.bootstrap,
        topic=topic,
        records=RECORDS,
        partitions=partitions,
    )
    run(load)
    answer = run(replace(load, kind="group", members=members))
    return {"read MB/s": _mb_s(answer, RECORD_BYTES), "all assigned s": answer["joined"]}


def idle_connections(side: BenchmarkSide) -> Figures:
    """Measure the memory of idle connections on a freshly started broker.

    Memory that other measures left would hide it.
    """
    many_connections.first_answer_s(side.bootstrap, side.restart())
    (pid,) = side.pids()
    # The broker is fresh and has served one request.
    before = resident_mb(pid)
    with many_connections.idle(side.bootstrap, IDLE):
        return {f"{IDLE} connections MB": resident_mb(pid) - before}


def start(side: BenchmarkSide) -> Figures:
    """From the start of a broker's process to its first answer."""
    return {"first answer s": many_connections.first_answer_s(side.bootstrap, side.restart())}


def rebalance(side: BenchmarkSide) -> Figures:
    """Measure the rebalance of a group of thousands: the first one, and one that its leader
    triggers.
    """
    joined_s, again_s = many_connections.rebalance(side.bootstrap, MEMBERS)
    return {f"{MEMBERS} join s": joined_s, f"{MEMBERS} rebalance s": again_s}


SETTINGS = (
    MeasureSetting(),
    MeasureSetting(idempotent=True),
    MeasureSetting(acks="1"),
    MeasureSetting(record_bytes=100),
    MeasureSetting(partitions=6),
    MeasureSetting(partitions=6, record_bytes=100),
    MeasureSetting(partitions=6, clients=4),
    MeasureSetting(partitions=6, clients=4, spread=True),
    MeasureSetting(replicas=3),
    MeasureSetting(partitions=6, replicas=3),
    MeasureSetting(partitions=6, replicas=3, clients=4),
)
MEASURES: Sequence[Measure] = (
    *(
        Measure(
            name=str(item),
            brokers=item.brokers,
            take=lambda side, item=item: throughput(side, item),  # type: ignore[misc]
        )
        for item in SETTINGS
    ),
    Measure(name="latency at 1,000/s, RF 1", brokers=1, take=lambda side: latency(side, 1)),
    Measure(name="latency at 1,000/s, RF 3", brokers=3, take=lambda side: latency(side, 3)),
    Measure(name="group of 1", brokers=1, take=lambda side: group(side, 1)),
    Measure(name="group of 50", brokers=1, take=lambda side: group(side, 50)),
    Measure(name="group of 5,000", brokers=1, take=rebalance),
    Measure(name="10,000 idle connections", brokers=1, take=idle_connections),
    Measure(name="start", brokers=1, take=start),
)
