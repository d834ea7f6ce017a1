"""One manifest from topic to table, on a cluster as ``tidemark up`` starts it: the job is killed in
the middle, the operator is, too, and the table has each record of the topic once.

Three starts of Spark are too dear for every run: `make export-kills` runs it.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from tests.conformance.local_cluster import RunningCluster, run_cluster, wait
from tests.integration.pipeline.marks import MARKS
from tests.table_jars import MavenMissing, jars
from tidemark_cli.main import app
from tidemark_devcluster import processes
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.java import JavaMissing, find_java

pytestmark = [*MARKS, pytest.mark.timeout(3000), pytest.mark.full]

ASKED_FOR = "EXPORT_EXAMPLE"
RECORDS, PARTITIONS = 2000, 2
SPARK_S = 900.0
#: Commits before the job is killed, of about RECORDS / BATCH.
BATCH, COMMITS = 200, 3
#: (partition, offset, key, value, headers)
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture
def jar() -> Path:
    if not os.environ.get(ASKED_FOR):
        pytest.skip(f"run by make export-kills, which sets {ASKED_FOR}")
    try:
        find_java()
        return jars(Format.ICEBERG)[0]
    except (JavaMissing, MavenMissing) as error:
        pytest.skip(str(error))


@pytest.fixture
def cluster(jar: Path, tmp_path: Path) -> Iterator[RunningCluster]:
    with run_cluster(tmp_path / "cluster", brokers=1) as running:
        yield running


def send(cluster: RunningCluster, topic: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for number in range(first, first + count):
        value = None if number % 17 == 0 else b"%06d " % number + b"x" * 2000
        key = None if number % 13 == 0 else b"k%d" % (number % 50)
        producer.produce(topic, value, key, number % PARTITIONS, headers=[("n", b"%d" % number)])
    assert producer.flush(60) == 0


def read(cluster: RunningCluster, topic: str, count: int) -> list[Row]:
    """As a stock client has it."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[Row] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count, 1.0):
            headers = tuple(message.headers() or ())
            place = message.partition() or 0, message.offset() or 0
            found.append((*place, message.key(), message.value(), headers))
    consumer.close()
    return sorted(found, key=lambda row: row[:2])


class Exporting:
    """An Export of one topic, its job and its table."""

    def __init__(self, cluster: RunningCluster, jar: Path, warehouse: Path) -> None:
        self.cluster, self.jar, self.warehouse = cluster, jar, warehouse
        self.topic = cluster.new_topic(
            partitions=PARTITIONS,
            replicationFactor=1,
            config={"segment.bytes": "1048576", "retention.ms": "-1"},
            tiering={"enabled": True, "localRetention": {"size": "1Mi"}},
        )

    def apply(self, **spec: Any) -> None:
        self.cluster.kube.apply(
            "Export",
            "lake",
            {
                "topicRef": {"name": self.topic},
                "table": {"name": "db.exported", "warehouse": str(self.warehouse)},
                "continuous": {"interval": "1s"},
                "source": {"options": {"maxOffsetsPerTrigger": str(BATCH)}},
                "job": {"jars": [str(self.jar)], "conf": {"spark.driver.memory": "512m"}},
                **spec,
            },
        )

    @property
    def status(self) -> dict[str, Any]:
        found = self.cluster.kube.get("Export", "lake")
        return {} if found is None else found.get("status") or {}

    def run(self) -> int:
        return int(self.status.get("run", {}).get("number", 0))

    def is_current(self, since_s: float) -> bool:
        """All that was written by then is in the table."""
        time_ = self.status.get("currentTime")
        then = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_s + 1))
        return time_ is not None and time_ >= then

    def commits(self) -> int:
        """Return the number of the table's commits: each leaves a metadata file."""
        return len(list(self.warehouse.glob("db/exported/metadata/*.metadata.json")))

    def job(self) -> int | None:
        """Return the process of the job."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            report = str(self.cluster.local.layout.exports / "lake" / "report.json").encode()
            if b"tidemark_pipeline.jobs.export_job" in command and report in command:
                return int(folder.name)
        return None

    def table(self) -> list[Row]:
        from tidemark_pipeline.export.table_options import CATALOG, TableOptions
        from tidemark_pipeline.session import local_session

        wanted = TableOptions.of({"table": "db.exported", "warehouse": str(self.warehouse)})
        settings = wanted.settings([str(self.jar)])
        with local_session("read", short=True, settings=settings) as session:
            rows = session.table(f"{CATALOG}.db.exported").collect()
        found = [
            (
                row["partition"],
                row["offset"],
                None if row["key"] is None else bytes(row["key"]),
                None if row["value"] is None else bytes(row["value"]),
                tuple((item["key"], bytes(item["value"])) for item in row["headers"] or ()),
            )
            for row in rows
        ]
        return sorted(found, key=lambda row: row[:2])


def test_export_resource_completes_across_kills(
    cluster: RunningCluster, jar: Path, tmp_path: Path
) -> None:
    exporting = Exporting(cluster, jar, tmp_path / "lake")
    send(cluster, exporting.topic, 0, RECORDS)
    exporting.apply()
    wait(lambda: exporting.commits() > COMMITS, "a few commits", SPARK_S)
    killed = exporting.job()
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait(lambda: exporting.run() == 2, "the next run", 120)
    assert "SIGKILL" in exporting.status["lastFailure"]

    # The operator is killed as well: its job ends with it and is started again.
    wait(lambda: exporting.commits() > COMMITS + 2, "the next run's commits", SPARK_S)
    second = exporting.job()
    operator = processes.find(cluster.local.layout, "operator")
    assert operator is not None
    processes.kill(cluster.local.layout, operator)
    wait(lambda: exporting.job() is None, "no job outlives its operator")
    send(cluster, exporting.topic, RECORDS, RECORDS // 4)
    written_s = time.time()
    cluster.local.start_operator()
    wait(lambda: exporting.is_current(written_s), "all that was written", SPARK_S)
    assert exporting.run() == 2  # the status says that it is under way
    assert exporting.job() not in (None, second)
    assert exporting.status["rows"] == RECORDS + RECORDS // 4
    said = CliRunner().invoke(app, ["status", "--dir", str(cluster.local.layout.root)])
    assert "db.exported" in said.output

    # Deleting the object ends the job, and leaves the table.
    cluster.kube.delete("Export", "lake")
    wait(lambda: exporting.job() is None, "the job ends with its Export")
    topic = read(cluster, exporting.topic, RECORDS + RECORDS // 4)
    table = exporting.table()
    assert len(table) == RECORDS + RECORDS // 4
    assert table == topic, json.dumps([len(table), len(topic)])
