"""``make bench-executors``: the work of each executor when one and when two workers read a topic.

The same tier is read on a standalone Spark cluster of one worker, then of two. Counted are the
CPU-seconds of each worker with its executor and Python processes, after reads in which the JVMs
compile. The sums of each read must be those of the records.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.results import Results
from tests.benchmarks.sides import OURS
from tests.spark_cluster import SparkWorker, spark_cluster
from tidemark.records.builder import Record, build_batch
from tidemark_pipeline.session import local_session

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "pipeline"))

from small_tier import SmallTier

VALUE = b"v" * 1000
BATCH_RECORDS = 100
SEGMENT_RECORDS = 4000
WARM_UPS = 3
READS = 5
#: Largest difference of an executor's work from an even share.
TOLERANCE = 0.15


def main() -> None:
    """Raises SystemExit where two executors do not share the work."""
    parser = argparse.ArgumentParser(prog="make bench-executors", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-executors-") as name:
        folder = Path(name)
        (folder / "tier").mkdir()
        tier = SmallTier(folder / "tier")
        # Many segments, so that tasks can be shared evenly.
        segments = max(2, given.megabytes * 1_000_000 // (SEGMENT_RECORDS * len(VALUE)))
        for _ in range(segments):
            _copy(tier)
        # The same work by one executor, and then by two.
        results = Results(
            benchmark="executors", rounds=READS, setting={"megabytes": given.megabytes}
        )
        (alone,) = _work(tier, segments, folder, 1, results)
        shared = _work(tier, segments, folder, 2, results)
        results.write()
    figures = " and ".join(f"{cpu_s:.2f} ({cpu_s / alone:.0%} of it)" for cpu_s in shared)
    print(
        f"bench-executors: {segments * SEGMENT_RECORDS:,} records of 1 KB: one executor "
        f"{alone:.2f} CPU-s, each of two {figures}"
    )
    # An uneven share would mean that tasks are too large, or that fixed work dominates.
    if any(abs(cpu_s / (alone / 2) - 1) > TOLERANCE for cpu_s in shared):
        raise SystemExit(f"an executor's work is not half of it within {TOLERANCE:.0%}")


def _copy(tier: SmallTier) -> None:
    start = tier.loaded.head.next_copy_offset
    batches = [
        build_batch(
            [
                Record(b"%08d" % offset, VALUE, (), offset)
                for offset in range(base, base + BATCH_RECORDS)
            ],
            base_offset=base,
            leader_epoch=1,
        )
        for base in range(start, start + SEGMENT_RECORDS, BATCH_RECORDS)
    ]
    tier.copy([b""] * SEGMENT_RECORDS, batches=batches)


def _work(
    tier: SmallTier, segments: int, folder: Path, workers: int, results: Results
) -> list[float]:
    """Return the median CPU-seconds of each worker for a read of the tier, and add all reads to the
    results."""
    place = folder / f"cluster-{workers}"
    place.mkdir()
    # Each segment is a task.
    options = {"topic": tier.name, "path": str(tier.path), "bytesPerTask": "1"}
    with (
        spark_cluster(place, workers) as cluster,
        local_session(
            "executors", cores=1, master=cluster.master, log=place / "driver.log"
        ) as session,
    ):
        reads: list[list[float]] = []
        # Each executor gets a part of a read, and its JVM has as much to compile as one alone.
        warm_ups = WARM_UPS * workers
        for number in range(warm_ups + READS):
            # The sums are checked in each run: a fast read of wrong data is no figure.
            before = [worker.cpu_seconds() for worker in cluster.workers]
            table = session.read.format("tidemark").options(**options).load()
            row = table.selectExpr("count(1)", "sum(octet_length(value))").first()
            expected = (segments * SEGMENT_RECORDS, segments * SEGMENT_RECORDS * len(VALUE))
            if row is None or tuple(row) != expected:
                raise SystemExit(f"read {row}, expected {expected}")
            # The first reads are not counted, because the JVMs compile in them.
            if number >= warm_ups:
                reads.append(_difference(cluster.workers, before))
    for number, read in enumerate(reads, 1):
        for worker, cpu_s in enumerate(read, 1):
            results.add(f"executor {worker} of {workers}", OURS, number, {"CPU-s": cpu_s})
    return [statistics.median(worker) for worker in zip(*reads, strict=True)]


def _difference(workers: tuple[SparkWorker, ...], before: list[float]) -> list[float]:
    return [worker.cpu_seconds() - cpu_s for worker, cpu_s in zip(workers, before, strict=True)]


if __name__ == "__main__":
    main()
