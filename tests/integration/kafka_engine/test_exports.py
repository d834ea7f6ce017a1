"""Exports of topics of Apache Kafka on a real API server, which stores the Jobs of the operator."""

import asyncio

from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.operator import jobs
from tidemark_operator.kube.kinds import EXPORT, JOB, TOPIC


async def test_job_gets_the_kafka_of_the_cluster_and_ends_with_its_topic(
    world: KafkaWorld, bootstrap: tuple[str, ...]
) -> None:
    await jobs.start_operator(world)
    await jobs.create_export(world, source={"tier": "remote"})
    await world.condition(EXPORT, "x", "Ready", "False", "TopicNotFound")
    await world.create_topic("t", 1, 1)
    topic = await world.ready("t")
    refused = await world.condition(EXPORT, "x", "Stalled", "True", "SourceUnusable")
    assert refused["message"].startswith("spec.source.tier cannot be set for a topic of Apache")
    await world.patch(EXPORT, "x", source={"tier": "auto"})
    made = await jobs.job(world, "x-1")
    assert jobs.order(made).source == {
        "engine": "kafka",
        "topic": "t",
        "bootstrap": ",".join(bootstrap),
        "kafka.security.protocol": "PLAINTEXT",
    }
    status = (await world.get(EXPORT, "x"))["status"]
    assert status["topicId"] == topic["status"]["topicId"]
    # Another tool deletes the topic and creates it again: its records do not belong to the table.
    await asyncio.to_thread(_recreate, ",".join(bootstrap), "t")
    await world.condition(TOPIC, "t", "Stalled", "True", "TopicReplaced")
    replaced = await world.condition(EXPORT, "x", "Stalled", "True", "TopicReplaced")
    assert "needs another Export with another table" in replaced["message"]
    await world.until(lambda: world.is_deleted(JOB, "x-1"), "no job is left")


def _recreate(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(30)
    while name in admin.list_topics(timeout=10).topics:
        pass
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
