"""Exports of topics of Apache Kafka whose jobs run on real Spark, beside a local operator."""

import asyncio
import json
import os
import runpy
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.record_production import SMALL, offset, produce
from tests.integration.kafka_engine.secured_kafka import put_secret, secured_kafka
from tests.integration.operator.cluster_world import condition_of
from tests.integration.pipeline.marks import MARKS
from tests.table_jars import MavenMissing, jars
from tidemark.export_job import SOURCE_JARS_VARIABLE
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.values import EARLIEST_LOCAL
from tidemark_devcluster.toolchain.maven import ensure_jars, spark_kafka
from tidemark_operator.kube.kinds import CLUSTER, EXPORT, Json
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.java import JavaMissing, find_java

pytestmark = [*MARKS, pytest.mark.full, pytest.mark.timeout(1500)]

SPARK_S = 300.0
#: Offsets of one commit, so that a job can be killed between two of them.
BATCH = "20"
#: (partition, offset) and value of a record.
Records = dict[tuple[int, int], bytes]
#: The script that users run to query a table without Spark.
query = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "10-export" / "query.py"))


class SparkExports:
    """Exports whose jobs are processes of a local operator, with tables in a folder."""

    def __init__(self, world: KafkaWorld, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.warehouse, self.logs = folder / "lake", folder / "exports"

    async def start(self) -> None:
        policy = {"spec": {"exports": {"jars": ["/"], "warehouses": ["/"]}}}
        await self.world.api.merge_patch(CLUSTER, self.world.namespace, "demo", policy)
        operator = self.world.operator(exports=self.logs)
        operator.executed = True  # its jobs inherit the environment of a started program
        await operator.start()

    async def create(self, kind: Format = Format.ICEBERG, **spec: Any) -> None:
        table = {"format": str(kind), "name": "db.t", "warehouse": str(self.warehouse)}
        spec["table"] = table | spec.get("table", {})
        source = {"options": {"maxOffsetsPerTrigger": BATCH}}
        job = {"jars": list(map(str, jars(kind))), "conf": {"spark.driver.memory": "512m"}}
        body = {
            "apiVersion": EXPORT.api_version,
            "kind": "Export",
            "metadata": {"name": "x"},
            "spec": {"continuous": {"interval": "1s"}, "source": source, "job": job, **spec},
        }
        await self.world.api.create(EXPORT, self.world.namespace, body)

    async def status(self, holds: Callable[[Json], bool]) -> Json:
        """Wait until the status of the Export fulfils a condition; return it."""
        try:
            return await self.world.status_where(EXPORT, "x", holds, SPARK_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log[-3000:]}") from None

    async def reaches_the_present(self) -> None:
        """Wait until the table has everything that the topic has now."""
        then = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
        await self.status(lambda found: found.get("currentTime", "") >= then)

    @property
    def log(self) -> str:
        return (self.logs / "x" / "log").read_text("utf-8")

    def processes(self) -> dict[int, str]:
        """Return the command lines of the job and of its descendants, the job first."""
        commands, parents = {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().decode().replace("\0", " ")
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            commands[int(folder.name)], parents[int(folder.name)] = command, int(stat[1])
        report = str(self.logs / "x" / "report.json")
        found = [number for number, command in commands.items() if report in command]
        for number in found:  # grows while it is read
            found += [child for child, parent in parents.items() if parent == number]
        return {number: commands[number] for number in found}

    def commits(self) -> int:
        """Return the number of the table's commits: each leaves a metadata file."""
        return len(list(self.warehouse.glob("db/t/metadata/*.metadata.json")))

    def kill(self) -> None:
        """Kill the driver, and its JVM, which would end a little later."""
        found = self.processes()
        assert found
        for number in found:
            # Workers end with their JVM, possibly before this loop reaches them.
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def records(self, table: str = "t") -> Records:
        """Return the records in a table; none is in it twice."""
        statement = f'SELECT "partition", "offset", value FROM "{table}"'
        rows = query["query"](self.warehouse / "db" / table, statement)[1]
        found = {(partition, at): bytes(value) for partition, at, value in rows}
        assert len(found) == len(rows)
        return found


@pytest.fixture(autouse=True)
def kafka_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a local operator the jars of Spark's Kafka source, as ``tidemark up`` does."""
    try:
        find_java()
        jars(*Format)
        folder = ensure_jars(spark_kafka(pyspark.__version__))
    except (JavaMissing, MavenMissing) as error:
        pytest.skip(str(error))
    monkeypatch.setenv(SOURCE_JARS_VARIABLE, ",".join(map(str, sorted(folder.glob("*.jar")))))


@pytest.fixture
def exports(world: KafkaWorld, tmp_path: Path) -> SparkExports:
    return SparkExports(world, tmp_path)


def write(bootstrap: str, topic: str, first: int, count: int) -> Records:
    """Write committed records with few keys, after as many aborted ones; return the committed."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    written: Records = {}

    def delivered(error: object, message: Any) -> None:
        assert error is None
        written[message.partition(), message.offset()] = message.value()

    # The aborted records come first, so that a reader meets them between committed ones.
    for commits in (False, True):
        producer.begin_transaction()
        for number in range(first, first + count):
            given: dict[str, Any] = {"on_delivery": delivered} if commits else {}
            value = b"%d %d" % (number, commits)
            producer.produce(topic, value, b"k%d" % (number % 7), number % 2, **given)
        producer.flush(60)
        if commits:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    return written


def read(bootstrap: str, topic: str) -> Records:
    """Return the records that a stock client reads."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    found, open_ = Records(), {0, 1}
    while open_:
        message = consumer.poll(30)
        assert message is not None
        partition, at = message.partition(), message.offset()
        assert partition is not None
        assert at is not None
        if message.error():
            open_.discard(partition)
        else:
            found[partition, at] = message.value() or b""
    consumer.close()
    return found


def delete_below(bootstrap: str, topic: str, partition: int, below: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records([TopicPartition(topic, partition, below)]).values():
        done.result(30)


async def test_records_are_exported_once_across_kills_and_no_loss_is_hidden(
    exports: SparkExports, world: KafkaWorld, bootstrap: tuple[str, ...]
) -> None:
    brokers = ",".join(bootstrap)
    compacted = {**SMALL, "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
    await exports.start()
    await world.create_topic("gaps", 2, 1, config=compacted)
    await world.ready("gaps")
    # Offsets have gaps: aborted records, markers, and what the compaction removes.
    written = Records()
    for first in range(0, 120, 40):
        written |= await asyncio.to_thread(write, brokers, "gaps", first, 40)
        await asyncio.sleep(0.3)  # longer than segment.ms, so that the next records close a segment

    async def is_compacted() -> bool:
        return len(await asyncio.to_thread(read, brokers, "gaps")) < len(written)

    await world.until(is_compacted, "records are compacted", 120)
    await exports.create(topicRef={"name": "gaps"})
    await world.until(lambda: exports.commits() > 3, "some commits", SPARK_S)
    exports.kill()
    killed = await exports.status(lambda found: found["run"]["number"] == 2)
    assert "SIGKILL" in killed["lastFailure"]
    written |= await asyncio.to_thread(write, brokers, "gaps", 120, 40)
    await exports.reaches_the_present()
    exported = await asyncio.to_thread(exports.records)
    assert exported.items() <= written.items()
    assert (await asyncio.to_thread(read, brokers, "gaps")).items() <= exported.items()
    # While no job runs, records are deleted that the table does not have.
    await world.patch(EXPORT, "x", suspend=True)
    await world.until(lambda: not exports.processes(), "no job is left", 60)
    more = await asyncio.to_thread(write, brokers, "gaps", 160, 40)
    start = max(at for partition, at in more if partition == 0) - 4
    await asyncio.to_thread(delete_below, brokers, "gaps", 0, start)
    await world.patch(EXPORT, "x", suspend=False)
    lost = await exports.status(lambda found: condition_of(found, "Stalled")["status"] == "True")
    ready = condition_of(lost, "Ready")
    assert ready["reason"] == "JobFailed"
    assert f"of gaps-0, but the log starts at {start}" in ready["message"]
    assert "set failOnDataLoss=false to skip them" in ready["message"]
    # A person decides to continue without them.
    options = {"maxOffsetsPerTrigger": BATCH, "failOnDataLoss": "false"}
    await world.patch(EXPORT, "x", source={"options": options})
    await exports.reaches_the_present()
    found = await asyncio.to_thread(exports.records)
    kept = {at: value for at, value in more.items() if at >= (0, start)}
    assert exported.items() <= found.items() <= (exported | kept).items()
    assert (await asyncio.to_thread(read, brokers, "gaps")).items() <= found.items()


async def test_many_topics_in_both_tiers_reach_delta_tables(
    exports: SparkExports, world: KafkaWorld, bootstrap: tuple[str, ...], admin: Admin
) -> None:
    await exports.start()
    tiering = {"enabled": True, "localRetention": {"time": "1s"}}
    await world.create_topic("many-cold", 1, 1, config=SMALL, tiering=tiering)
    await world.create_topic("many-warm", 1, 1)
    for name in ("many-cold", "many-warm"):
        await world.ready(name)
        await produce(bootstrap, name, 0, *(b"%d" % number for number in range(6)))

    async def is_tiered() -> bool:
        return await offset(admin, "many-cold", 0, EARLIEST_LOCAL) > 2

    await world.until(is_tiered, "some records are in the tier alone", 120)
    named = {"name": "db.{topic}"}
    await exports.create(Format.DELTA, topics={"pattern": "many-.*"}, table=named)
    await exports.status(lambda found: found.get("rows") == 12)
    # A topic that appears while the job runs.
    await world.create_topic("many-late", 1, 1)
    await world.ready("many-late")
    await produce(bootstrap, "many-late", 0, b"0", b"1")
    found = await exports.status(lambda found: found.get("rows") == 14)
    assert found["topics"]["total"] == 3
    for table, count in (("many_cold", 6), ("many_warm", 6), ("many_late", 2)):
        rows = await asyncio.to_thread(exports.records, table)
        assert rows == {(0, number): b"%d" % number for number in range(count)}


async def test_credentials_reach_spark_and_are_shown_nowhere(
    kubeconfig: Path, tmp_path: Path
) -> None:
    # Quotes and backslashes have a meaning in the configuration of Java's login.
    password = 'p"a;\\s s'
    with secured_kafka(tmp_path) as secured:
        own = secured.authority.leaf(tmp_path / "us", "CN=us")
        certificate, key = (Path(path).read_text() for path in (own.certificate, own.key))
        client: dict[str, Any] = {
            "bootstrap.servers": secured.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": own.trusted,
            "ssl.certificate.location": own.certificate,
            "ssl.key.location": own.key,
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": "secret",
        }
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion("bob", scram, password.encode())
        admin = AdminClient(client)
        admin.alter_user_scram_credentials([user])["bob"].result(60)
        world = await KafkaWorld.open(kubeconfig, tmp_path)
        exports = SparkExports(world, tmp_path)
        try:
            trusted = Path(secured.server.trusted).read_text()
            await put_secret(world, "ca", {"ca.crt": trusted})
            await put_secret(world, "us", {"tls.crt": certificate, "tls.key": key})
            await put_secret(world, "user", {"username": "bob", "password": password})
            await world.create_kafka_cluster(
                secured.bootstrap,
                tls={"caSecretRef": {"name": "ca"}, "certificateSecretRef": {"name": "us"}},
                sasl={"mechanism": "SCRAM-SHA-512", "credentialsSecretRef": {"name": "user"}},
            )
            await exports.start()
            await world.create_topic("guarded", 1, 1)
            await world.ready("guarded")
            producer = Producer(client)
            producer.produce("guarded", b"value")
            assert producer.flush(30) == 0
            await exports.create(topicRef={"name": "guarded"})
            status = await exports.status(lambda found: found.get("rows") == 1)
            processes = exports.processes()
            assert len(processes) > 1  # the driver and its JVM
            shown = "".join(processes.values()) + exports.log + json.dumps(status)
            # A line of the key without the frame that every key has.
            for hidden in (password, json.dumps(password)[1:-1], key.splitlines()[2]):
                assert hidden not in shown
        finally:
            await world.close()
