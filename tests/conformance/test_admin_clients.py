"""Topics through Kafka's admin API, by stock clients and by Apache Kafka's own commands."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import NewTopic as PythonTopic
from local_cluster import RunningCluster, wait

from tests.kafka_programs import java, kafka_jars

pytestmark = [pytest.mark.slow, pytest.mark.full]

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def jars() -> Path:
    return kafka_jars()


def _config(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    return found


def test_confluent_admin_client(cluster: RunningCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic("Admin_Confluent", 2, 3, config={"retention.ms": "60000"})
    admin.create_topics([new], operation_timeout=TIMEOUT_S)[new.topic].result(TIMEOUT_S)
    found = admin.list_topics(new.topic, timeout=TIMEOUT_S).topics[new.topic]
    assert len(found.partitions) == 2
    assert all(part.leader >= 0 for part in found.partitions.values())
    assert _config(admin, new.topic)["retention.ms"].value == "60000"
    # More partitions: the configuration of the topic must survive.
    grown = admin.create_partitions([NewPartitions(new.topic, 4)], operation_timeout=TIMEOUT_S)
    grown[new.topic].result(TIMEOUT_S)
    assert len(admin.list_topics(new.topic, timeout=TIMEOUT_S).topics[new.topic].partitions) == 4
    entry = ConfigEntry("segment.ms", "70000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, new.topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    # The broker that answers may be the last to receive the change.
    wait(lambda: _config(admin, new.topic)["segment.ms"].value == "70000", "the change to arrive")
    assert _config(admin, new.topic)["retention.ms"].value == "60000"
    deleted = admin.delete_topics([new.topic], operation_timeout=TIMEOUT_S)
    deleted[new.topic].result(TIMEOUT_S)
    # The same name gets a new topic id and none of the old topic's incremental settings.
    again = admin.create_topics([new], operation_timeout=TIMEOUT_S)
    again[new.topic].result(TIMEOUT_S)
    assert "segment.ms" not in {
        name for name, item in _config(admin, new.topic).items() if not item.is_default
    }


def test_kafka_python_admin_client(cluster: RunningCluster) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        admin.create_topics([PythonTopic("admin-python", 1, 3)], timeout_ms=TIMEOUT_S * 1000)
        assert "admin-python" in admin.list_topics()
        admin.delete_topics(["admin-python"], timeout_ms=TIMEOUT_S * 1000)
        assert "admin-python" not in admin.list_topics()
    finally:
        admin.close()


# ---------------------------------------------------------------- Apache Kafka's commands


def _command(jars: Path, cluster: RunningCluster, program: str) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        return java(jars, program, "--bootstrap-server", cluster.bootstrap, *arguments)

    return run


@pytest.mark.java
@pytest.mark.long
def test_kafka_topics_and_kafka_configs(cluster: RunningCluster, jars: Path) -> None:
    topics = _command(jars, cluster, "org.apache.kafka.tools.TopicCommand")
    configs = _command(jars, cluster, "kafka.admin.ConfigCommand")
    of_it = ("--topic", "Admin_Java")
    # A manual assignment names brokers, so the leaders are known: the first replica of each.
    topics("--create", *of_it, "--replica-assignment", "1:2,2:3")
    described = topics("--describe", *of_it)
    assert re.search(r"Partition: 1\s+Leader: 2\s+Replicas: 2,3", described)
    # kafka-topics may add partitions, and kafka-configs sets and removes one key.
    topics("--alter", *of_it, "--partitions", "3")
    assert "PartitionCount: 3" in topics("--describe", *of_it)
    entity = ("--entity-type", "topics", "--entity-name", "Admin_Java")
    configs("--alter", *entity, "--add-config", "retention.ms=60000")
    assert "retention.ms=60000" in configs("--describe", *entity)
    configs("--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in configs("--describe", *entity)
    # `--all` prints defaults as well: 1048588 is Kafka's LogConfig default of max.message.bytes.
    everything = configs("--describe", "--all", *entity)
    assert "max.message.bytes=1048588" in everything
    broker = configs("--describe", "--all", "--entity-type", "brokers", "--entity-name", "1")
    assert "log.retention.ms" in broker
    # The command returns when the controller has accepted the deletion.
    topics("--delete", *of_it)
    assert "Admin_Java" not in topics("--list")


@pytest.mark.java
def test_kafka_reassign_partitions_and_kafka_leader_election(
    cluster: RunningCluster, jars: Path, tmp_path: Path
) -> None:
    reassign = _command(jars, cluster, "org.apache.kafka.tools.reassign.ReassignPartitionsCommand")
    elect = _command(jars, cluster, "org.apache.kafka.tools.LeaderElectionCommand")
    topics = _command(jars, cluster, "org.apache.kafka.tools.TopicCommand")
    of_it = ("--topic", "admin-moves")
    # Broker 1 leads. The plan below takes the replica from broker 1 to broker 3.
    topics("--create", *of_it, "--replica-assignment", "1:2")
    plan = tmp_path / "plan.json"
    moved = {"topic": "admin-moves", "partition": 0, "replicas": [3, 2]}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    # The tool returns at once. `--verify` reports the progress, and would remove throttles that the
    # tool never set.
    reassign("--reassignment-json-file", str(plan), "--execute")

    def is_done() -> bool:
        said = reassign("--reassignment-json-file", str(plan), "--verify", "--preserve-throttles")
        return "is completed" in said

    wait(is_done, "the partition to have moved", 120)
    assert re.search(r"Replicas: 3,2\s+Isr: ", topics("--describe", *of_it))
    # Automatic rebalancing may already have moved the leader, and the tool fails when there is
    # nothing to elect.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    leader = admin.list_topics("admin-moves", timeout=TIMEOUT_S).topics["admin-moves"]
    if leader.partitions[0].leader != 3:
        elect("--election-type", "PREFERRED", *of_it, "--partition", "0")
    led = admin.list_topics("admin-moves", timeout=TIMEOUT_S).topics["admin-moves"]
    assert led.partitions[0].leader == 3
