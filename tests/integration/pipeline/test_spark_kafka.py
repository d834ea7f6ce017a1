"""A topic of Apache Kafka, most of it in its tier, through Spark's own source."""

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.integration.pipeline.marks import MARKS
from tidemark_cli.main import app
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_devcluster.settings import KAFKA, LocalClusterSettings
from tidemark_pipeline.jobs.aggregate import aggregate
from tidemark_pipeline.jobs.report import figures
from tidemark_pipeline.read.topic_source import read_topic

pytestmark = [*MARKS, pytest.mark.full]

RECORDS = 4000


@pytest.fixture(scope="module")
def topic(apache_kafka: KafkaNodes) -> dict[str, str]:
    """Return options of a topic with two partitions, whose closed segments are only in the tier."""
    how = {"bootstrap.servers": apache_kafka.bootstrap, "log_level": 1}
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": "1048576",
        "retention.ms": "-1",  # the records are of 1970
        "local.retention.bytes": "1",
    }
    admin = AdminClient(how)
    admin.create_topics([NewTopic("spark", 2, 1, config=config)])["spark"].result(30)
    producer = Producer(how)
    for number in range(RECORDS):
        # One kilobyte per record: several segments of one MiB in each partition.
        value = {"carrier": "AB"[number % 2], "delay": number, "more": "x" * 1000}
        producer.produce(
            "spark",
            json.dumps(value).encode(),
            partition=number % 2,
            headers=[("number", str(number).encode())],
            timestamp=1_000 + number,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    deadline = time.monotonic() + 60
    # Wait until Kafka has copied at least one segment.
    while not list(apache_kafka.layout.tier.glob("*/spark-*/*.log")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return {"engine": "kafka", "topic": "spark", "bootstrap": apache_kafka.bootstrap}


@pytest.mark.long
def test_rows_are_what_was_produced(session: SparkSession, topic: dict[str, str]) -> None:
    table = read_topic(session, topic)
    assert table.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    ]
    rows = table.orderBy("offset", "partition").collect()
    assert len(rows) == RECORDS
    for number, row in enumerate(rows):
        assert (row.topic, row.partition, row.offset) == ("spark", number % 2, number // 2)
        assert json.loads(bytes(row.value))["delay"] == number
        assert [(header.key, bytes(header.value)) for header in row.headers] == [
            ("number", str(number).encode())
        ]
        assert round(row.timestamp.timestamp() * 1000) == 1_000 + number


@pytest.mark.long
def test_offset_options_match_those_of_the_own_source(
    session: SparkSession, topic: dict[str, str]
) -> None:
    ends = {"startingOffsets": '{"1": 1998}', "endingOffsets": '{"0": 2}', "columns": "offset"}
    # Two records at each end.
    rows = read_topic(session, {**topic, **ends}).collect()
    assert sorted(row.offset for row in rows) == [0, 1, 1998, 1999]
    late = {"startingTimestamp": str(1_000 + RECORDS - 3), "columns": "offset,partition"}
    # Three records are at or after this time.
    assert read_topic(session, {**topic, **late}).count() == 3


@pytest.mark.long
def test_jobs_read_a_kafka_topic(
    session: SparkSession, topic: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "out.parquet"
    found = {
        row.carrier: row.total
        for row in aggregate(session, topic, by="carrier", value="delay", output=output).collect()
    }
    assert found == {name: float(sum(range(i, RECORDS, 2))) for i, name in enumerate("AB")}
    counted = figures(session, topic)
    assert [(item.partition, item.tier, item.rows) for item in counted.shares] == [
        (0, "kafka", RECORDS // 2),
        (1, "kafka", RECORDS // 2),
    ]


def test_commands_report_an_unsupported_engine(apache_kafka: KafkaNodes, tmp_path: Path) -> None:
    """The error comes before Spark starts."""
    layout = apache_kafka.layout
    # Settings of a local cluster whose engine is Kafka.
    settings = LocalClusterSettings("c", "default", "directory", "/none", 1, 2, KAFKA)
    settings.save(layout)
    try:
        for command, why in (
            (
                f"spark aggregate none --by a --value b --output {tmp_path}",
                "know no topic 'none'",
            ),
            ("spark usage", "reads the tier of Tidemark brokers, but the cluster's engine is"),
            ("spark audit", "reads the tier of Tidemark brokers, but the cluster's engine is"),
        ):
            done = CliRunner().invoke(app, [*command.split(), "--dir", str(layout.root)])
            assert done.exit_code == 1
            assert why in " ".join(done.stderr.split())
    finally:
        layout.settings.unlink()
