"""A topic of Apache Kafka in the layout of Aiven's plug-in, read from MinIO without brokers: the
rows are those that brokers serve."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pyspark.sql import DataFrame, SparkSession

from tests.aiven_writer import KeyPair, SegmentWriter
from tests.apache_kafka import QUICK, KafkaOptions, running
from tests.conformance.local_cluster import wait
from tests.integration.pipeline.marks import MARKS
from tests.kafka_programs import kafka_jars
from tests.s3 import administrator, fresh_bucket
from tidemark.ids import parse_id
from tidemark.logfiles.checkpoints import read_epochs
from tidemark.records.batch import iter_headers
from tidemark_devcluster.controlplane.minio import MinioServer
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_pipeline.read.options import parse
from tidemark_pipeline.read.plan import plan_batch
from tidemark_pipeline.read.topic_source import read_topic
from tidemark_pipeline.read.topic_survey import Survey

pytestmark = [*MARKS, pytest.mark.timeout(600)]

#: Folder with the jars of a release of the plug-in (its core and its S3 backend), which is on no
#: registry of packages.
PLUGIN = os.environ.get("AIVEN_PLUGIN", "")
CLASSES = "io.aiven.kafka.tieredstorage"
PREFIX = "tiered/kafka-"
TOPIC = "orders-eu"
RECORDS = 3000


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bucket of a plug-in. ``pair``: encrypts its segments, None if nothing does."""

    s3: dict[str, Any]
    compress: bool
    pair: KeyPair | None
    folder: Path

    def options(self) -> dict[str, str]:
        """Return the options that read the topic without brokers."""
        pem = self.folder / "key.pem"
        return {
            "layout": "aiven",
            "topic": TOPIC,
            "endpoint": self.s3["endpoint"],
            "buckets": self.s3["buckets"][0],
            "accessKeyId": self.s3["accessKeyId"],
            "secretAccessKey": self.s3["secretAccessKey"],
            "prefix": PREFIX,
            **({"aivenKeyLocations": self.pair.save(pem)} if self.pair else {}),
        }

    def plugin(self) -> dict[str, str]:
        """Return the configuration of the plug-in."""
        # Chunks are smaller than a batch's maximum, and no divisor of a segment.
        entries = {
            "chunk.size": "70000",
            "key.prefix": PREFIX,
            "storage.backend.class": f"{CLASSES}.storage.s3.S3Storage",
            "storage.s3.bucket.name": self.s3["buckets"][0],
            "storage.s3.endpoint.url": self.s3["endpoint"],
            "storage.s3.region": "us-east-1",
            "storage.s3.path.style.access.enabled": "true",
            "storage.aws.access.key.id": self.s3["accessKeyId"],
            "storage.aws.secret.access.key": self.s3["secretAccessKey"],
            "compression.enabled": str(self.compress).lower(),
            "encryption.enabled": str(self.pair is not None).lower(),
        }
        if self.pair is None:
            return entries
        # Brokers need both keys, readers the private one.
        private, public = self.folder / "broker.pem", self.folder / "broker.pub"
        self.pair.save(private)
        public.write_bytes(
            self.pair.private.public_key().public_bytes(
                Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
            )
        )
        files = f"encryption.key.pairs.{self.pair.name}"
        return entries | {
            "encryption.key.pair.id": self.pair.name,
            "encryption.key.pairs": self.pair.name,
            f"{files}.public.key.file": str(public),
            f"{files}.private.key.file": str(private),
        }

    def copied(self, partition: int) -> int:
        """Return the number of a partition's segments in the bucket."""
        listed = administrator(self.s3).list_objects(self.s3["buckets"][0], recursive=True)
        names = [str(item.object_name) for item in listed]
        return sum(f"/{partition}/" in name and name.endswith("manifest") for name in names)


@pytest.fixture(
    params=[
        pytest.param((False, False), id="plain", marks=pytest.mark.full),
        pytest.param((True, False), id="zstd", marks=pytest.mark.full),
        pytest.param((False, True), id="encrypted", marks=pytest.mark.full),
        pytest.param((True, True), id="zstd-encrypted"),
    ]
)
def bucket(request: pytest.FixtureRequest, minio: MinioServer, tmp_path: Path) -> Bucket:
    compress, encrypt = request.param
    return Bucket(fresh_bucket(minio), compress, KeyPair("key1") if encrypt else None, tmp_path)


@pytest.fixture
def plugged(bucket: Bucket, tmp_path: Path) -> Iterator[KafkaNodes]:
    """A broker with the plug-in."""
    if not PLUGIN:
        pytest.skip("AIVEN_PLUGIN names no folder with the plug-in's jars")
    kafka_jars()
    entries = {
        **QUICK,
        "remote.log.storage.manager.class.name": f"{CLASSES}.RemoteStorageManager",
        "remote.log.storage.manager.class.path": f"{PLUGIN}/*",
        **{f"rsm.config.{name}": value for name, value in bucket.plugin().items()},
    }
    with running(tmp_path / "kafka", KafkaOptions(tiered=True, entries=entries)) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def copies(apache_kafka: KafkaNodes) -> list[Path]:
    """The topic's segments as Apache Kafka gives them to a plug-in: paths without suffix."""
    produce(apache_kafka)

    def logs() -> list[Path]:
        return sorted(apache_kafka.layout.tier.glob(f"*/{TOPIC}-?-*/*.log"))

    wait(lambda: len(logs()) > 3, "copies of both partitions")
    return [path.with_suffix("") for path in logs()]


def produce(nodes: KafkaNodes) -> None:
    """Write committed and aborted records to two partitions; their closed segments are copied."""
    client: dict[str, str | int | float | bool] = {
        "bootstrap.servers": nodes.bootstrap,
        "log_level": 1,
    }
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": "1048576",
        "retention.ms": "-1",  # the records are of 1970
        "local.retention.bytes": "1",
    }
    admin = AdminClient(client)
    admin.create_topics([NewTopic(TOPIC, 2, 1, config=config)])[TOPIC].result(30)
    producer = Producer({**client, "transactional.id": "t"})
    producer.init_transactions(60)
    for begin in range(0, RECORDS, 100):
        producer.begin_transaction()
        for number in range(begin, begin + 100):
            producer.produce(
                TOPIC,
                b"%d " % number + b"value " * 250,
                key=None if number % 7 == 0 else b"key %d" % number,
                partition=number % 2,
                headers=[("number", str(number).encode())],
                timestamp=1_000 + number,
            )
        producer.flush(60)
        # A third of the transactions is aborted.
        if begin % 300:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)


def write_as_plugin(bucket: Bucket, copies: list[Path]) -> None:
    """Write segments of Apache Kafka to the bucket in the layout of the plug-in."""
    root = bucket.folder / "objects"
    writer = SegmentWriter(
        root=root,
        topic=TOPIC,
        topic_id=parse_id(copies[0].parent.name[-22:]),
        prefix=PREFIX,
        chunk_bytes=70_000,
        compress=bucket.compress,
        pair=bucket.pair,
    )
    # Kafka gives the plug-in files and metadata. Here the metadata follow from the files.
    for copy in copies:
        writer.partition = int(copy.parent.name.removeprefix(f"{TOPIC}-")[0])
        log = copy.with_suffix(".log").read_bytes()
        headers = [header for _, header in iter_headers(log)]
        lineage = read_epochs(copy.with_suffix(".leader_epoch_checkpoint").read_text()).entries
        start, aborted = int(copy.name[:20]), copy.with_suffix(".txnindex")
        writer.write(
            log,
            start=start,
            end=headers[-1].last_offset,
            epochs={entry.epoch: max(start, entry.start_offset) for entry in lineage},
            lineage=[(entry.epoch, entry.start_offset) for entry in lineage],
            offset_index=copy.with_suffix(".index").read_bytes(),
            time_index=copy.with_suffix(".timeindex").read_bytes(),
            transaction_index=aborted.read_bytes() if aborted.exists() else None,
            newest_ms=max(header.max_timestamp for header in headers),
        )
    # Upload the three objects of each segment.
    for path in filter(Path.is_file, root.rglob("*")):
        key = str(path.relative_to(root))
        administrator(bucket.s3).fput_object(bucket.s3["buckets"][0], key, str(path))


def digest(rows: DataFrame) -> tuple[int, str]:
    """Return the number of rows and a digest of all columns that both sources have."""
    made, count = hashlib.sha256(), 0
    columns = ("partition", "offset", "key", "value", "timestamp", "timestampType", "headers")
    for row in rows.select("topic", *columns).orderBy("partition", "offset").toLocalIterator():
        made.update(repr(row.asDict(recursive=True)).encode())
        count += 1
    return count, made.hexdigest()


def end_of_tier(bucket: Bucket) -> dict[str, str]:
    """Return the option that ends a read where the tier ends: active segments are not copied."""
    parsed = parse(bucket.options())
    with Survey(parsed) as survey:
        ranges = plan_batch(survey, parsed).read_ranges
    return {"endingOffsets": json.dumps({part.partition: at.end for part, at in ranges.items()})}


def through_brokers(session: SparkSession, nodes: KafkaNodes, end: dict[str, str]) -> DataFrame:
    options = {"engine": "kafka", "topic": TOPIC, "bootstrap": nodes.bootstrap}
    return read_topic(session, {**options, **end})


def test_segments_of_kafka_give_the_rows_that_brokers_serve(
    session: SparkSession, apache_kafka: KafkaNodes, bucket: Bucket, copies: list[Path]
) -> None:
    write_as_plugin(bucket, copies)
    end = end_of_tier(bucket)
    expected = digest(through_brokers(session, apache_kafka, end))
    assert expected[0] > RECORDS / 4
    assert digest(read_topic(session, {**bucket.options(), **end})) == expected
    # Kafka's own indexes lead to a start within a segment, by offset and by time. Brokers would
    # start at the first marker of a transaction, whose time is the present.
    served = through_brokers(session, apache_kafka, end)
    for start, condition in (
        ({"startingOffsets": '{"0": 700, "1": 650}'}, "offset >= if(partition = 0, 700, 650)"),
        ({"startingTimestamp": "1700"}, "timestamp >= timestamp_millis(1700)"),
    ):
        found = read_topic(session, {**bucket.options(), **end, **start})
        assert digest(found) == digest(served.where(condition))
    # With brokers, what is not copied yet comes from them.
    whole = read_topic(session, {**bucket.options(), "bootstrap": apache_kafka.bootstrap})
    assert digest(whole) == digest(through_brokers(session, apache_kafka, {}))
    assert {row.tier for row in whole.select("tier").distinct().collect()} == {"remote", "local"}


def test_tier_of_the_plugin_gives_the_rows_that_brokers_serve(
    session: SparkSession, plugged: KafkaNodes, bucket: Bucket
) -> None:
    produce(plugged)
    wait(lambda: min(bucket.copied(0), bucket.copied(1)) > 1, "copies of both partitions")
    end = end_of_tier(bucket)
    expected = digest(through_brokers(session, plugged, end))
    assert expected[0] > RECORDS / 4
    # No broker is left that could serve a record.
    plugged.stop_all()
    found = read_topic(session, {**bucket.options(), **end})
    assert digest(found) == expected
    assert {row.tier for row in found.select("tier").distinct().collect()} == {"remote"}
