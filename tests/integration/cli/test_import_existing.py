"""``tidemark import --bootstrap`` on a real Apache Kafka, with and without security."""

import asyncio
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner, Result

from tests import apache_kafka as kafka
from tests.conformance.local_cluster import wait
from tests.kafka_programs import kafka_jars
from tests.security.client_certificates import ClientAuthority
from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark_cli.main import app
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_devcluster.kafka_properties import protocol_map

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.full]


def run(command: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["import", *shlex.split(command)], input=stdin)


def manifests(done: Result) -> dict[str, Any]:
    """Return the manifests by topic name."""
    assert done.exit_code == 0, done.stderr
    found = {}
    for safe_load_item in yaml.safe_load_all(done.stdout):
        found[safe_load_item["spec"].get("topicName", safe_load_item["metadata"]["name"])] = (
            safe_load_item
        )
    return found


def make(bootstrap: str, *topics: NewTopic) -> AdminClient:
    """Create topics and wait until all brokers know them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 1})
    for create_topic in admin.create_topics(list(topics)).values():
        # Brokers receive metadata at different times.
        create_topic.result(30)
    names = {topic.topic for topic in topics}
    for address in bootstrap.split(","):
        wait(
            lambda address=address: asyncio.run(known(address, names)) == names,  # type: ignore[misc]
            f"{address} to know {names}",
        )
    return admin


async def known(address: str, names: set[str]) -> set[str]:
    """Return the topics among ``names`` that one broker knows.

    The project's client queries that broker. librdkafka queries any broker that it has found.
    """
    async with KafkaClient(KafkaAccess((address,))) as client:
        return set(await Admin(client).topics(names))


def test_existing_topics_become_manifests(apache_kafka: KafkaNodes) -> None:
    tiered = {
        "remote.storage.enable": "true",
        "local.retention.ms": "3600000",
        "retention.ms": "86400000",
        "compression.type": "zstd",
    }
    admin = make(
        apache_kafka.bootstrap,
        NewTopic("import.plain", 2, 3),
        NewTopic("import_Tiered", 1, 2, config=tiered),
        NewTopic("__import_store_topic", 1, 2),
        # Internal topics match the pattern as well.
    )
    command = f"--bootstrap {apache_kafka.bootstrap} --topics '(__)?import[._].*'"
    done = run(f"{command} --cluster c -n ns")
    found = manifests(done)
    assert sorted(found) == ["import.plain", "import_Tiered"]
    assert "skipped, since __import_store_topic is an internal topic" in done.stderr
    for name, item in found.items():
        # The ids are Kafka's own, in the alphabet of statuses.
        described = admin.describe_topics(TopicCollection([name]))[name].result(30)
        topic_id = str(described.topic_id).replace("/", "_").replace("+", "-")  # as Kafka has it
        assert item["metadata"]["annotations"] == {ADOPT_TOPIC_ID: topic_id}
        assert item["metadata"]["namespace"] == "ns"
    assert found["import.plain"]["metadata"]["name"] == "import.plain"
    assert found["import.plain"]["spec"] == {
        "clusterRef": {"name": "c"},
        "partitions": 2,
        "replicationFactor": 3,
        "deletionPolicy": "Orphan",
    }
    assert found["import_Tiered"]["spec"] == {
        "clusterRef": {"name": "c"},
        "topicName": "import_Tiered",
        "partitions": 1,
        "replicationFactor": 2,
        "config": {"retention.ms": "86400000"},
        "tiering": {"enabled": True, "localRetention": {"time": "1h"}},
        "deletionPolicy": "Orphan",
    }
    # Unsupported keys are left out with a warning.
    assert "topic import_Tiered: compression.type is not served" in done.stderr
    strimzi = yaml.safe_dump(
        {
            "apiVersion": "kafka.strimzi.io/v1",
            "kind": "KafkaTopic",
            "metadata": {"name": "tiered"},
            "spec": {"topicName": "import_Tiered", "partitions": 1, "replicas": 2},
        }
    )
    # With Strimzi's manifests the object keeps Strimzi's name.
    done = run(f"--strimzi - --bootstrap {apache_kafka.bootstrap}", stdin=strimzi)
    (each,) = manifests(done).values()
    assert each["metadata"] == {
        "name": "tiered",
        "annotations": found["import_Tiered"]["metadata"]["annotations"],
    }


def test_invalid_addresses_and_patterns_are_reported(
    apache_kafka: KafkaNodes, tmp_path: Path
) -> None:
    for command, why in (
        ("", "no source: add --bootstrap HOST:PORT"),
        ("--bootstrap nowhere", "'nowhere' is no host:port"),
        ("--bootstrap 127.0.0.1:1", "cannot be read: 127.0.0.1:1: "),
        (f"--bootstrap {apache_kafka.bootstrap} --topics '['", "is not a regular expression"),
        (f"--bootstrap {apache_kafka.bootstrap} --topics no.such", "has no topic matching no.such"),
        (f"--bootstrap x:1 --client-config {tmp_path / 'none'}", "cannot be read"),
    ):
        done = run(command)
        assert done.exit_code == 1
        assert why in " ".join(done.stderr.split()), command


def test_import_from_a_cluster_with_tls_and_a_user(tmp_path: Path) -> None:
    kafka_jars()
    leaf = ClientAuthority().leaf(tmp_path / "listener", "CN=broker")
    # One PEM file with key and certificate, as Kafka's PEM keystore expects it.
    store = tmp_path / "broker.pem"
    store.write_text(Path(leaf.key).read_text() + Path(leaf.certificate).read_text())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    entries = {
        "listener.security.protocol.map": protocol_map(clients="SASL_SSL"),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": f'{module} required user_ann="secret";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
    }
    with kafka.running(tmp_path / "kafka", kafka.KafkaOptions(entries=entries)) as nodes:
        properties = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": leaf.trusted,
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": "secret",
        }
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap, **properties})
        admin.create_topics([NewTopic("secured", 1, 1)])["secured"].result(60)
        file = tmp_path / "client.properties"
        command = f"--bootstrap {nodes.bootstrap} --client-config {file}"
        # The client's own properties file is the input.
        file.write_text("\n".join(f"{key}={value}" for key, value in properties.items()))
        assert sorted(manifests(run(command))) == ["secured"]
        # Each property wrong in turn, with its own message.
        for changed, why in (
            ({"sasl.password": "wrong"}, "refuses user 'ann'"),
            ({"security.protocol": "SASL_PLAINTEXT"}, "is it a listener with TLS?"),
            ({"ssl.ca.location": "/none"}, "certificates or keys cannot be read"),
            ({"sasl.jaas.config": "x"}, "unknown property sasl.jaas.config"),
        ):
            bad = {**properties, **changed}
            file.write_text("\n".join(f"{key}={value}" for key, value in bad.items()))
            done = run(command)
            assert done.exit_code == 1
            assert why in " ".join(done.stderr.split()), done.stderr
            # Passwords never appear in messages.
            assert "wrong" not in done.stderr
