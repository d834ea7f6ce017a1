"""Brokers of Apache Kafka as objects that are only to be read."""

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.operator.jobs import create_export
from tidemark_operator.kube.kinds import BROKER, CLUSTER, EXPORT


async def test_brokers_appear_and_come_back(world: KafkaWorld) -> None:
    await world.start_operator()
    for node_id, rack in enumerate("abc", 1):
        name = f"demo-{node_id}"
        await world.condition(BROKER, name, "Ready", "True")
        broker = await world.get(BROKER, name)
        assert broker["spec"]["workload"] == "Observed"
        assert broker["status"]["rack"] == rack
        assert broker["status"]["endpoints"][0]["port"]
    await world.condition(CLUSTER, "demo", "Ready", "True")
    cluster = await world.get(CLUSTER, "demo")
    assert cluster["status"]["brokers"] == {"registered": 3, "fenced": 0}
    uid = (await world.get(BROKER, "demo-2"))["metadata"]["uid"]
    await world.delete(BROKER, "demo-2")  # by a person: the broker is there all the same

    async def again() -> bool:
        there = await world.exists(BROKER, "demo-2")
        return there and (await world.get(BROKER, "demo-2"))["metadata"]["uid"] != uid

    await world.until(again, "the Broker is shown again")
    stranger = await world.create(BROKER, "mine", nodeId=9, workload="External")
    await world.condition(BROKER, stranger["metadata"]["name"], "Stalled", "True", "EngineKafka")
    await create_export(world)
    told = await world.condition(EXPORT, "x", "Stalled", "True", "EngineKafka")
    assert "tidemark spark export with --option engine=kafka" in told["message"]
    await world.create(BROKER, "invented", nodeId=10, workload="Observed")
    await world.until(lambda: world.is_deleted(BROKER, "invented"), "there is no such broker")
    await world.delete(CLUSTER, "demo")
    await world.delete(BROKER, "mine")
    await world.until(
        lambda: world.is_deleted(CLUSTER, "demo"), "the Cluster is deleted with its brokers"
    )
    assert await world.is_deleted(BROKER, "demo-1")
