"""An application moves from Apache Kafka to Tidemark's brokers and back, by the guide's commands.

The source is what Strimzi makes: KafkaTopics and KafkaUsers in Kubernetes, an Apache Kafka with
SCRAM and ACLs, a Secret with the password. Every record and committed offset is compared.
"""

import base64
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from local_cluster import RunningCluster, wait

from tests import kafka_classes
from tests.apache_kafka import QUICK, VERSION, KafkaOptions, running
from tests.guide_shell import GuideShell, steps
from tests.kafka_programs import kafka_jars
from tidemark_devcluster import settings as local_settings
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.controlplane.programs import find_programs, run_kubectl
from tidemark_devcluster.kafka_properties import protocol_map
from tidemark_devcluster.layout import Layout, read_json, write_json
from tidemark_devcluster.ports import free_ports
from tidemark_devcluster.toolchain.maven import JarSet, ensure_jars

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(2000)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "migrate.md"
MIRROR = JarSet(
    name="kafka-mirror",
    version=VERSION,
    version_property="kafka.version",
    jars=2,
    folder=Path(__file__).parent,
)
TOOLS = {
    "kafka-topics.sh": "tools.TopicCommand",
    "kafka-get-offsets.sh": "tools.GetOffsetShell",
    "kafka-console-consumer.sh": "tools.consumer.ConsoleConsumer",
    "kafka-console-producer.sh": "tools.ConsoleProducer",
    "kafka-consumer-groups.sh": "tools.consumer.group.ConsumerGroupCommand",
    "connect-mirror-maker.sh": "connect.mirror.MirrorMaker",
}
#: For one step: the JVM of MirrorMaker 2 takes ten seconds of processor time to start.
PATIENCE_S = 300.0
PASSWORDS = {"shop": "of the shop", "migrator": "of the migrator"}
#: Settings of a test: replicas, no search of all classes, short waits. Later lines take precedence.
TEST_SETTINGS = """\
kafka.plugin.discovery = service_load
tidemark.plugin.discovery = service_load
replication.factor = {replicas}
checkpoints.topic.replication.factor = {replicas}
offset-syncs.topic.replication.factor = {replicas}
config.storage.replication.factor = {replicas}
offset.storage.replication.factor = {replicas}
status.storage.replication.factor = {replicas}
sync.group.offsets.interval.seconds = 2
emit.checkpoints.interval.seconds = 2
refresh.groups.interval.seconds = 2
"""
STRIMZI = """\
apiVersion: kafka.strimzi.io/v1
kind: KafkaTopic
metadata: {name: orders, labels: {strimzi.io/cluster: my-cluster}}
spec: {partitions: 3, replicas: 1, config: {retention.ms: 604800000}}
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaTopic
metadata: {name: prices, labels: {strimzi.io/cluster: my-cluster}}
spec: {partitions: 1, replicas: 1, config: {cleanup.policy: compact}}
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaUser
metadata: {name: shop, labels: {strimzi.io/cluster: my-cluster}}
spec:
  authentication: {type: scram-sha-512}
  authorization:
    type: simple
    acls:
      - {resource: {type: topic, name: orders}, operations: [Read, Write, Describe]}
      - {resource: {type: group, name: shop}, operations: [Read]}
      - {resource: {type: group, name: reports}, operations: [Read]}
"""


class Copy(NamedTuple):
    """Record without its offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: tuple[int, int]


def login(bootstrap: str, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
    }


# ---------------------------------------------------------------- the clusters


@contextmanager
def strimzi_kafka(folder: Path) -> Iterator[str]:
    """Apache Kafka as Strimzi configures it: SCRAM on the clients' listener, ACLs; its address."""
    prefix, modules = "listener.name.clients.", "org.apache.kafka.common.security"
    entries = {
        **QUICK,
        "listener.security.protocol.map": protocol_map(clients="SASL_PLAINTEXT"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        # The first user has to exist before a client can create others.
        f"{prefix}plain.sasl.jaas.config": (
            f'{modules}.plain.PlainLoginModule required user_admin="admin";'
        ),
        f"{prefix}scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin;User:migrator",
    }
    with running(folder, KafkaOptions(entries=entries)) as nodes:
        yield nodes.bootstrap


@contextmanager
def tidemark_brokers(folder: Path) -> Iterator[RunningCluster]:
    """Three brokers with SCRAM and ACLs, in the namespace ``tidemark``."""
    layout = Layout(folder)
    layout.create()
    settings = local_settings.choose(
        layout, cluster="tidemark", tier="directory", namespace="tidemark"
    )
    local = LocalCluster(layout, settings, lambda _: None)
    try:
        local.start_control_plane()
        kubectl(local, "create", "namespace", "tidemark")
        local.start(brokers=0)
        running_cluster = RunningCluster(local)
        cluster = running_cluster.kube.get("Cluster", "tidemark")
        assert cluster is not None
        authorization = {"type": "simple", "superUsers": ["migrator"]}
        running_cluster.kube.apply(
            "Cluster", "tidemark", {**cluster["spec"], "authorization": authorization}
        )
        # The listener replaces the one without authentication before a broker starts.
        for node, port in zip((1, 2, 3), free_ports(3), strict=True):
            local.brokers.declare_broker(node)
            path = layout.broker_config(node)
            listener = {
                "listeners": f"CLIENTS://127.0.0.1:{port}",
                "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
                "listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            }
            write_json(path, {**(read_json(path) or {}), **listener})
        local.start_brokers((1, 2, 3))
        try:
            yield running_cluster
        finally:
            running_cluster.kube.close()
    finally:
        local.stop()


def kubectl(local: LocalCluster, *arguments: str, stdin: str | None = None) -> str:
    done = run_kubectl(arguments, kubeconfig=local.kubeconfig, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def put_secret(local: LocalCluster, namespace: str, name: str, password: str) -> None:
    """Create a Secret that Users may name."""
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "annotations": {"tidemark.dev/offered-to": "User"}},
        "data": {"password": base64.b64encode(password.encode()).decode()},
    }
    kubectl(local, "--namespace", namespace, "create", "--filename", "-", stdin=json.dumps(body))


def install_strimzis_objects(local: LocalCluster, kafka: str) -> None:
    """Do what a user of Strimzi and its operators have done: objects, topics, a user, ACLs."""
    # Strimzi's kinds, as far as kubectl needs them.
    for kind in ("KafkaTopic", "KafkaUser"):
        plural = f"{kind.lower()}s"
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.kafka.strimzi.io"},
            "spec": {
                "group": "kafka.strimzi.io",
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
            },
        }
        kubectl(local, "apply", "--filename", "-", stdin=json.dumps(definition))
    names = [f"crd/{kind}.kafka.strimzi.io" for kind in ("kafkatopics", "kafkausers")]
    kubectl(local, "wait", "--for=condition=Established", "--timeout=30s", *names)
    # The user's objects, and the Secret that the User Operator generates.
    kubectl(local, "create", "namespace", "kafka")
    kubectl(local, "--namespace", "kafka", "apply", "--filename", "-", stdin=STRIMZI)
    put_secret(local, "kafka", "shop", PASSWORDS["shop"])

    admin = AdminClient(
        {
            "bootstrap.servers": kafka,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": "admin",
        }
    )
    # The users, topics and ACLs that the operators create in Kafka.
    iterations = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users = [
        UserScramCredentialUpsertion(user, iterations, password.encode())
        for user, password in PASSWORDS.items()
    ]
    for created in admin.alter_user_scram_credentials(users).values():
        created.result(30)
    acls = []
    for item in yaml.safe_load_all(STRIMZI):
        spec, name = item["spec"], item["metadata"]["name"]
        if item["kind"] == "KafkaTopic":
            config = {key: str(value) for key, value in spec["config"].items()}
            topic = NewTopic(name, spec["partitions"], spec["replicas"], config=config)
            admin.create_topics([topic])[name].result(30)
            continue
        acls += [
            AclBinding(
                ResourceType[rule["resource"]["type"].upper()],
                rule["resource"]["name"],
                ResourcePatternType.LITERAL,
                f"User:{name}",
                "*",
                AclOperation[operation.upper()],
                AclPermissionType.ALLOW,
            )
            for rule in spec["authorization"]["acls"]
            for operation in rule["operations"]
        ]
    for bound in admin.create_acls(acls).values():
        bound.result(30)


# ---------------------------------------------------------------- the application


class Application:
    """A producer and a consumer of ``orders``; remembers what was acknowledged and processed."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.processed: Counter[bytes] = Counter()
        self._sent = 0
        self._produces = threading.Event()
        self._consumes = threading.Event()
        self._threads: list[threading.Thread] = []
        self.errors: list[str] = []

    def start(self, bootstrap: str) -> None:
        """Start both with a cluster's address; nothing else differs between the clusters."""
        self._produces.set()
        self._consumes.set()
        self._threads = [
            threading.Thread(target=run, args=(bootstrap,))
            for run in (self._consume, self._produce)
        ]
        for thread in self._threads:
            thread.start()

    def stop_producer(self) -> None:
        self._produces.clear()
        self._threads[1].join()

    def stop_consumer(self) -> None:
        self._consumes.clear()
        self._threads[0].join()

    def stop(self) -> None:
        """End the threads, also after a failure."""
        self._produces.clear()
        self._consumes.clear()
        for thread in self._threads:
            thread.join()

    def _acknowledge(self, error: object, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            value = message.value()
            assert isinstance(value, bytes)
            self.acknowledged.append(value)

    def _produce(self, bootstrap: str) -> None:
        producer = Producer({**login(bootstrap, "shop"), "enable.idempotence": True})
        while self._produces.is_set():
            for _ in range(10):
                self._sent += 1
                producer.produce(
                    "orders",
                    f"order {self._sent}".encode(),
                    key=str(self._sent % 97).encode(),
                    headers=[("number", str(self._sent).encode())],
                    timestamp=1_700_000_000_000 + self._sent,
                    on_delivery=self._acknowledge,
                )
            producer.poll(0)
            time.sleep(0.1)
        assert producer.flush(60) == 0

    def _consume(self, bootstrap: str) -> None:
        consumer = Consumer(
            {
                **login(bootstrap, "shop"),
                "group.id": "shop",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["orders"])
        while self._consumes.is_set():
            messages = consumer.consume(500, timeout=0.2)
            for message in messages:
                value = message.value()
                assert message.error() is None, message.error()
                assert isinstance(value, bytes)
                # Records that existed before the application are compared elsewhere.
                if value.startswith(b"order "):
                    self.processed[value] += 1
            if messages:
                consumer.commit(asynchronous=False)
        consumer.close()

    def has_processed_all(self) -> bool:
        return len(self.processed) == len(self.acknowledged)

    def check(self) -> None:
        """Each acknowledged record was processed, and each exactly once."""
        assert not self.errors
        assert self.processed == Counter(self.acknowledged)


def records(bootstrap: str, topic: str, partitions: int) -> dict[int, list[Copy]]:
    """Return every committed record of a topic by partition, in order."""
    consumer = Consumer(
        {
            **login(bootstrap, "migrator"),
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: dict[int, list[Copy]] = {}
    for partition in range(partitions):
        place = TopicPartition(topic, partition)
        start, _ = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([TopicPartition(topic, partition, start)])
        copies = found[partition] = []
        while True:
            message = consumer.poll(30)
            assert message is not None, f"{topic}-{partition} ends with {len(copies)} records"
            if message.error() is not None:
                break  # the end of the partition
            headers = tuple((name, bytes(value)) for name, value in message.headers() or ())
            copies.append(Copy(message.key(), message.value(), headers, message.timestamp()))
    consumer.close()
    return found


def committed(bootstrap: str, group: str) -> dict[int, int]:
    """Return the committed offsets of a group on ``orders``."""
    consumer = Consumer({**login(bootstrap, "migrator"), "group.id": group})
    places = [TopicPartition("orders", partition) for partition in range(3)]
    found = {place.partition: place.offset for place in consumer.committed(places, timeout=30)}
    consumer.close()
    return found


def values_from(bootstrap: str, offsets: Mapping[int, int]) -> dict[int, list[bytes]]:
    """Return the values of ``orders`` from an offset of each partition."""
    consumer = Consumer(
        {**login(bootstrap, "migrator"), "group.id": "none", "enable.partition.eof": True}
    )
    found: dict[int, list[bytes]] = {}
    for partition, offset in offsets.items():
        consumer.assign([TopicPartition("orders", partition, offset)])
        values = found[partition] = []
        while (message := consumer.poll(30)) is not None and message.error() is None:
            value = message.value()
            assert isinstance(value, bytes)
            values.append(value)
    consumer.close()
    return found


# ---------------------------------------------------------------- history of the source


def write_history(kafka: str) -> None:
    """Write what makes offsets of source and copy differ, before the application starts."""
    producer = Producer({**login(kafka, "migrator"), "transactional.id": "history"})
    producer.init_transactions(30)
    for commits in (True, False, True):
        producer.begin_transaction()
        for number in range(100):
            value = f"{'kept' if commits else 'aborted'} {number}".encode()
            producer.produce("orders", value, partition=number % 3)
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    plain = Producer(login(kafka, "migrator"))
    for number in range(300):
        # Keys repeat, and each third record is a tombstone.
        value = None if number % 3 == 0 else f"price {number}".encode()
        plain.produce("prices", value, key=str(number % 50).encode())
    assert plain.flush(60) == 0
    # The log of one partition starts later than at 0.
    admin = AdminClient(login(kafka, "migrator"))
    place = TopicPartition("orders", 1, 20)
    admin.delete_records([place])[place].result(30)


def commit_with_lag(kafka: str) -> None:
    """Leave a group that has processed only a part."""
    consumer = Consumer({**login(kafka, "shop"), "group.id": "reports"})
    offsets = [TopicPartition("orders", partition, 60) for partition in range(3)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


# ---------------------------------------------------------------- the guide


class GuideReader:
    """GuideReader of the guide, who has a folder and a terminal."""

    def __init__(self, folder: Path, local: LocalCluster, kafka: str, tidemark: str) -> None:
        jars, mirror = kafka_jars(), ensure_jars(MIRROR)
        programs = folder / "bin"
        programs.mkdir(parents=True)
        # Tools print nothing but their result, as with the configuration of Kafka's distribution.
        flags = " ".join(kafka_classes.flags(jars))
        level = "-Dorg.slf4j.simpleLogger.defaultLogLevel="
        scripts = {}
        for name, main in TOOLS.items():
            logged = f"{level}{'info' if 'mirror' in main else 'error'}"
            command = f"java {flags} {logged} -cp '{jars}/*:{mirror}/*' org.apache.kafka.{main}"
            scripts[name] = f'exec {command} "$@"'
        scripts["kubectl"] = f'exec {" ".join(find_programs().kubectl)} "$@"'
        for name, script in scripts.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        for name in ("kafka", "tidemark"):
            (folder / f"{name}.properties").write_text(
                "security.protocol=SASL_PLAINTEXT\n"
                "sasl.mechanism=SCRAM-SHA-512\n"
                "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
                f'username="migrator" password="{PASSWORDS["migrator"]}";\n'
            )
        self.folder = folder
        self.shell = GuideShell(
            folder,
            {
                "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "KUBECONFIG": str(local.kubeconfig),
                "KAFKA": kafka,
                "TIDEMARK": tidemark,
                "TOPICS": "orders|prices",
                "COLUMNS": "500",
            },
        )

    def follow(self, heading: str, number: int, *, timeout_s: float = 0.0) -> list[str]:
        """Run the command with this number, from 1, below a heading of the guide."""
        return self.shell.follow(steps(PAGE, heading)[number - 1], timeout_s=timeout_s)

    def await_lags(self, heading: str, number: int, *lags: int) -> None:
        """Repeat a command that describes the group until its partitions have these lags."""
        expected = dict(enumerate(lags))
        wait(
            lambda: lags_of(self.follow(heading, number, timeout_s=PATIENCE_S)) == expected,
            f"the lags of {heading!r} to be {expected}",
            PATIENCE_S,
        )

    def configure(self, name: str, *, replicas: int, more: str = "") -> None:
        """Append the settings of this test to a configuration of MirrorMaker 2."""
        with (self.folder / name).open("a") as file:
            file.write(TEST_SETTINGS.format(replicas=replicas) + more)

    def pid(self, name: str) -> int:
        return int((self.folder / name).read_text())


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[str]:
    with strimzi_kafka(tmp_path / "kafka") as bootstrap:
        yield bootstrap


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[RunningCluster]:
    with tidemark_brokers(tmp_path / "tidemark") as running_cluster:
        yield running_cluster


@pytest.fixture
def reader(tmp_path: Path, kafka: str, brokers: RunningCluster) -> Iterator[GuideReader]:
    made = GuideReader(tmp_path / "reader", brokers.local, kafka, brokers.bootstrap)
    yield made
    made.shell.close()


@pytest.fixture
def application() -> Iterator[Application]:
    made = Application()
    yield made
    made.stop()


def test_application_moves_to_tidemark_and_back(
    kafka: str, brokers: RunningCluster, reader: GuideReader, application: Application
) -> None:
    # A Strimzi cluster in use, and a user for the copy on Tidemark's brokers.
    install_strimzis_objects(brokers.local, kafka)
    write_history(kafka)
    wait(lambda: can_commit(kafka), "the group coordinator")
    application.start(kafka)
    put_secret(brokers.local, "tidemark", "migrator-password", PASSWORDS["migrator"])
    reference = {"secretKeyRef": {"name": "migrator-password", "key": "password"}}
    authentication = {"type": "scram-sha-512", "password": {"valueFrom": reference}}
    brokers.kube.apply(
        "User",
        "migrator",
        {"clusterRef": {"name": "tidemark"}, "authentication": authentication},
    )

    # Topics and users, by the import.
    for number in (1, 2, 3, 4, 5, 6):
        reader.follow("Import topics and users", number)

    # The copy. MirrorMaker 2 is killed in the middle, and started again.
    reader.follow("Copy the records", 1)
    reader.configure("mm2.properties", replicas=3, more="kafka->tidemark.groups = shop, reports\n")
    reader.follow("Copy the records", 2)
    reader.follow("Copy the records", 3)
    wait(lambda: end_of_orders(brokers.bootstrap) > 500, "the copy to begin", PATIENCE_S)
    os.kill(reader.pid("mm2.pid"), signal.SIGKILL)
    time.sleep(2)
    reader.follow("Copy the records", 2)
    for number in (4, 5):
        reader.follow("Copy the records", number, timeout_s=PATIENCE_S)

    # The application stops.
    application.stop_producer()
    wait(application.has_processed_all, "the application to process everything", PATIENCE_S)
    reader.await_lags("Stop the application", 1, 0, 0, 0)
    application.stop_consumer()
    application.check()
    reader.follow("Check that everything is copied", 1, timeout_s=PATIENCE_S)
    reader.await_lags("Check that everything is copied", 2, 1, 1, 1)
    reader.follow("Check that everything is copied", 3)
    wait(lambda: not is_alive(reader.pid("mm2.pid")), "MirrorMaker 2 to end", PATIENCE_S)

    # Every record, in the order of its partition, and every committed offset.
    source = records(kafka, "orders", 3)
    assert records(brokers.bootstrap, "orders", 3) == source
    assert records(brokers.bootstrap, "prices", 1) == records(kafka, "prices", 1)
    at_cut = committed(brokers.bootstrap, "shop")
    assert values_from(brokers.bootstrap, at_cut) == {0: [], 1: [], 2: []}
    # The group with a lag has an earlier offset or none, so it repeats records and misses none.
    behind = values_from(kafka, committed(kafka, "reports"))
    offsets = committed(brokers.bootstrap, "reports")
    again = values_from(
        brokers.bootstrap, {partition: max(0, offset) for partition, offset in offsets.items()}
    )
    for partition, values in behind.items():
        assert again[partition][-len(values) :] == values

    # The way back is prepared, then the application starts with another address.
    for number in (1, 2, 3, 4, 5):
        reader.follow("Prepare the way back", number, timeout_s=PATIENCE_S if number == 4 else 0)
    reader.configure("back.properties", replicas=1)
    reader.follow("Prepare the way back", 6)
    application.start(brokers.bootstrap)
    before = len(application.acknowledged)
    wait(lambda: len(application.acknowledged) > before + 500, "the application to run", PATIENCE_S)
    application.stop_producer()
    wait(application.has_processed_all, "the application to process everything", PATIENCE_S)
    reader.await_lags("Go back", 1, 0, 0, 0)
    application.stop_consumer()
    application.check()

    # Back on Apache Kafka, with all records that were written on Tidemark's brokers.
    reader.follow("Go back", 2, timeout_s=PATIENCE_S)
    reader.await_lags("Go back", 3, 1, 1, 1)
    reader.follow("Go back", 4)
    wait(lambda: not is_alive(reader.pid("back.pid")), "MirrorMaker 2 to end", PATIENCE_S)
    moved = records(brokers.bootstrap, "orders", 3)
    assert records(kafka, "orders", 3) == moved
    assert len(moved[0]) > len(source[0])
    application.start(kafka)
    before = len(application.acknowledged)
    wait(lambda: len(application.acknowledged) > before + 500, "the application to run", PATIENCE_S)
    application.stop_producer()
    wait(application.has_processed_all, "the application to process everything", PATIENCE_S)
    application.stop_consumer()
    application.check()

    # The topics of MirrorMaker 2 are removed, the application's are not.
    for number in (2, 3):
        reader.follow("Finish", number)
    for bootstrap in (kafka, brokers.bootstrap):
        admin = AdminClient(login(bootstrap, "migrator"))
        wait(
            lambda admin=admin: (
                {"orders", "prices"}  # type: ignore[misc]
                == {
                    name
                    for name in admin.list_topics(timeout=10).topics
                    if not name.startswith("__")
                }
            ),
            "the topics of MirrorMaker 2 to disappear",
            PATIENCE_S,
        )


def can_commit(kafka: str) -> bool:
    """Commit the offsets of the lagging group; a new coordinator refuses at first."""
    try:
        commit_with_lag(kafka)
    except KafkaException:
        return False
    return True


def end_of_orders(bootstrap: str) -> int:
    """Return the end of the first partition of ``orders``."""
    consumer = Consumer({**login(bootstrap, "migrator"), "group.id": "none"})
    _, end = consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=30)
    consumer.close()
    return end


def lags_of(lines: list[str]) -> dict[int, int]:
    """Return the lag of each partition that kafka-consumer-groups.sh prints."""
    rows = [line.split() for line in lines if line.startswith("shop")]
    return {int(row[2]): int(row[5]) for row in rows}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
