"""Replication factors on Apache Kafka: raised and lowered by throttled reassignments, after which
no throttle is left."""

import pytest

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.record_production import produce
from tests.integration.kafka_engine.test_topics import own, set_externally
from tests.integration.kafka_engine.waiting import until
from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.ids import id_text
from tidemark.kafka_client import configs
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.values import BROKER, ConfigChange, NewTopic
from tidemark_operator.engines.kafka.desired_configs import THROTTLED
from tidemark_operator.kafka_term.reassignments import RATES
from tidemark_operator.kube.kinds import CLUSTER, TOPIC

pytestmark = pytest.mark.full


async def replicas(admin: Admin, name: str) -> list[int]:
    """Return the replicas of each partition, and those in sync."""
    view = (await admin.topics([name]))[name]
    return [len(partition.replicas) if partition.replicas else 0 for partition in view.partitions]


async def rates(admin: Admin, node_id: int) -> set[str | None]:
    """Return the rates that a live broker has of its own."""
    found = await configs.broker_config(admin.client, node_id, RATES)
    return {entry.value for entry in found.values() if entry.own}


async def is_unthrottled(world: KafkaWorld, admin: Admin, name: str) -> bool:
    """Return whether neither Kafka nor the status has a throttle."""
    if set(THROTTLED) & set(await own(admin, name)):
        return False
    for node_id in (1, 2, 3):
        if await rates(admin, node_id):
            return False
    # The status must not claim a throttle that Kafka no longer has.
    status = (await world.get(CLUSTER, "demo"))["status"]
    topic = (await world.get(TOPIC, name))["status"]
    kept = set(topic.get("configKeys") or ())
    return "throttledBrokers" not in status and not kept & set(THROTTLED)


async def test_replication_factor_is_raised_and_lowered(
    world: KafkaWorld, admin: Admin, bootstrap: tuple[str, ...], name: str
) -> None:
    operator = await world.start_operator()
    await world.create_topic(name, 4, 1)
    await world.ready(name)
    for partition in range(4):
        await produce(bootstrap, name, partition, b"x" * 10_000)
    # A raise is a reassignment of all partitions.
    await world.patch(TOPIC, name, replicationFactor=3)
    await world.condition(TOPIC, name, "FullyReplicated", "False", "ReplicationFactorChanging")
    await until(lambda: replicas(admin, name), lambda found: found == [3] * 4)
    await world.status_where(
        TOPIC, name, lambda status: status["replicas"]["inSync"] == 12, timeout_s=60
    )
    await world.condition(TOPIC, name, "FullyReplicated", "True")
    # A broker takes a rate for itself alone, and nothing moves where one has not taken it.
    for address in bootstrap:
        assert f"request to {address}: IncrementalAlterConfigsRequest" in operator.log
    await until(lambda: is_unthrottled(world, admin, name), lambda found: found)
    await world.patch(TOPIC, name, replicationFactor=2)
    await until(lambda: replicas(admin, name), lambda found: found == [2] * 4)
    await world.condition(TOPIC, name, "FullyReplicated", "True")
    # Four replicas with three brokers.
    await world.patch(TOPIC, name, replicationFactor=4)
    condition = await world.condition(TOPIC, name, "Stalled", "True", "ReplicationFactorPending")
    assert "Start more brokers, or set the previous" in condition["message"]


async def test_foreign_reassignment_is_left_alone(
    world: KafkaWorld, admin: Admin, bootstrap: tuple[str, ...], name: str
) -> None:
    made = await admin.create_topics([NewTopic(name, ((1,), (2,)))])
    await produce(bootstrap, name, 0, *([b"x" * 900_000] * 4))
    # Slow enough that the foreign move does not end during the test.
    slow = dict.fromkeys(RATES, "1000")
    nodes = [ConfigChange(BROKER, str(node), slow) for node in (1, 2, 3)]
    await set_externally(admin, name, **{key.replace(".", "_"): "*" for key in THROTTLED})
    for node in nodes:
        assert await configs.alter_broker(admin.client, node) is None
    # A reassignment that the operator did not start.
    await admin.reassign({(name, 0): (1, 2)})
    try:
        await world.create_topic(name, 2, 1)
        await world.annotate(TOPIC, name, **{ADOPT_TOPIC_ID: id_text(made[name])})  # type: ignore[arg-type]
        await world.start_operator()
        # Its partitions temporarily have 1 and 2 replicas, which no manifest specifies.
        await world.condition(TOPIC, name, "Stalled", "True", "AdoptionRefused")
        await admin.reassign({(name, 0): None})
        await world.ready(name)
        # Started again, after the Topic was adopted.
        await admin.reassign({(name, 0): (1, 2)})
        await world.patch(TOPIC, name, replicationFactor=3)
        await world.condition(TOPIC, name, "Reconciling", "True", "ReassignmentInProgress")
        assert (await admin.reassignments())[name, 0].adding == (2,)
        # The operator starts no move of its own while a foreign one is active.
        assert (name, 1) not in await admin.reassignments()
    finally:
        # Clean up even after a failure: the brokers are shared.
        await admin.reassign({(name, 0): None})
        free = [ConfigChange(BROKER, str(node), {}, RATES) for node in (1, 2, 3)]
        for node in free:
            assert await configs.alter_broker(admin.client, node) is None
    await until(lambda: replicas(admin, name), lambda found: found == [3, 3])
    await world.status_where(
        TOPIC, name, lambda status: status["replicas"]["inSync"] == 6, timeout_s=60
    )
    # An operator that ends before it has taken its throttles away leaves them to the next test.
    await until(lambda: is_unthrottled(world, admin, name), lambda found: found)
