"""Topics on Apache Kafka: created, configured, grown, deleted, adopted and left alone."""

from typing import Any

import pytest

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.waiting import until
from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.ids import id_text
from tidemark.kafka_client import configs
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.values import TOPIC as CONFIG_OF_TOPIC
from tidemark.kafka_client.values import ConfigChange, NewTopic, RequestFailure
from tidemark_operator.kube.kinds import CLUSTER, TOPIC


async def own(admin: Admin, name: str) -> dict[str, str | None]:
    """Return the values that a topic has of its own."""
    found = (await configs.topic_configs(admin.client, [name]))[name]
    assert not isinstance(found, RequestFailure)
    return {key: entry.value for key, entry in found.items() if entry.own}


async def has(admin: Admin, name: str, **values: str | None) -> None:
    """Wait until a topic has these values of its own; None means that it has none."""
    expected = {key.replace("_", "."): value for key, value in values.items()}

    async def look() -> dict[str, str | None]:
        found = await own(admin, name)
        return {key: found.get(key) for key in expected}

    await until(look, lambda found: found == expected)


async def set_externally(admin: Admin, name: str, **values: str) -> None:
    expected = {key.replace("_", "."): value for key, value in values.items()}
    await configs.alter_configs(admin.client, [ConfigChange(CONFIG_OF_TOPIC, name, expected)])


async def partitions(admin: Admin, name: str) -> int:
    found = await admin.topics([name])
    return len(found[name].partitions) if name in found else 0


async def test_only_configuration_of_the_manifest_is_managed(
    world: KafkaWorld, admin: Admin, name: str
) -> None:
    await world.start_operator()
    await world.create_topic(name, config={"retention.ms": "3600000", "flush.ms": "007"})
    await world.ready(name)
    await set_externally(admin, name, segment_ms="60000")  # the manifest does not name it
    await set_externally(admin, name, retention_ms="1")  # drift
    # Drift is corrected; a key that the manifest does not name is left alone.
    await has(admin, name, retention_ms="3600000", segment_ms="60000", flush_ms="7")
    await world.patch(TOPIC, name, config={"retention.ms": "7200000", "flush.ms": None})
    await has(admin, name, retention_ms="7200000", segment_ms="60000", flush_ms=None)
    changes = await world.event("ConfigChanged")
    assert "flush.ms: '007' -> not set; retention.ms: '3600000' -> '7200000'" in changes


@pytest.mark.full
async def test_configuration_refused_by_kafka_is_reported(world: KafkaWorld, name: str) -> None:
    await world.start_operator()
    too_long = {"enabled": True, "localRetention": {"time": "300h"}}
    await world.create_topic(name, tiering=too_long)  # longer than the brokers' log.retention.ms
    condition = await world.condition(TOPIC, name, "Stalled", "True", "ConfigRefused")
    assert "local.retention.ms" in condition["message"]
    # Corrected before anything was created.
    await world.patch(TOPIC, name, tiering={"localRetention": {"time": "1h"}})
    await world.ready(name)
    await world.patch(TOPIC, name, tiering={"localRetention": {"time": "300h"}})
    await world.condition(TOPIC, name, "Stalled", "True", "ConfigRefused")
    await world.condition(TOPIC, name, "Ready", "True")  # the existing part continues
    await world.patch(TOPIC, name, tiering={"localRetention": {"time": "2h"}})
    await world.condition(TOPIC, name, "Stalled", "False")


async def test_partitions_are_added_and_never_removed(
    world: KafkaWorld, admin: Admin, name: str
) -> None:
    await world.start_operator()
    await world.create_topic(name, 1, 2)
    await world.ready(name)
    await world.patch(TOPIC, name, partitions=4)
    await until(lambda: partitions(admin, name), lambda found: found == 4)
    await world.status_where(TOPIC, name, lambda status: status["replicas"]["placed"] == 8)
    # Another tool adds a partition, which cannot be undone.
    assert await admin.add_partitions({name: (5, [(1, 2)])}) == {name: None}
    condition = await world.condition(TOPIC, name, "Stalled", "True", "PartitionsAdded")
    assert "Set spec.partitions to 5" in condition["message"]
    await world.patch(TOPIC, name, partitions=5)
    await world.condition(TOPIC, name, "Stalled", "False")


async def test_existing_topic_is_adopted_on_request_if_it_matches(
    world: KafkaWorld, admin: Admin, name: str
) -> None:
    config = {"retention.ms": "3600000", "segment.ms": "60000"}
    made = await admin.create_topics([NewTopic(name, ((2, 1), (3, 2)), config)])
    topic_id = made[name]
    assert not isinstance(topic_id, RequestFailure)
    await until(lambda: partitions(admin, name), lambda found: found == 2)
    await world.start_operator()
    # The manifest differs from the existing topic in two fields.
    await world.create_topic(name, 3, 2, config={"retention.ms": "1"})
    condition = await world.condition(TOPIC, name, "Stalled", "True", "AdoptionRequired")
    assert id_text(topic_id) in condition["message"]
    await world.annotate(TOPIC, name, **{ADOPT_TOPIC_ID: id_text(topic_id)})
    # The annotation alone is not enough: the topic has to match.
    condition = await world.condition(TOPIC, name, "Stalled", "True", "AdoptionRefused")
    assert "it has 2 partitions, not 3" in condition["message"]
    assert "retention.ms has 3600000, not 1" in condition["message"]
    await world.delete(TOPIC, name)
    await world.until(lambda: world.is_deleted(TOPIC, name), "nothing held it")
    before = await own(admin, name), (await admin.topics([name]))[name]
    # A manifest that matches is adopted without any change.
    body = await world.create_topic(name, 2, 2, config={"retention.ms": "3600000"})
    await world.annotate(TOPIC, body["metadata"]["name"], **{ADOPT_TOPIC_ID: id_text(topic_id)})
    topic = await world.ready(name)
    assert topic["status"]["topicId"] == id_text(topic_id)
    assert (await own(admin, name), (await admin.topics([name]))[name]) == before


@pytest.mark.full
async def test_externally_deleted_topic_is_not_recreated(
    world: KafkaWorld, admin: Admin, name: str
) -> None:
    await world.start_operator()
    await world.create_topic(name)
    await world.ready(name)
    view = (await admin.topics([name]))[name]
    # Another tool deletes the topic.
    await admin.delete_topics([view.topic_id])
    await world.condition(TOPIC, name, "Stalled", "True", "TopicMissing")
    assert await partitions(admin, name) == 0
    # And creates another one of that name.
    made = await admin.create_topics([NewTopic(name, ((1, 2),))])
    new_topic = made[name]
    assert not isinstance(new_topic, RequestFailure)
    await world.condition(TOPIC, name, "Stalled", "True", "TopicReplaced")
    # Orphan: the object is deleted, the foreign topic stays.
    await world.patch(TOPIC, name, deletionPolicy="Orphan")
    await world.delete(TOPIC, name)
    await world.until(lambda: world.is_deleted(TOPIC, name), "it is left behind")
    assert (await admin.topics([name]))[name].topic_id == new_topic
    await world.create_topic(name)
    await world.annotate(TOPIC, name, **{ADOPT_TOPIC_ID: id_text(new_topic)})
    await world.ready(name)
    await admin.delete_topics([new_topic])
    await world.condition(TOPIC, name, "Stalled", "True", "TopicMissing")
    # Nothing is left to delete, so the finalizer is removed.
    await world.delete(TOPIC, name)
    await world.until(lambda: world.is_deleted(TOPIC, name), "there is nothing to delete")
    await world.create_topic(name)
    await world.ready(name)


@pytest.mark.full
async def test_colliding_topic_names_are_refused(
    world: KafkaWorld, admin: Admin, name: str
) -> None:
    await world.start_operator()
    await world.create_topic(f"{name}-a", topicName=f"{name}.x")
    await world.ready(f"{name}-a")
    # Kafka treats dots and underscores as equal in metric names, and refuses collisions.
    await world.create_topic(f"{name}-b", topicName=f"{name}_x")
    await world.condition(TOPIC, f"{name}-b", "Stalled", "True", "NameRefused")
    await world.delete(TOPIC, f"{name}-b")
    await world.create_topic(f"{name}-c", topicName=f"{name}-x")
    await world.ready(f"{name}-c")


@pytest.mark.full
@pytest.mark.parametrize(
    ("kafka", "reason"),
    [
        ({"bootstrapServers": "127.0.0.1:1"}, "EngineUnavailable"),
        (
            {"sasl": {"mechanism": "PLAIN", "credentialsSecretRef": {"name": "nobody"}}},
            "EngineRejected",
        ),
    ],
    ids=["unreachable", "refused"],
)
async def test_unusable_connection_is_reported_and_recovers(
    world: KafkaWorld, name: str, kafka: dict[str, Any], reason: str
) -> None:
    cluster = await world.get(CLUSTER, "demo")
    right = cluster["spec"]["engine"]["kafka"]
    await world.patch(CLUSTER, "demo", engine={"kafka": {**right, **kafka}})
    await world.start_operator()
    await world.create_topic(name)
    await world.condition(CLUSTER, "demo", "Ready", "False", reason)
    await world.condition(TOPIC, name, "Ready", "False", "KafkaUnavailable")
    # The previous connection is restored.
    fixed = {**right, **dict.fromkeys(set(kafka) - set(right))}
    await world.patch(CLUSTER, "demo", engine={"kafka": fixed})
    await world.condition(CLUSTER, "demo", "Ready", "True")
    await world.ready(name)
