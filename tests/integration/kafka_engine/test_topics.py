"""Topics on Apache Kafka: created, configured, grown, deleted, taken over, left alone."""

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tidemark.ids import id_text
from tidemark.kafka_client.admin import Admin
from tidemark_operator.kube.kinds import CLUSTER, TOPIC


async def test_the_life_of_a_topic(world: KafkaWorld, admin: Admin, name: str) -> None:
    await world.start_operator()
    await world.create_topic(name, 2, 3, config={"retention.ms": "3600000"})
    topic = await world.ready(name)
    found = (await admin.topics([name]))[name]
    assert topic["status"]["topicId"] == id_text(found.topic_id)
    assert topic["status"]["replicas"] == {
        "desired": 6, "placed": 6, "inSync": 6, "placeholders": 0
    }  # fmt: skip
    await world.condition(CLUSTER, "demo", "Ready", "True")
    await world.delete(TOPIC, name)
    await world.until(lambda: world.gone(TOPIC, name), "the Topic is gone")
    assert name not in await admin.topics([name])
