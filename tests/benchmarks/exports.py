"""Cost of an export to Iceberg, and the age of a record when the table has it.

Cost: all of a tiered topic into a new table, by a warm driver; keys and values for each CPU-second
of JVM, Python workers and brokers together, which is MB/s of one core.

Freshness: a producer writes ten megabytes a second, each record with its production time; a
continuous export reports each commit. A record's age is taken when the commit that contains it is
reported.
"""

import statistics
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Message, Producer

from tests.benchmarks.export_process import Exporter
from tests.benchmarks.processes import cpu_seconds
from tests.conformance.local_cluster import RunningCluster
from tidemark_devcluster import processes

RECORD_BYTES = 1024
BYTES_A_SECOND = 10_000_000
FRESHNESS_S = 120
COMMIT_S = 20
#: One record in this number reports its age.
_SAMPLED = 100
_TICK_S = 0.01


def export_figures(
    cluster: RunningCluster, topic: str, records: int, size: int, rounds: int, folder: Path
) -> str:
    """Prints each round; the median in a line. ``size``: of a record's key and value."""
    options = {"topic": topic, "path": str(cluster.tier_folder), "bootstrap": cluster.bootstrap}
    exporter = Exporter(options, folder)
    megabytes = records * size / 1e6
    rates, walls = [], []
    try:
        # The first export warms up the driver and is not counted.
        exporter.run()
        for number in range(1, rounds + 1):
            # Costs of both the export and the brokers, which serve the local tail.
            before = exporter.cpu_seconds() + _brokers_s(cluster)
            told = exporter.run()
            cpu_s = exporter.cpu_seconds() + _brokers_s(cluster) - before
            if told["rows"] != records:
                raise SystemExit(f"exported {told['rows']} rows, produced {records}")
            rates.append(megabytes / cpu_s)
            walls.append(megabytes / told["seconds"])
            print(
                f"  round {number}: export to Iceberg {rates[-1]:.1f} MB/s of one core "
                f"({cpu_s:.1f} CPU-s), {walls[-1]:.1f} MB/s in all, {told['files']} files of "
                f"{told['bytes'] / 1e6:.0f} MB",
                flush=True,
            )
    finally:
        exporter.close()
    return (
        f"export to Iceberg {statistics.median(rates):.1f} MB/s of one core, "
        f"{statistics.median(walls):.1f} MB/s in all"
    )


def freshness_figures(cluster: RunningCluster, folder: Path, seconds: int = FRESHNESS_S) -> str:
    """Prints each commit; how old records were in a line."""
    topic = cluster.new_topic(
        partitions=2,
        replicationFactor=1,
        config={"segment.bytes": str(16 * 1024 * 1024), "retention.ms": "-1"},
        tiering={"enabled": True},
    )
    options = {"topic": topic, "path": str(cluster.tier_folder), "bootstrap": cluster.bootstrap}
    exporter = Exporter(options | {"startingOffsets": "earliest"}, folder, every_s=COMMIT_S)
    # Records flow while the export starts, so its first commit has a backlog.
    source = _Steady(cluster.bootstrap, topic)
    began = exporter.cpu_seconds(), _brokers_s(cluster)
    commits: list[tuple[int, dict[int, int]]] = []
    source.start(seconds)
    try:
        for told in exporter.told():
            commits.append((told["ms"], {int(p): end for p, end in told["offsets"].items()}))
            print(f"  commit {len(commits)}: {sum(commits[-1][1].values()):,} records", flush=True)
            # The last commit has to contain the last record of each partition.
            if source.over and all(commits[-1][1].get(p, 0) > o for p, o in source.last.items()):
                break
    finally:
        cpu_s = exporter.cpu_seconds() - began[0], _brokers_s(cluster) - began[1]
        exporter.close()
    ages = sorted(_ages(source.sampled, commits))
    sent = source.sent * RECORD_BYTES / 1e6
    return (
        f"freshness at {sent / source.took_s:.1f} MB/s for {source.took_s:.0f} s, a commit every "
        f"{COMMIT_S} s: {statistics.median(ages):.0f} s (median), "
        f"{_share(ages, 0.99):.0f} s (99 %), {ages[-1]:.0f} s (oldest); {cpu_s[0]:.0f} CPU-s of "
        f"the export from its start on, "
        f"{cpu_s[1]:.0f} of the broker"
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

    def start(self, seconds: int) -> None:
        """As many bytes a second as are to be, as evenly as a thread can."""
        threading.Thread(target=self._run, args=(seconds,), daemon=True).start()

    def _run(self, seconds: int) -> None:
        # Text with numbers compresses like real records: random bytes would not, and equal ones
        # would too well.
        words = b"".join(b"%d flight %x late " % (n, n * 2654435761 % 2**32) for n in range(4096))
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < seconds:
            # The rate follows the clock, so a pause is made up for.
            due = int(passed_s * BYTES_A_SECOND / RECORD_BYTES)
            while self.sent < due:
                at = self.sent * 7 % (len(words) - RECORD_BYTES)
                try:
                    self._producer.produce(
                        self._topic,
                        words[at : at + RECORD_BYTES],
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
        self.over = True

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
