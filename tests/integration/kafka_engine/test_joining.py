"""Brokers of Apache Kafka that join, die and return, and a controller that is unavailable.

Topics are created while brokers are missing (KIP-409), their placeholders are filled, and
disablements do not wait for dead brokers. The tests use a cluster of their own, whose nodes they
kill.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.apache_kafka import QUICK, KafkaOptions, running
from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.test_moves import is_unthrottled
from tests.integration.kafka_engine.waiting import until
from tests.kafka_programs import kafka_jars
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_devcluster.kafka_properties import BrokerPorts
from tidemark_devcluster.ports import free_ports
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC

LONG_S = 120.0
FLAG = "enable.under.replicated.topic.creation"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[KafkaNodes]:
    """Two brokers in racks of their own, and a controller."""
    kafka_jars()
    options = KafkaOptions(brokers=2, controllers=1, racks=("a", "b"), tiered=True, entries=QUICK)
    with running(tmp_path / "kafka", options) as started:
        yield started


@pytest.mark.long
@pytest.mark.slow
async def test_brokers_join_die_and_return(
    kubeconfig: Path, tmp_path: Path, nodes: KafkaNodes
) -> None:
    world = await KafkaWorld.open(kubeconfig, tmp_path)
    try:
        await world.create_kafka_cluster(nodes.bootstrap)
        await world.start_operator()
        await _broker_joins(world, nodes)
        await _broker_dies(world, nodes)
        await _controller_is_away(world, nodes)
        await _all_are_away(world, nodes)
    finally:
        await world.close()


async def _broker_joins(world: KafkaWorld, nodes: KafkaNodes) -> None:
    await world.create_topic("wide", 4, 3, tiering={"enabled": True})
    # Three replicas with two brokers: refused by default.
    condition = await world.condition(TOPIC, "wide", "Ready", "False", "BrokersMissing")
    assert "1 broker missing" in condition["message"]
    await world.patch(CLUSTER, "demo", config={FLAG: "true"})
    await world.condition(TOPIC, "wide", "Ready", "True")
    expected = {"desired": 12, "placed": 8, "inSync": 8, "placeholders": 4, "summary": "8/12"}
    await world.status_where(TOPIC, "wide", lambda status: status["replicas"] == expected)
    await world.condition(TOPIC, "wide", "FullyReplicated", "False", "Placeholders")
    clients, replication = free_ports(2)
    nodes.declare_broker(3, BrokerPorts(clients=clients, replication=replication, rack="c"))
    # The joining broker fills them.
    nodes.start([3])
    expected = {"desired": 12, "placed": 12, "inSync": 12, "placeholders": 0, "summary": "12/12"}
    filled = await world.status_where(
        TOPIC, "wide", lambda status: status["replicas"] == expected, LONG_S
    )
    assert filled["partitionsPlaced"] == 4
    await world.condition(TOPIC, "wide", "FullyReplicated", "True")
    await world.condition(BROKER, "demo-3", "Ready", "True")
    async with KafkaClient(KafkaAccess(tuple(nodes.bootstrap.split(",")))) as client:
        admin = Admin(client)
        await admin.describe_cluster()
        found = await admin.topics(["wide"])
        assert all(sorted(part.replicas) == [1, 2, 3] for part in found["wide"].partitions)
        # And no throttle stays behind.
        await until(lambda: is_unthrottled(world, admin, "wide"), lambda found: found)


async def _broker_dies(world: KafkaWorld, nodes: KafkaNodes) -> None:
    """A disablement does not wait for a dead broker, which reads the change when it returns."""
    nodes.kill(3)
    await world.status_where(BROKER, "demo-3", lambda status: _reason(status) == "Fenced", LONG_S)
    await world.status_where(
        TOPIC, "wide", lambda status: status["replicas"]["inSync"] == 8, LONG_S
    )
    await world.patch(TOPIC, "wide", tiering={"enabled": False, "disablePolicy": "Retain"})
    await world.status_where(
        TOPIC, "wide", lambda status: status["tiering"]["state"] == "Disabled", LONG_S
    )
    nodes.start([3])
    await world.status_where(BROKER, "demo-3", lambda status: _reason(status) == "Serving", LONG_S)


async def _controller_is_away(world: KafkaWorld, nodes: KafkaNodes) -> None:
    """Check that a change waits for the controller, and completes once it is back."""
    (controller,) = nodes.controller_ids()
    # KRaft without its only controller: metadata cannot change.
    nodes.kill(controller)
    await world.create_topic("meanwhile", 1, 1)
    await world.condition(TOPIC, "meanwhile", "Reconciling", "True")
    nodes.start([controller])
    await world.status_where(TOPIC, "meanwhile", lambda found: _reason(found) == "Serving", LONG_S)


async def _all_are_away(world: KafkaWorld, nodes: KafkaNodes) -> None:
    """A Topic that was Ready stays Ready while all brokers are away."""
    before = (await world.get(TOPIC, "meanwhile"))["metadata"]["resourceVersion"]
    for node_id in nodes.broker_ids():
        # All brokers are dead.
        nodes.kill(node_id)
    await world.status_where(
        CLUSTER, "demo", lambda status: _reason(status) == "EngineUnavailable", LONG_S
    )
    # The Topic's last known state is kept.
    assert (await world.get(TOPIC, "meanwhile"))["metadata"]["resourceVersion"] == before
    nodes.start(nodes.broker_ids())
    await world.status_where(CLUSTER, "demo", lambda status: _reason(status) == "Serving", LONG_S)
    await world.delete(TOPIC, "meanwhile")
    await world.until(lambda: world.is_deleted(TOPIC, "meanwhile"), "the Topic is deleted", LONG_S)


def _reason(status: dict[str, object]) -> object:
    conditions = status.get("conditions") or []
    assert isinstance(conditions, list)
    return next(
        (condition["reason"] for condition in conditions if condition["type"] == "Ready"), None
    )
