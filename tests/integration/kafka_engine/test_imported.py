"""Applying the manifests that ``tidemark import`` writes changes nothing in the cluster."""

import asyncio
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.waiting import until
from tidemark.ids import id_text
from tidemark.kafka_client import configs
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.values import NewTopic, RequestFailure
from tidemark_cli.main import app
from tidemark_operator.kube.kinds import TOPIC

#: Longer than two intervals at which the operator looks at unchanged topics.
AT_REST_S = 5.0
WEEK_MS = str(7 * 86_400_000)
TOPICS = {
    "plain": {},
    "Capital_letters": {"segment.bytes": "2097152", "min.insync.replicas": "2"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2"},
    "zipped": {"compression.type": "zstd", "retention.ms": "-1"},
    "tiered": {
        "remote.storage.enable": "true",
        "retention.ms": WEEK_MS,
        "local.retention.ms": "3600000",
        "local.retention.bytes": "10485760",
    },
    "kept": {"remote.storage.enable": "true", "remote.log.copy.disable": "true"},
    "left": {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
}
PLACED = ((1, 2), (3, 1), (2, 3))


async def kafka_view(admin: Admin, names: list[str]) -> dict[str, Any]:
    """Return everything that DescribeConfigs and Metadata show about topics."""
    views = await admin.topics(names)
    found = await configs.topic_configs(admin.client, names)
    view_of_topics: dict[str, Any] = {}
    for name, view in views.items():
        configuration = found[name]
        assert not isinstance(configuration, RequestFailure)
        placed = [(partition.partition, partition.replicas) for partition in view.partitions]
        view_of_topics[name] = id_text(view.topic_id), placed, configuration
    return view_of_topics


def kafka_topic(name: str, config: dict[str, str], topic_id: str) -> dict[str, Any]:
    """Return the KafkaTopic that Strimzi has of a topic."""
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaTopic",
        "metadata": {
            "name": name.lower().replace("_", "-"),
            "labels": {"strimzi.io/cluster": "my-cluster"},
        },
        "spec": {
            "topicName": name,
            "partitions": len(PLACED),
            "replicas": len(PLACED[0]),
            "config": config,
        },
        "status": {"topicId": topic_id},
    }


@pytest.mark.parametrize("source", ["cluster", "strimzi"])
async def test_applying_imported_manifests_changes_nothing(
    world: KafkaWorld, admin: Admin, bootstrap: tuple[str, ...], name: str, source: str
) -> None:
    # Topics with every kind of configuration, made with Kafka's own tools.
    names = {f"{name}-{item}": config for item, config in TOPICS.items()}
    await admin.create_topics([NewTopic(item, PLACED, config) for item, config in names.items()])
    before = await until(
        lambda: kafka_view(admin, list(names)), lambda found: found.keys() == names.keys()
    )
    arguments = ["--bootstrap", bootstrap[0], "--topics", f"{name}-.*", "--cluster", "demo"]
    stdin = ""
    if source == "strimzi":
        arguments = ["--strimzi", "-", "--cluster", "demo"]
        kafka_topics = [
            kafka_topic(item, config, before[item][0]) for item, config in names.items()
        ]
        stdin = yaml.safe_dump_all(kafka_topics)
    # The command writes manifests of all of them.
    done = await asyncio.to_thread(CliRunner().invoke, app, ["import", *arguments], stdin)
    assert done.exit_code == 0, done.stderr
    await world.start_operator()
    made = list(yaml.safe_load_all(done.stdout))
    assert len(made) == len(TOPICS)
    # Apply the manifests as they are, adoption annotations included.
    for manifest in made:
        await world.api.create(TOPIC, world.namespace, manifest)
    for manifest in made:
        topic = await world.ready(manifest["metadata"]["name"])
        kafka_name = manifest["spec"].get("topicName", manifest["metadata"]["name"])
        assert topic["status"]["topicId"] == before[kafka_name][0]
    # Long enough for the operator to change something.
    await asyncio.sleep(AT_REST_S)
    assert await kafka_view(admin, list(names)) == before
