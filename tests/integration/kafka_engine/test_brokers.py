"""Brokers of Apache Kafka as read-only objects."""

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tidemark_operator.kube.kinds import BROKER, CLUSTER


async def test_brokers_appear_and_are_recreated(world: KafkaWorld) -> None:
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
    # Deleted objects of existing brokers are created recreated, under another uid.
    uid = (await world.get(BROKER, "demo-2"))["metadata"]["uid"]
    await world.delete(BROKER, "demo-2")  # by a person: the broker is exists all the same

    async def recreated() -> bool:
        exists = await world.exists(BROKER, "demo-2")
        return exists and (await world.get(BROKER, "demo-2"))["metadata"]["uid"] != uid

    await world.until(recreated, "the Broker is shown again")
    # Brokers of other workloads belong to the Tidemark engine.
    stranger = await world.create(BROKER, "mine", nodeId=9, workload="External")
    await world.condition(BROKER, stranger["metadata"]["name"], "Stalled", "True", "EngineKafka")
    # An object without a broker is deleted.
    await world.create(BROKER, "invented", nodeId=10, workload="Observed")
    await world.until(lambda: world.is_deleted(BROKER, "invented"), "there is no such broker")
    await world.delete(CLUSTER, "demo")
    await world.delete(BROKER, "mine")
    await world.until(
        lambda: world.is_deleted(CLUSTER, "demo"), "the Cluster is deleted with its brokers"
    )
    assert await world.is_deleted(BROKER, "demo-1")
