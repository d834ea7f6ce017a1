"""A broker of Apache Kafka dies during an operation of the operator: while it fills a placeholder
(KIP-409), or while records are deleted (KIP-107).

After its return every operation ends as requested, and no throttle is left. The tests use a cluster
of their own, whose nodes they kill.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.apache_kafka import QUICK, KafkaOptions, running
from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.record_production import offset, produce
from tests.integration.kafka_engine.test_moves import is_unthrottled, rates
from tests.integration.kafka_engine.waiting import until
from tests.integration.operator.cluster_world import condition_of
from tests.kafka_programs import kafka_jars
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.values import EARLIEST, LATEST
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_operator.kube.kinds import BROKER, CLUSTER, RECORD_DELETION, TOPIC, Json

LONG_S = 120.0
FLAG = "enable.under.replicated.topic.creation"
#: For each partition, records of 0.9 MB: eight seconds at one MiB per second.
RECORDS = 9


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[KafkaNodes]:
    """Three brokers in racks of their own, and a controller."""
    kafka_jars()
    options = KafkaOptions(brokers=3, controllers=1, racks=("a", "b", "c"), entries=QUICK)
    with running(tmp_path / "kafka", options) as started:
        yield started


@pytest.fixture
async def admin_client(nodes: KafkaNodes) -> AsyncIterator[Admin]:
    """The engine's own client, for checks."""
    async with KafkaClient(KafkaAccess(tuple(nodes.bootstrap.split(",")))) as client:
        admin = Admin(client)
        await admin.describe_cluster()
        yield admin


@pytest.fixture
async def alone(kubeconfig: Path, tmp_path: Path, nodes: KafkaNodes) -> AsyncIterator[KafkaWorld]:
    """Return a Cluster on these nodes, whose replicas move slowly."""
    world = await KafkaWorld.open(kubeconfig, tmp_path)
    try:
        await world.create_kafka_cluster(
            nodes.bootstrap, config={FLAG: "true"}, reassignment={"throttle": "1Mi"}
        )
        await world.start_operator()
        for node_id in nodes.broker_ids():
            await world.status_where(BROKER, f"demo-{node_id}", _is_serving, LONG_S)
        yield world
    finally:
        await world.close()


@pytest.mark.long
@pytest.mark.slow
async def test_broker_dies_while_it_fills_a_placeholder(
    alone: KafkaWorld, nodes: KafkaNodes, admin_client: Admin
) -> None:
    await _while_it_fills_a_placeholder(alone, nodes, admin_client)
    await _bystander_dies(alone, nodes, admin_client)


async def _while_it_fills_a_placeholder(world: KafkaWorld, nodes: KafkaNodes, admin: Admin) -> None:
    nodes.kill(3)
    await world.status_where(BROKER, "demo-3", lambda status: not _is_serving(status), LONG_S)
    await world.create_topic("filled", 2, 3)
    await world.status_where(
        TOPIC, "filled", lambda status: (status.get("replicas") or {}).get("placeholders") == 2
    )
    for partition in range(2):
        values = [b"x" * 900_000] * RECORDS
        # Enough data that the fill takes seconds, in which the broker can die again.
        await produce((nodes.address(1), nodes.address(2)), "filled", partition, *values)
    await asyncio.to_thread(nodes.start, [3])
    await until(lambda: _filling(admin), lambda found: found)
    # Throttles are set on all brokers before the move starts.
    for node_id in nodes.broker_ids():
        assert await rates(admin, node_id) == {"1048576"}
    nodes.kill(3)
    await world.status_where(BROKER, "demo-3", lambda status: not _is_serving(status), LONG_S)
    condition = await world.condition(TOPIC, "filled", "FullyReplicated", "False")
    assert condition["message"]
    print(f"while the broker is away again: {condition['reason']}: {condition['message']}")
    # The partitions keep their leaders.
    found = (await admin.topics(["filled"]))["filled"]
    assert all(part.leader in (1, 2) for part in found.partitions), "it continues to serve"
    await asyncio.to_thread(nodes.start, [3])
    # After the second return the fill completes.
    expected = {"desired": 6, "placed": 6, "inSync": 6, "placeholders": 0, "summary": "6/6"}
    await world.status_where(TOPIC, "filled", lambda status: status["replicas"] == expected, LONG_S)
    await world.condition(TOPIC, "filled", "FullyReplicated", "True")
    found = (await admin.topics(["filled"]))["filled"]
    assert all(sorted(part.replicas) == [1, 2, 3] for part in found.partitions)
    # No throttle is left in Kafka or in the status.
    await until(lambda: is_unthrottled(world, admin, "filled"), lambda found: found)


async def _filling(admin: Admin) -> bool:
    moves = await admin.reassignments()
    return any(3 in move.adding for (topic, _), move in moves.items() if topic == "filled")


async def _bystander_dies(world: KafkaWorld, nodes: KafkaNodes, admin: Admin) -> None:
    """Kill a broker outside the move: its throttle stays recorded until the broker is back."""
    await world.create_topic("widened", 1, 1)
    await world.status_where(TOPIC, "widened", _is_ready, LONG_S)
    await produce(tuple(nodes.bootstrap.split(",")), "widened", 0, *([b"x" * 900_000] * RECORDS))
    await world.patch(TOPIC, "widened", replicationFactor=2)

    async def others() -> set[int]:
        move = (await admin.reassignments()).get(("widened", 0))
        # The broker that takes no part in the move.
        return set() if move is None else {1, 2, 3}.difference(move.replicas)

    (bystander,) = await until(others, bool)
    nodes.kill(bystander)
    # The move completes without it.
    await world.status_where(
        TOPIC, "widened", lambda status: status["replicas"]["inSync"] == 2, LONG_S
    )
    # Its throttle cannot be removed while it is dead, so it stays recorded.
    await world.status_where(
        CLUSTER, "demo", lambda status: status.get("throttledBrokers") == [bystander], LONG_S
    )
    await asyncio.to_thread(nodes.start, [bystander])
    await until(lambda: is_unthrottled(world, admin, "widened"), lambda found: found)
    for node_id in nodes.broker_ids():
        await world.status_where(BROKER, f"demo-{node_id}", _is_serving, LONG_S)


@pytest.mark.long
@pytest.mark.slow
async def test_leader_dies_while_records_are_deleted(
    alone: KafkaWorld, nodes: KafkaNodes, admin_client: Admin
) -> None:
    """A follower is held up, so that the request is under way when the leader dies."""
    world, admin = alone, admin_client
    await world.create_topic("emptied", 3, 3)
    await world.status_where(TOPIC, "emptied", _is_ready, LONG_S)
    bootstrap = tuple(nodes.bootstrap.split(","))
    for partition in range(3):
        await produce(bootstrap, "emptied", partition, b"0", b"1", b"2")
        end = await until(
            lambda: offset(admin, "emptied", partition, LATEST),  # noqa: B023
            lambda found: found == 3,
        )
        assert end == 3
    parts = (await admin.topics(["emptied"]))["emptied"].partitions
    assert sorted(part.leader for part in parts) == [1, 2, 3]
    # The leader of partition 0 dies, a follower of it is suspended.
    leader, follower = parts[0].leader, parts[1].leader
    suspended = nodes.find(follower)
    assert suspended is not None
    # A suspended follower holds the request back (its log start is unknown).
    os.kill(suspended.pid, signal.SIGSTOP)
    try:
        points = [{"partition": 0, "beforeOffset": -1}]
        await world.create_deletion("half", "emptied", partitions=points)
        condition = await world.condition(
            RECORD_DELETION, "half", "Succeeded", "Unknown", "Deleting"
        )
        print(f"while a follower does not answer: {condition['reason']}: {condition['message']}")
        nodes.kill(leader)
        # The new leader completes the deletion.
        done = await world.status_where(
            RECORD_DELETION,
            "half",
            lambda status: condition_of(status, "Succeeded").get("status") == "True",
            LONG_S,
        )
    finally:
        os.kill(suspended.pid, signal.SIGCONT)
    assert [item["lowWatermark"] for item in done["partitions"]] == [3]
    await asyncio.to_thread(nodes.start, [leader])
    for node_id in nodes.broker_ids():
        await world.status_where(BROKER, f"demo-{node_id}", _is_serving, LONG_S)
    await world.status_where(
        TOPIC, "emptied", lambda status: status["replicas"]["inSync"] == 9, LONG_S
    )
    # Only the requested partition lost records.
    for partition in range(3):
        assert await offset(admin, "emptied", partition, EARLIEST) == (0 if partition else 3)
        assert await offset(admin, "emptied", partition, LATEST) == 3


def _is_serving(status: Json) -> bool:
    return condition_of(status, "Ready").get("reason") == "Serving"


def _is_ready(status: Json) -> bool:
    return condition_of(status, "Ready").get("status") == "True"
