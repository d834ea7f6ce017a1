"""Cost of an export to Iceberg, and the age of a record when the table has it.

Cost: all of a tiered topic into a new table, by a warm driver, with and without the optional jar;
keys and values for each CPU-second of JVM, Python workers and brokers together, which is MiB/s of
one core.

Freshness: a continuous export reports each commit. After its first one a producer writes ten
megabytes a second, each record with its production time. A record's age is taken when the commit
that contains it is reported.
"""

import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Message, Producer

from tests.benchmarks.export_process import Exporter
from tests.benchmarks.processes import cpu_seconds
from tests.benchmarks.results import Results, median, one_line
from tests.benchmarks.sides import OURS
from tests.conformance.local_cluster import RunningCluster
from tidemark_devcluster import processes
from tidemark_pipeline.session import COLUMNAR_JAR
from tools.columnar_jar import build

_EXPORT = "export to Iceberg (Parquet, zstd)"
_RATE = "MiB/CPU-s"
_WARM_UPS = 3
RECORD_BYTES = 1024
BYTES_A_SECOND = 10_000_000
FRESHNESS_S = 120
COMMIT_S = 20
#: One record in this number reports its age.
_SAMPLED = 100
_TICK_S = 0.01


class TextValues:
    """Values of records: words and numbers, which compress like text.

    Equal values, and values that overlap those of the records before them, would compress so well
    that a read of them is no read of a tier.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._words = b"".join(
            b"%d flight %x delayed " % (n, n * 2654435761 % 2**32) for n in range(4096)
        )

    def of(self, number: int) -> bytes:
        """Return the value of a record. ``number``: of the record in its topic."""
        at = number * self._size % (len(self._words) - self._size)
        return self._words[at : at + self._size]


def with_jar(folder: Path) -> dict[str, str]:
    """Build the optional jar, and return the settings of a session with it."""
    return {"spark.jars": str(build(folder / COLUMNAR_JAR))}


def export_figures(
    cluster: RunningCluster, topic: str, records: int, size: int, folder: Path, results: Results
) -> list[str]:
    """Print each round, and return the medians. ``size``: of a record's key and value."""
    options = {"topic": topic, "path": str(cluster.tier_folder), "bootstrap": cluster.bootstrap}
    lines = []
    for name, settings in ((_EXPORT, {}), (f"{_EXPORT} with the jar", with_jar(folder))):
        own = folder / name.replace(" ", "-")
        own.mkdir()
        exporter = Exporter(options, own, settings=settings)
        try:
            # The first exports warm up the driver and are not counted.
            for _ in range(_WARM_UPS):
                exporter.run()
            for number in range(1, results.rounds + 1):
                figures = _export_round(exporter, cluster, records, size)
                results.add(f"{name}, {size} bytes", OURS, number, figures)
                print(f"  round {number}: {name} {one_line(figures)}", flush=True)
        finally:
            exporter.close()
        of_name = results.figures[f"{name}, {size} bytes"][OURS]
        lines.append(f"{name} {median(of_name, _RATE):.1f} {_RATE}")
    return lines


def _export_round(
    exporter: Exporter, cluster: RunningCluster, records: int, size: int
) -> dict[str, float]:
    # Costs of both the export and the brokers, which serve the local tail.
    before = exporter.cpu_seconds() + _brokers_s(cluster)
    result = exporter.run()
    cpu_s = exporter.cpu_seconds() + _brokers_s(cluster) - before
    if result["rows"] != records:
        raise SystemExit(f"exported {result['rows']} rows, produced {records}")
    mebibytes = records * size / 2**20
    return {_RATE: mebibytes / cpu_s, "MiB/s": mebibytes / result["seconds"], "CPU-s": cpu_s}


def freshness_figures(cluster: RunningCluster, folder: Path, results: Results) -> str:
    """Print each commit, and return how old records were."""
    topic = cluster.new_topic(
        partitions=2,
        replicationFactor=1,
        config={"segment.bytes": str(16 * 1024 * 1024), "retention.ms": "-1"},
        tiering={"enabled": True},
    )
    options = {"topic": topic, "path": str(cluster.tier_folder), "bootstrap": cluster.bootstrap}
    source = _Steady(cluster.bootstrap, topic)
    source.first()
    exporter = Exporter(options | {"startingOffsets": "earliest"}, folder, every_s=COMMIT_S)
    commits: list[tuple[int, dict[int, int]]] = []
    try:
        reports = exporter.reports()
        # The start of Spark is no part of a continuous export's freshness.
        next(reports)
        began = exporter.cpu_seconds(), _brokers_s(cluster)
        source.start(FRESHNESS_S)
        for report in reports:
            commits.append((report["ms"], {int(p): end for p, end in report["offsets"].items()}))
            print(f"  commit {len(commits)}: {sum(commits[-1][1].values()):,} records", flush=True)
            # The last commit has to contain the last record of each partition.
            if source.over and all(commits[-1][1].get(p, 0) > o for p, o in source.last.items()):
                break
        cpu_s = exporter.cpu_seconds() - began[0], _brokers_s(cluster) - began[1]
    finally:
        exporter.close()
    if not source.took_s:
        raise SystemExit(f"the producer failed after {source.sent:,} records: see the error above")
    ages = sorted(_ages(source.sampled, commits))
    sent = source.sent * RECORD_BYTES / 1e6
    figures = {
        "p50 s": _share(ages, 0.5),
        "p95 s": _share(ages, 0.95),
        "p99 s": _share(ages, 0.99),
        "oldest s": ages[-1],
        "export CPU-s": cpu_s[0],
        "broker CPU-s": cpu_s[1],
    }
    measure = f"freshness of a table at {BYTES_A_SECOND / 1e6:.0f} MB/s, commits every {COMMIT_S} s"
    results.add(measure, OURS, 1, figures)
    return (
        f"{measure}: {sent / source.took_s:.1f} MB/s for {source.took_s:.0f} s, {one_line(figures)}"
    )


class _Steady:
    """A producer in a thread. ``sampled``: (partition, offset, milliseconds) of some records."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"}
        )
        self._topic = topic
        self.sampled: list[tuple[int, int, int]] = []
        self.last: dict[int, int] = {}
        self.sent = 0
        self.took_s = 0.0
        self.over = False

    def first(self) -> None:
        """Write a record to each partition, whose age does not count."""
        for partition in (0, 1):
            self._producer.produce(self._topic, b"first", partition=partition)
        self._producer.flush(120)

    def start(self, seconds: int) -> None:
        """As many bytes a second as are to be, as evenly as a thread can."""
        threading.Thread(target=self._run, args=(seconds,), daemon=True).start()

    def _run(self, seconds: int) -> None:
        try:
            self._produce(seconds)
        finally:
            # Also after a failure, as the export is waited for only until the producer ends.
            self.over = True

    def _produce(self, seconds: int) -> None:
        values = TextValues(RECORD_BYTES)
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < seconds:
            # The rate follows the clock, so a pause is made up for.
            due = int(passed_s * BYTES_A_SECOND / RECORD_BYTES)
            while self.sent < due:
                try:
                    self._producer.produce(
                        self._topic,
                        values.of(self.sent),
                        partition=self.sent % 2,
                        timestamp=time.time_ns() // 1_000_000,
                        on_delivery=self._delivered,
                    )
                except BufferError:
                    break
                self.sent += 1
            self._producer.poll(_TICK_S)
        self._producer.flush(120)
        self.took_s = time.monotonic() - began_s

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            raise SystemExit(f"not every record was acknowledged: {error}")
        partition, offset = message.partition(), message.offset()
        self.last[partition] = max(offset, self.last.get(partition, -1))
        if offset % _SAMPLED == 0:
            self.sampled.append((partition, offset, message.timestamp()[1]))


def _ages(
    sampled: Sequence[tuple[int, int, int]], commits: Sequence[tuple[int, dict[int, int]]]
) -> list[float]:
    """Seconds, of each record, until the first commit whose end is behind it."""
    # The first commit that ends behind a record is the one that contains it.
    ends: dict[int, list[int]] = defaultdict(list)
    for _, offsets in commits:
        for partition in (0, 1):
            ends[partition].append(offsets.get(partition, 0))
    return [
        (commits[bisect_right(ends[partition], offset)][0] - ms) / 1000
        for partition, offset, ms in sampled
    ]


def _share(ages: Sequence[float], share: float) -> float:
    return ages[min(len(ages) - 1, int(len(ages) * share))]


def _brokers_s(cluster: RunningCluster) -> float:
    record = processes.find(cluster.local.layout, "broker-1")
    return 0.0 if record is None else cpu_seconds(record.pid)
