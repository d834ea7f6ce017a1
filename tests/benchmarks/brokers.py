"""``make bench``: our broker and Apache Kafka in turn, on the same machine, by the same client.

Prints every round, then medians and ratios (ours / Kafka's). No figure is a pass or a failure: it
is a measurement to be reported.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from tests.benchmarks import kafka
from tests.benchmarks.load import RECORD_BYTES
from tests.benchmarks.load_process import run_load
from tests.benchmarks.processes import cpu_seconds, resident_mb
from tidemark_cli.local import processes
from tidemark_cli.local import settings as local_settings
from tidemark_cli.local.cluster import LocalCluster
from tidemark_cli.local.layout import Layout
from tidemark_cli.local.topic_rows import topic as topic_info

RECORDS = int(os.environ.get("BENCH_RECORDS", "400000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
TOPIC, WARM_UP = "bench", "warm-up"
Ready = Callable[[Path], "Side"]


class Figures(NamedTuple):
    """One round: MB/s and broker CPU-seconds per GB for both directions, resident MB."""

    produce_mb_s: float
    produce_cpu_s_per_gb: float
    fetch_mb_s: float
    fetch_cpu_s_per_gb: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class Side:
    """A running broker: its process, its address, and how to stop it."""

    pid: int
    bootstrap: str
    stop: Callable[[], object]


def start_kafka(folder: Path) -> Side:
    """Apache Kafka with two topics of one partition each."""
    broker = kafka.start(kafka.ensure_jars(), folder)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic(name, 1, 1) for name in (WARM_UP, TOPIC)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    return Side(broker.processes[0].pid, broker.bootstrap, broker.stop)


def start_tidemark(folder: Path) -> Side:
    """A whole local cluster with one broker and the same topics, untiered as Kafka's are."""
    layout = Layout.at(folder / "cluster")
    layout.create()
    settings = local_settings.choose(layout, cluster="tidemark", tier="directory")
    cluster = LocalCluster(layout, settings, lambda _: None)
    addresses = cluster.start(brokers=1)
    kube = cluster.kube()
    for name in (WARM_UP, TOPIC):
        kube.apply(
            "Topic",
            name,
            {"clusterRef": {"name": "tidemark"}, "partitions": 1, "replicationFactor": 1},
        )
        while not any(row.leader >= 0 for row in topic_info(kube, name).rows):
            time.sleep(0.05)
    kube.close()
    broker = processes.find(layout, "broker-1")
    if broker is None:
        raise RuntimeError("broker 1 is not running")
    return Side(broker.pid, addresses.bootstrap, cluster.stop)


def measure(side: Side) -> Figures:
    """One produce and one fetch run against a broker, after the same of no account: a JVM needs
    it to compile what is hot."""
    gigabytes = RECORDS * RECORD_BYTES / 1e9
    for kind in ("produce", "fetch"):
        _run(side, kind, WARM_UP)
    produce_s, produce_cpu = _run(side, "produce", TOPIC)
    fetch_s, fetch_cpu = _run(side, "fetch", TOPIC)
    return Figures(
        gigabytes * 1000 / produce_s,
        produce_cpu / gigabytes,
        gigabytes * 1000 / fetch_s,
        fetch_cpu / gigabytes,
        resident_mb(side.pid),
    )


def main() -> None:
    """Alternate the two sides and print the table."""
    try:
        kafka.ensure_jars()
    except kafka.KafkaMissing as error:
        raise SystemExit(str(error)) from error
    sides: dict[str, Ready] = {"Apache Kafka": start_kafka, "Tidemark": start_tidemark}
    results: dict[str, list[Figures]] = {name: [] for name in sides}
    print(f"{ROUNDS} rounds, {RECORDS:,} records of {RECORD_BYTES} bytes, acks=all, one partition")
    for number in range(1, ROUNDS + 1):
        for name, start in sides.items():
            with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
                side = start(Path(folder))
                try:
                    figures = measure(side)
                finally:
                    side.stop()
            results[name].append(figures)
            print(f"round {number}  {name:13} {_line(figures)}", flush=True)
    medians = {name: _median(rounds) for name, rounds in results.items()}
    for name, figures in medians.items():
        print(f"median   {name:13} {_line(figures)}")
    ours, theirs = medians["Tidemark"], medians["Apache Kafka"]
    ratios = Figures(*(a / b if b else float("nan") for a, b in zip(ours, theirs, strict=True)))
    print(
        "ratio    ours / Kafka  " + "  ".join(f"{n} {v:.2f}" for n, v in ratios._asdict().items())
    )


def _run(side: Side, kind: str, topic: str) -> tuple[float, float]:
    """(seconds as the client saw them, CPU-seconds of the broker's process)."""
    before = cpu_seconds(side.pid)
    seconds = run_load(kind, side.bootstrap, topic, RECORDS)
    return seconds, cpu_seconds(side.pid) - before


def _median(rounds: list[Figures]) -> Figures:
    return Figures(*(statistics.median(column) for column in zip(*rounds, strict=True)))


def _line(figures: Figures) -> str:
    return (
        f"produce {figures.produce_mb_s:6.0f} MB/s at {figures.produce_cpu_s_per_gb:5.2f} CPU-s/GB "
        f"  fetch {figures.fetch_mb_s:6.0f} MB/s at {figures.fetch_cpu_s_per_gb:5.2f} CPU-s/GB   "
        f"memory {figures.memory_mb:5.0f} MB"
    )


if __name__ == "__main__":
    main()
