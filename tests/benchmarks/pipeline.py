"""``make bench-pipeline``: what Spark pays for a row, by our source and by its own Kafka source.

The same records are in a tiered topic of ours, of which the brokers keep everything too, and on
Apache Kafka. In turn a Spark driver reads all of it: by ``tidemark`` (tier, and the tail from
brokers; all columns, those three that the query needs, and with the optional jar), by
``kafka`` from our broker, and by ``kafka`` from Apache Kafka. Counted are the CPU-seconds of the
driver's JVM, its Python workers and the brokers together, and wall time; each driver has read it
some times before. Every read's sums must be what was produced. Each round reads a few records, too:
what that costs is what a query costs whatever it reads, and the rest is what rows cost.

Results are written to ``build/benchmarks``. Parts that are measured one at a time are added to
those of the same commit.

Then what an export to Iceberg costs and how fresh its table is (:mod:`tests.benchmarks.exports`).
Last, without Spark: how long a plan over a long manifest takes.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyspark
from confluent_kafka import Producer

from tests import apache_kafka
from tests.benchmarks.exports import TextValues, export_figures, freshness_figures, with_jar
from tests.benchmarks.plans import plan_figures
from tests.benchmarks.processes import cpu_seconds
from tests.benchmarks.results import Results
from tests.benchmarks.sides import KAFKA as THEIR_SIDE
from tests.benchmarks.sides import OURS as OUR_SIDE
from tests.benchmarks.sides import start_kafka
from tests.benchmarks.spark_process import SparkReader
from tests.conformance.local_cluster import RunningCluster, run_cluster, wait
from tests.table_jars import MavenMissing, jars
from tidemark.ids import parse_id
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.stores.directory import DirectoryStore
from tidemark_devcluster import processes
from tidemark_devcluster.toolchain.maven import ensure_jars, spark_kafka
from tidemark_pipeline.export.formats import Format

OURS, NARROW = "tidemark", "tidemark, three columns"
COLUMNAR = "tidemark, columnar jar"
BROKER, APACHE = "kafka source, our broker", "kafka source, Apache Kafka"
PARTITIONS = 2
KEY_BYTES = 8
_ROWS = "million rows/CPU-s"
SEGMENT_BYTES = 8 * 1024 * 1024
#: Least share of the records that a read gets from the tier.
IN_TIER_LEAST = 0.75
#: Records of each partition that stand for a query of next to nothing.
FEW = 1000
#: Reads that are not counted: the JVM compiles in them.
WARM_UPS = 5


@dataclass(frozen=True, slots=True)
class PipelineLoad:
    """Records of one size and codec."""

    record_bytes: int
    codec: str
    records: int

    def few(self) -> "PipelineLoad":
        """Its first records, by turns from each partition."""
        return replace(self, records=FEW * PARTITIONS)

    def sums(self) -> tuple[int, ...]:
        """Sums that a full read has to return; the last is the greatest offset."""
        values = self.records * (self.record_bytes - KEY_BYTES)
        return self.records, self.records * KEY_BYTES, values, self.records // PARTITIONS - 1

    def produce(self, bootstrap: str, topic: str) -> None:
        """To each partition by turns."""
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": self.codec,
                "linger.ms": 50,
                "batch.size": 64 * 1024,
                "queue.buffering.max.messages": 200_000,
            }
        )
        values = TextValues(self.record_bytes - KEY_BYTES)
        for number in range(self.records):
            # A full queue is served once, and then the record fits.
            for _ in range(2):
                try:
                    producer.produce(
                        topic,
                        values.of(number),
                        b"%08d" % number,
                        partition=number % PARTITIONS,
                    )
                    break
                except BufferError:
                    producer.poll(1)
            if number % 1000 == 0:
                producer.poll(0)
        if producer.flush(120):
            raise SystemExit("not every record was acknowledged")


@dataclass(frozen=True, slots=True)
class Read:
    """One: CPU-seconds of all, of the brokers among them, and wall time."""

    cpu_s: float
    brokers_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PipelineCost:
    """Median cost of a side: for all records, for a few records; ``records`` of all."""

    records: int
    all: Read
    few: Read

    @property
    def rows(self) -> float:
        """Rows per CPU-second of a full read."""
        return self.records / self.all.cpu_s

    @property
    def marginal_rows(self) -> float:
        """Rows per CPU-second after the first few."""
        return (self.records - FEW * PARTITIONS) / max(self.all.cpu_s - self.few.cpu_s, 0.01)


class PipelineSide:
    """A driver and the brokers that it may use; ``topic`` is what the records are in."""

    def __init__(
        self, reader: SparkReader, topic: str, brokers: Callable[[], Sequence[int]]
    ) -> None:
        self._reader = reader
        self._brokers = brokers
        # The first records of each partition stand for a query of a few rows.
        ends = {topic: {str(partition): FEW for partition in range(PARTITIONS)}}
        self._few = {"endingOffsets": json.dumps(ends)}
        self._all_read: list[Read] = []
        self._few_read: list[Read] = []

    def read(self, load: PipelineLoad) -> Read:
        """All once and a few once, counted."""
        self._all_read.append(self._measured(load, {}))
        self._few_read.append(self._measured(load.few(), self._few))
        return self._all_read[-1]

    def warm_up(self) -> None:
        """Run once without counting."""
        for options in ({}, self._few):
            self._reader.read(options)

    def close(self) -> None:
        self._reader.close()

    def cost(self, load: PipelineLoad) -> PipelineCost:
        """Return the cost of all reads so far."""
        return PipelineCost(load.records, _median(self._all_read), _median(self._few_read))

    def _measured(self, load: PipelineLoad, options: Mapping[str, str]) -> Read:
        # The sums are checked in each run: a fast read of wrong data is no figure.
        drivers, brokers = self._reader.cpu_seconds(), self._brokers_s()
        sums, seconds = self._reader.read(options)
        if sums != load.sums():
            raise SystemExit(f"read {sums}, produced {load.sums()}")
        brokers_s = self._brokers_s() - brokers
        return Read(self._reader.cpu_seconds() - drivers + brokers_s, brokers_s, seconds)

    def _brokers_s(self) -> float:
        return sum(map(cpu_seconds, self._brokers()))


def _median(reads: Sequence[Read]) -> Read:
    """Return the median of each figure."""
    return Read(
        *(
            statistics.median(getattr(read, name) for read in reads)
            for name in ("cpu_s", "brokers_s", "seconds")
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-pipeline", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument(
        "--only",
        default="",
        help="what has this in its name: '100 bytes', export, freshness, plans",
    )
    given = parser.parse_args()
    try:
        jars(Format.ICEBERG)
        kafka_jars = ensure_jars(spark_kafka(pyspark.__version__))
        apache_kafka.jars()
    except MavenMissing as error:
        raise SystemExit(str(error)) from None
    results = Results(
        benchmark="pipeline", rounds=given.rounds, setting={"megabytes": given.megabytes}
    )
    results.resume()
    figures = []
    # Small and usual records, with and without compression.
    for size in (100, 1024):
        for codec in ("none", "lz4", "zstd"):
            load = PipelineLoad(
                size, codec, given.megabytes * 1_000_000 // size // PARTITIONS * PARTITIONS
            )
            name = f"{size} bytes, {codec}"
            if given.only in name:
                figures.append(f"{name}: {compare(name, load, results, kafka_jars)}")
                results.write()
    figures += exported(given.only, given.megabytes, results)
    if given.only in "plans":
        figures.append(plan_figures())
    print(f"bench-pipeline: {'; '.join(figures)}")


def exported(only: str, megabytes: int, results: Results) -> list[str]:
    """Measure the requested costs and table freshness of exports."""
    wanted = [name for name in ("export", "freshness") if only in name]
    if not wanted:
        return []
    # An export writes columns, so one size and codec are enough.
    size = 1024
    load = PipelineLoad(size, "lz4", megabytes * 1_000_000 // size // PARTITIONS * PARTITIONS)
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as name:
        folders = {item: Path(name) / item for item in ("cluster", *wanted)}
        for folder in folders.values():
            folder.mkdir()
        # Both measurements share one broker, and have topics of their own.
        with run_cluster(folders["cluster"], brokers=1) as cluster:
            if "export" in wanted:
                print(f"export: {load.records:,} records of {size} bytes", flush=True)
                topic = tiered(cluster, load)
                figures += export_figures(
                    cluster, topic, load.records, size, folders["export"], results
                )
                results.write()
            if "freshness" in wanted:
                print("freshness", flush=True)
                figures.append(freshness_figures(cluster, folders["freshness"], results))
                results.write()
    return figures


def compare(name: str, load: PipelineLoad, results: Results, kafka_jars: Path) -> str:
    """Print a table, add each round to the results, and return the ratios."""
    print(f"{name}: {load.records:,} records", flush=True)
    with started(load, kafka_jars) as sides:
        # The JVM compiles hot code in the first runs of each driver.
        for _ in range(WARM_UPS):
            for side in sides.values():
                side.warm_up()
        # By turns, so that a machine that slows down affects all sides. Each round begins with
        # another side, because JVMs still become faster.
        order = deque(sides)
        for number in range(1, results.rounds + 1):
            rows = {}
            for label in order:
                last = sides[label].read(load)
                rows[label] = {_ROWS: load.records / last.cpu_s / 1e6}
                print(
                    f"  round {number}: {label:28} {load.records / last.cpu_s / 1e6:5.2f} million "
                    f"rows a CPU-second (brokers {last.brokers_s:.1f} CPU-s), {last.seconds:.1f} s",
                    flush=True,
                )
            order.rotate()
            # Each is compared with Spark's own source and Apache Kafka.
            theirs = rows.pop(APACHE)
            for label, figures in rows.items():
                results.add(f"{name}: {label}", OUR_SIDE, number, figures)
                results.add(f"{name}: {label}", THEIR_SIDE, number, theirs)
        found = {label: side.cost(load) for label, side in sides.items()}
    print(f"  {'million rows a CPU-second:':28} all  without  |  CPU-s of a few rows")
    for label, cost in found.items():
        print(
            f"  {label:28} {cost.rows / 1e6:5.2f}  {cost.marginal_rows / 1e6:5.2f}   |  "
            f"{cost.few.cpu_s:.2f}",
            flush=True,
        )
    return ", ".join(
        f"{label} {found[label].rows / 1e6:.2f} million rows a CPU-second, "
        + " and ".join(
            f"{found[label].rows / found[other].rows:.2f} times {other}"
            f" ({found[label].marginal_rows / found[other].marginal_rows:.2f} without what a query "
            f"of a few rows costs, {found[other].all.seconds / found[label].all.seconds:.2f} in "
            "wall time)"
            for other in (BROKER, APACHE)
        )
        for label in (OURS, NARROW, COLUMNAR)
    )


@contextmanager
def started(load: PipelineLoad, kafka_jars: Path) -> Iterator[Mapping[str, PipelineSide]]:
    """The five, with all records where they are read."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-pipeline-")))

        def folder(name: str) -> Path:
            (scratch / name).mkdir()
            return scratch / name

        cluster = stack.enter_context(run_cluster(folder("cluster"), brokers=1))
        topic = tiered(cluster, load)
        theirs = start_kafka(folder("apache"), 1)
        stack.callback(theirs.stop)
        their_topic = theirs.topic(PARTITIONS)
        load.produce(theirs.bootstrap, their_topic)
        sides = {}
        # Three drivers of ours: all columns, only those that the query needs, and the optional jar,
        # which builds only those as well.
        jar = with_jar(folder("jar"))
        for label, columns, settings in (
            (OURS, "all", {}),
            (NARROW, "key,value,offset", {}),
            (COLUMNAR, "all", jar),
        ):
            options = {
                "topic": topic,
                "path": str(cluster.tier_folder),
                "bootstrap": cluster.bootstrap,
                "columns": columns,
            }
            reader = SparkReader("tidemark", options, folder(str(len(sides))), settings=settings)
            sides[label] = PipelineSide(reader, topic, lambda: our_brokers(cluster))
        # Two with Spark's own source: from our broker, and from Apache Kafka.
        for label, bootstrap, name, pids in (
            (BROKER, cluster.bootstrap, topic, lambda: our_brokers(cluster)),
            (APACHE, theirs.bootstrap, their_topic, theirs.pids),
        ):
            options = {
                "kafka.bootstrap.servers": bootstrap,
                "subscribe": name,
                "startingOffsets": "earliest",
            }
            reader = SparkReader("kafka", options, folder(str(len(sides))), kafka_jars)
            sides[label] = PipelineSide(reader, name, pids)
        for side in sides.values():
            stack.callback(side.close)
        yield sides


def our_brokers(cluster: RunningCluster) -> list[int]:
    """Return the processes of the brokers."""
    record = processes.find(cluster.local.layout, "broker-1")
    return [] if record is None else [record.pid]


def tiered(cluster: RunningCluster, load: PipelineLoad) -> str:
    """A topic with all records, whose closed segments are in the tier; brokers have them too."""
    topic = cluster.new_topic(
        partitions=PARTITIONS,
        replicationFactor=1,
        config={"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"},
        tiering={"enabled": True},
    )
    load.produce(cluster.bootstrap, topic)
    topic_id = parse_id(cluster.view(topic).status["topicId"])
    manifests = ManifestStore(DirectoryStore(cluster.tier_folder))
    folders = [cluster.log_folder(1, topic, partition) for partition in range(PARTITIONS)]

    # A read of the tier begins when each closed segment is copied.
    def copied() -> bool:
        """All but the segment that is written to."""
        for partition, folder in enumerate(folders):
            active = max(int(path.stem) for path in folder.glob("*.log"))
            if manifests.load(topic_id, partition).head.next_copy_offset != active:
                return False
        return True

    wait(copied, "every closed segment to be in the tier", 300.0)
    # Otherwise brokers would serve most of a read.
    ends = [manifests.load(topic_id, number).head.next_copy_offset for number in range(PARTITIONS)]
    share = sum(ends) / load.records
    if share < IN_TIER_LEAST:
        raise SystemExit(
            f"{share:.0%} of the records are in the tier, at least {IN_TIER_LEAST:.0%} have to be: "
            "raise MEGABYTES"
        )
    return topic


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "")
    main()
