"""Deletion reaches the lake. What a ``RecordDeletion`` deletes from a topic of a whole cluster is,
after maintenance of the tables, in no file of the broker, the tier or any version of a table.
An export deletes its own records through one object that users can inspect."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from tests.conformance.local_cluster import RunningCluster, run_cluster, wait
from tests.integration.pipeline.lakes import Lake, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.integration.pipeline.test_deletion_propagation import kept
from tidemark.tier.metadata import queries
from tidemark.tier.open import open_tier
from tidemark_cli.tier.record_deletions import KIND, RecordDeletions, name_of, outcome_of
from tidemark_devcluster.tier import storage, tier_options
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.table import TableLayout
from tidemark_pipeline.jobs.export import export
from tidemark_pipeline.jobs.maintain import propagate

pytestmark = [*MARKS, pytest.mark.long, pytest.mark.timeout(1200)]
#: The mark that identifies a record in any file.
_MARK = re.compile(rb"secret (\d{6}) of (\d)")
RECORDS, PARTITIONS = 1200, 2
#: Five segments of each partition are closed.
SIZE = 9000
TOPIC = {
    "partitions": PARTITIONS,
    "replicationFactor": 1,
    "config": {"segment.bytes": str(1 << 20), "retention.ms": "-1"},
    "tiering": {"enabled": True, "localRetention": {"size": "1"}},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    (tmp_path / "cluster").mkdir()
    # A real broker and operator, so that the deletion takes its whole path.
    with run_cluster(tmp_path / "cluster", brokers=1) as running:
        yield running


def send(cluster: RunningCluster, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for number in range(count):
        value = b"secret %06d of %d " % (number // PARTITIONS, number % PARTITIONS) + b"x" * SIZE
        producer.produce(topic, value, b"k%d" % number, number % PARTITIONS)
    assert producer.flush(60) == 0


def marks(folder: Path, partition: int) -> set[int]:
    """Return the marks of the records in the files, regardless of file names."""
    found: set[int] = set()
    for path in folder.rglob("*"):
        try:
            # Files disappear while they are listed.
            data = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        found |= {int(n) for n, of in _MARK.findall(data) if int(of) == partition}
    return found


def segments(cluster: RunningCluster, topic: str, partition: int) -> list[int]:
    """Return the first offsets of the tier's segments, and the tier's end."""
    tier = open_tier(storage(cluster.local))
    topic_id = tier.reader.find_topic(topic).topic_id
    snapshot = tier.reader.snapshot(topic_id, partition)
    pages = tier.manifests.pages(topic_id, partition)
    starts = [
        live_segment.from_offset for live_segment in queries.live_segments(snapshot.head, pages)
    ]
    return [*sorted(starts), snapshot.head.next_copy_offset]


def readable(cluster: RunningCluster, topic: str) -> dict[int, int]:
    """Return the first offset of each partition that a stock client can read."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none"})
    found = {}
    for partition in range(PARTITIONS):
        consumer.assign([TopicPartition(topic, partition, 0)])
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        found[partition] = low
    consumer.close()
    return found


def test_record_deletion_removes_every_copy_of_a_record(
    session: SparkSession, cluster: RunningCluster, tmp_path: Path
) -> None:
    topic = cluster.new_topic(**TOPIC)
    send(cluster, topic, RECORDS)
    wait(lambda: len(segments(cluster, topic, 0)) > 4, "segments in the tier")
    wait(lambda: len(segments(cluster, topic, 1)) > 4, "segments in the tier")
    source = tier_options(cluster.local, topic)
    lakes = [new_lake(session, source, tmp_path / kind.value, kind) for kind in Format]
    for lake in lakes:
        assert export(session, source, lake.table()).written.rows == RECORDS
        # Every record is in the table before the deletion.
        assert kept(Path(tmp_path / lake.kind.value)) == set(range(RECORDS // PARTITIONS))
    # Whole segments: of one that has later records, too, bytes stay until these go.
    # The start of the third segment, so that two segments can be deleted completely.
    points = {index: segments(cluster, topic, index)[2] for index in range(PARTITIONS)}
    cluster.kube.apply(
        KIND,
        "erase",
        {
            "topicRef": {"name": topic},
            "partitions": [
                {"partition": point, "beforeOffset": offset} for point, offset in points.items()
            ],
        },
    )
    wait(
        lambda: outcome_of(cluster.kube.get(KIND, "erase") or {}).succeeded is True, "the deletion"
    )
    # Clients see the new log start at once.
    assert readable(cluster, topic) == points

    # Then the bytes disappear from the broker's disk and from the tier.
    for place in (cluster.log_folder(1, topic).parent, cluster.tier_folder):
        for partition, offset in points.items():
            wait(
                lambda place=place, partition=partition, offset=offset: (  # type: ignore[misc]
                    min(marks(place, partition), default=offset) >= offset
                ),
                f"files of {place.name} to be deleted",
                timeout_s=120,
            )
    for lake in lakes:
        rows = session.table(lake.name)
        # The table still has all rows until it is maintained.
        assert rows.count() == RECORDS
        done = propagate(session, lake.kind, lake.name, source, history=True)
        assert (done.rows, done.retained_by, done.behind) == (sum(points.values()), (), ())
        # The history is rewritten: no data file has an older offset.
        assert files(lake, tmp_path / lake.kind.value) == points
        # A job continues, too.
        assert export(session, source, lake.table()).commits == 0
        assert session.table(lake.name).count() == RECORDS - sum(points.values())


def files(lake: Lake, folder: Path) -> dict[int, int]:
    """Return the least offset of each partition in all data files."""
    import pyarrow.parquet

    found: dict[int, int] = {}
    for path in folder.rglob("*.parquet"):
        if "_delta_log" in path.parts:
            continue
        # Partition values of the path are ignored: the columns themselves are read.
        table = pyarrow.parquet.read_table(path, columns=["partition", "offset"], partitioning=None)
        for row in table.to_pylist():
            partition, offset = row["partition"], row["offset"]
            found[partition] = min(offset, found.get(partition, offset))
    return found


def test_export_deletes_its_records_through_one_object(
    session: SparkSession, cluster: RunningCluster, tmp_path: Path
) -> None:
    topic = cluster.new_topic(**TOPIC)
    source = tier_options(cluster.local, topic)
    lake = new_lake(session, source, tmp_path / "lake")
    layout = TableLayout(columns=RAW_DDL, deletes=True)
    deleter = RecordDeletions(cluster.kube, lake.name)
    for round_ in (1, 2):
        send(cluster, topic, RECORDS)
        # Two commits per round, each of which is followed by a deletion.
        options = {**source, "maxOffsetsPerTrigger": str(RECORDS // 2)}
        begun_s = time.monotonic()
        done = export(session, options, lake.table(layout=layout), deleter=deleter)
        print(f"round {round_}: {time.monotonic() - begun_s:.0f} s")
        assert done.deleted == RECORDS
        assert readable(cluster, topic) == dict(done.exported.offsets)
    # One object for each topic and table, updated by every run.
    (found,) = cluster.kube.objects(KIND)
    assert found["metadata"]["name"] == name_of(topic, lake.name)
    assert outcome_of(found).succeeded
    assert session.table(lake.name).count() == 2 * RECORDS
