"""A topic of Apache Kafka in an Iceberg table through Spark's own source. Each committed record is
exported once wherever the job is killed, and is deleted from the topic on request."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from tests.conformance.local_cluster import wait
from tests.integration.pipeline.lakes import KILLED, Killed, KilledAfterWriting, Lake, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.table_jars import jars
from tidemark.export_job import ORDER_VARIABLE, ExportJobPhase, JobReport, Order
from tidemark.kafka_client.access import KafkaAccess
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_pipeline.errors import DataLoss
from tidemark_pipeline.export.export_progress import Exported, ExportError
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.record_deletion import BrokerDeletions
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.schema_inference import inferred, sample
from tidemark_pipeline.export.table import TableLayout
from tidemark_pipeline.jobs.maintain import propagate
from tidemark_pipeline.read.options import OptionError

pytestmark = [*MARKS, pytest.mark.timeout(600), pytest.mark.full]

_numbers = itertools.count(1)


class ExportedTopic:
    """A topic of two partitions, and its committed records by (partition, offset)."""

    def __init__(self, nodes: KafkaNodes) -> None:
        self.name, self.rows = f"export-{next(_numbers)}", dict[tuple[int, int], bytes]()
        self.bootstrap = nodes.bootstrap
        self._client: dict[str, str | int | float | bool] = {
            "bootstrap.servers": nodes.bootstrap,
            "log_level": 1,
        }
        self.admin = AdminClient(self._client)
        self.admin.create_topics([NewTopic(self.name, 2, 1)])[self.name].result(30)
        # A transactional producer: aborted records must never be exported.
        self._producer = Producer({**self._client, "transactional.id": self.name})
        self._producer.init_transactions(60)

    def recreate(self, count: int) -> None:
        """Recreate the topic with ``count`` other records in each partition."""
        self.admin.delete_topics([self.name])[self.name].result(30)
        # Deletion is asynchronous in Kafka.
        wait(lambda: self.name not in self.admin.list_topics(timeout=10).topics, "it to go")
        self.admin.create_topics([NewTopic(self.name, 2, 1)])[self.name].result(30)
        producer = Producer(self._client)
        for number in range(2 * count):
            producer.produce(self.name, b"{}", partition=number % 2)
        assert producer.flush(60) == 0

    @property
    def options(self) -> dict[str, str]:
        return {"engine": "kafka", "topic": self.name, "bootstrap": self.bootstrap}

    def write(self, count: int) -> None:
        """Write ``count`` committed records, after as many of an aborted transaction."""
        for commit in (False, True):
            self._producer.begin_transaction()
            for number in range(count):
                # Aborted first, so that its offsets precede those of the committed records.
                value = json.dumps({"number": number, "text": f"of {self.name}"}).encode()
                self._producer.produce(
                    self.name,
                    value,
                    partition=number % 2,
                    headers=[("n", str(number).encode())],
                    on_delivery=self._delivered if commit else None,
                )
            self._producer.flush(60)
            if commit:
                self._producer.commit_transaction(60)
            else:
                self._producer.abort_transaction(60)

    def _delivered(self, error: object, message: object) -> None:
        assert error is None
        self.rows[message.partition(), message.offset()] = message.value()  # type: ignore[attr-defined]


@pytest.fixture
def topic(apache_kafka: KafkaNodes) -> ExportedTopic:
    made = ExportedTopic(apache_kafka)
    made.write(60)
    return made


@pytest.fixture
def lake(session: SparkSession, topic: ExportedTopic, tmp_path: Path) -> Lake:
    return new_lake(session, topic.options, tmp_path / "warehouse")


def check(lake: Lake, topic: ExportedTopic) -> None:
    found = lake.session.table(lake.name).collect()
    assert {(row.partition, row.offset): bytes(row.value) for row in found} == topic.rows
    assert len(found) == len(topic.rows)
    for row in found:
        assert row.topic == topic.name
        assert [(header.key, bytes(header.value)) for header in row.headers] == [
            ("n", str(json.loads(row.value)["number"]).encode())
        ]
        # Kafka's protocol has neither leader epoch nor tiered epoch of a record.
        assert (row.leaderEpoch, row.tieredEpoch) == (None, None), "Kafka's protocol tells neither"


@pytest.mark.parametrize(
    "doomed",
    [
        pytest.param(item, marks=[] if item is KilledAfterWriting else pytest.mark.long)
        for item in KILLED
    ],
)
def test_killed_job_neither_loses_nor_duplicates_rows(
    lake: Lake, topic: ExportedTopic, doomed: type
) -> None:
    with pytest.raises(Killed):
        lake.run(lake.table(doomed))
    done = lake.run(lake.table())
    assert done.lag == 0
    check(lake, topic)
    topic.write(30)
    # A continuous run continues behind the former one.
    lake.run(lake.table(), continuous=True)
    check(lake, topic)


@pytest.mark.long
def test_recreated_topic_ends_the_job(lake: Lake, topic: ExportedTopic) -> None:
    """Spark's source only knows offsets, and would continue where the former topic ended."""

    class MadeAgainAfterACommit:
        def commit(self, frame: Any, exported: Exported) -> Any:
            written = super().commit(frame, exported)  # type: ignore[misc]
            # The topic is recreated between two commits of the job.
            if written.rows:
                topic.recreate(100)
            return written

    with pytest.raises(ExportError, match="was deleted and re-created"):
        lake.run(lake.table(MadeAgainAfterACommit), continuous=True)
    found = {bytes(row.value) for row in lake.session.table(lake.name).collect()}
    assert found
    assert found <= set(topic.rows.values())
    with pytest.raises(ExportError, match="was deleted and re-created"):
        lake.run(lake.table())


def test_invalid_option_does_not_take_over_the_table(lake: Lake, topic: ExportedTopic) -> None:
    lake.run(lake.table())
    running_job = lake.table()
    # A running job has claimed the table.
    claimed = running_job.claim(topic.name, "")
    lake.source = {**lake.source, "endingOffsets": '{"0": 5}'}
    with pytest.raises(OptionError, match="leave the ending option out"):
        lake.run(lake.table())
    # The failing job never touched that claim.
    assert running_job.progress() == claimed


def test_records_without_a_timestamp_are_exported(lake: Lake, topic: ExportedTopic) -> None:
    """A partition that is not named begins at its log start; no time finds that."""
    lake.source = {**lake.source, "startingOffsetsByTimestamp": '{"0": 1}'}
    producer = Producer({"bootstrap.servers": topic.bootstrap, "log_level": 1})
    topic.recreate(0)
    for number in range(4):
        # Timestamp -1 is no time, so a lookup by time does not find these records.
        producer.produce(topic.name, b"%d" % number, partition=1, timestamp=-1)
        producer.produce(topic.name, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    lake.run(lake.table())
    found = [(row.partition, row.offset) for row in lake.session.table(lake.name).collect()]
    assert sorted(found) == [(part, offset) for part in (0, 1) for offset in range(4)]


@pytest.mark.long
def test_records_written_during_a_run_wait_for_the_next(lake: Lake, topic: ExportedTopic) -> None:
    """A run ends at the end that there was when it began."""
    before = topic.rows.copy()

    class OthersWriteMeanwhile:
        def commit(self, frame: Any, exported: Exported) -> Any:
            written = super().commit(frame, exported)  # type: ignore[misc]
            if topic.rows == before:
                # ExportedTopic while the run is in progress.
                topic.write(20)
            return written

    done = lake.run(lake.table(OthersWriteMeanwhile))
    assert done.commits > 1, "as many offsets at once as the options allow"
    assert done.written.rows == len(before) < len(topic.rows)
    assert done.lag > 0
    assert lake.run(lake.table()).lag == 0
    check(lake, topic)
    assert lake.run(lake.table()).commits == 0


@pytest.mark.long
def test_fields_are_inferred_from_values(session: SparkSession, topic: ExportedTopic) -> None:
    found = inferred(sample(session, topic.options))
    assert {item.name: item.dataType.typeName() for item in found} == {
        "number": "long",
        "text": "string",
    }


@pytest.mark.long
def test_committed_records_are_deleted_from_the_topic(lake: Lake, topic: ExportedTopic) -> None:
    layout = TableLayout(columns=RAW_DDL, deletes=True)
    deleter = BrokerDeletions(KafkaAccess(tuple(topic.bootstrap.split(","))))
    done = lake.run(lake.table(layout=layout), deleter=deleter)
    check(lake, topic)
    # Offsets of aborted records and markers count as well.
    assert done.deleted > len(topic.rows), "with what was aborted"
    kept = topic.rows.copy()
    topic.write(20)
    lake.run(lake.table(layout=layout), deleter=deleter)
    check(lake, topic)
    assert kept.items() <= topic.rows.items()


def test_record_deletion_propagates_to_the_table(lake: Lake, topic: ExportedTopic) -> None:
    lake.run(lake.table())
    # Records expire below offset 35 of partition 0.
    deletions = topic.admin.delete_records([TopicPartition(topic.name, 0, 35)])
    wait(lambda: all(item.done() for item in deletions.values()), "the deletion")
    source = {name: value for name, value in topic.options.items() if name != "topic"}
    done = propagate(lake.session, Format.ICEBERG, lake.name, source)
    deleted_records = [at for at in topic.rows if at[0] == 0 and at[1] < 35]
    assert done.rows == len(deleted_records) > 0
    for at in deleted_records:
        del topic.rows[at]
    check(lake, topic)


@pytest.mark.long
def test_records_expired_before_export_are_reported(lake: Lake, topic: ExportedTopic) -> None:
    lake.run(lake.table())
    kept = topic.rows.copy()
    topic.write(20)
    # Everything of partition 1 is deleted, including records that were not exported.
    deletions = topic.admin.delete_records([TopicPartition(topic.name, 1, -1)])
    wait(lambda: all(item.done() for item in deletions.values()), "the deletion")
    with pytest.raises(
        DataLoss, match=f"of {topic.name}-1, but the log starts at .*failOnDataLoss"
    ):
        lake.run(lake.table())
    # The documented option to continue despite the loss.
    lake.source = {**lake.source, "failOnDataLoss": "false"}
    lake.run(lake.table())
    topic.rows = kept | {at: value for at, value in topic.rows.items() if at[0] == 0}
    check(lake, topic)


def test_job_without_the_source_says_which_jars_it_needs(
    topic: ExportedTopic, tmp_path: Path
) -> None:
    order = Order(
        source=topic.options,
        table={"table": "db.t", "warehouse": str(tmp_path / "lake")},
        jars=tuple(map(str, jars(Format.ICEBERG))),
    )
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tidemark_pipeline.jobs.export_job", "--report", str(report)]
    environment = {**os.environ, ORDER_VARIABLE: order.to_json()}
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, timeout=300)
    assert ended.returncode == 1
    found = JobReport.of_json(report.read_bytes())
    assert found is not None
    assert found.phase is ExportJobPhase.REFUSED
    assert "jars of org.apache.spark:spark-sql-kafka-0-10_2.13:" in found.message
    assert not (tmp_path / "lake").exists()  # the table was not claimed
