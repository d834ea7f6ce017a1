"""Three KRaft controllers, of which the active one is killed during a change.

The change completes without intervention, and the number of requests stays bounded. When two of
three are killed, the status says what the change waits for. The tests use a cluster of their own,
whose nodes they kill.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kio.schema.describe_quorum.v2 import request as quorum_request
from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32

from tests.apache_kafka import QUICK, KafkaOptions, running
from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.record_production import SMALL, produce
from tests.integration.kafka_engine.test_moves import is_unthrottled, replicas
from tests.integration.kafka_engine.test_tiering import TIERED
from tests.integration.kafka_engine.waiting import until
from tests.integration.operator.cluster_world import condition_of
from tests.integration.operator.operator_process import OperatorProcess
from tests.kafka_programs import kafka_jars
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json

ENDED_S = 120.0
TOPICS = 12
#: At rest the operator sends four requests every five seconds; each changing topic adds a few.
REQUESTS_A_SECOND = 15.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[KafkaNodes]:
    """Three brokers, three controllers."""
    kafka_jars()
    options = KafkaOptions(brokers=3, controllers=3, tiered=True, entries=QUICK)
    with running(tmp_path / "kafka", options) as started:
        yield started


class Quorum:
    """The controllers, as their brokers see them."""

    def __init__(self, nodes: KafkaNodes, admin: Admin) -> None:
        self.nodes, self.admin = nodes, admin

    async def active(self) -> int:
        # DescribeQuorum (KIP-595) is answered by the active controller.
        partition = quorum_request.PartitionData(partition_index=i32(0))
        request = quorum_request.DescribeQuorumRequest(
            topics=(
                quorum_request.TopicData(
                    topic_name=TopicName("__cluster_metadata"), partitions=(partition,)
                ),
            )
        )
        answer = await self.admin.client.request_any(request, DescribeQuorumResponse)
        return int(answer.topics[0].partitions[0].leader_id)

    async def kill_active(self) -> int:
        active = await self.active()
        assert active in self.nodes.controller_ids()
        assert await asyncio.to_thread(self.nodes.kill, active)
        return active


@pytest.fixture
async def quorum(nodes: KafkaNodes) -> AsyncIterator[Quorum]:
    """Return the cluster's quorum."""
    async with KafkaClient(KafkaAccess(tuple(nodes.bootstrap.split(",")))) as client:
        admin = Admin(client)
        await admin.describe_cluster()
        yield Quorum(nodes, admin)


@pytest.fixture
async def alone(kubeconfig: Path, tmp_path: Path, nodes: KafkaNodes) -> AsyncIterator[KafkaWorld]:
    """A Cluster on it; replicas are moved slowly."""
    world = await KafkaWorld.open(kubeconfig, tmp_path)
    try:
        await world.create_kafka_cluster(nodes.bootstrap, reassignment={"throttle": "1Mi"})
        yield world
    finally:
        await world.close()


@pytest.mark.long
@pytest.mark.slow
async def test_killed_controller_delays_changes_only(alone: KafkaWorld, quorum: Quorum) -> None:
    operator = await alone.start_operator()
    await _while_created(alone, operator, quorum)
    await _while_disabled(alone, operator, quorum)
    await _while_moved(alone, operator, quorum)


async def _while_created(world: KafkaWorld, operator: OperatorProcess, quorum: Quorum) -> None:
    names = [f"made-{number}" for number in range(TOPICS)]
    # Half of the Topics before the kill, half while no controller is active.
    async with _calm(world, operator, names, "creations"):
        for name in names[: TOPICS // 2]:
            await world.create_topic(name, 2, 3)
        killed = await quorum.kill_active()
        for name in names[TOPICS // 2 :]:
            await world.create_topic(name, 2, 3)
        for name in names:
            await world.status_where(TOPIC, name, _is_ready, ENDED_S)
    found = await quorum.admin.topics(names)
    assert all(len(found[name].partitions) == 2 for name in names)
    await asyncio.to_thread(quorum.nodes.start, [killed])


async def _while_disabled(world: KafkaWorld, operator: OperatorProcess, quorum: Quorum) -> None:
    for policy in ("Retain", "Delete"):
        name = f"off-{policy.lower()}"
        await world.create_topic(name, 1, 3, config=SMALL, tiering=TIERED)
        await world.status_where(TOPIC, name, _is_ready, ENDED_S)
        await produce(tuple(quorum.nodes.bootstrap.split(",")), name, 0, b"0", b"1", b"2")
        async with _calm(world, operator, [name], f"disablement, {policy}"):
            await world.patch(TOPIC, name, tiering={"enabled": False, "disablePolicy": policy})
            # The disablement has begun when the controller dies.
            await world.status_where(TOPIC, name, _was_disabling)
            killed = await quorum.kill_active()
            await world.status_where(
                TOPIC, name, lambda status: status["tiering"]["state"] == "Disabled", ENDED_S
            )
            await world.status_where(TOPIC, name, _is_ready, ENDED_S)
        await asyncio.to_thread(quorum.nodes.start, [killed])


def _was_disabling(status: Json) -> bool:
    return bool(status["tiering"]["epoch"] == 1)


async def _while_moved(world: KafkaWorld, operator: OperatorProcess, quorum: Quorum) -> None:
    name, admin = "moved", quorum.admin
    await world.create_topic(name, 2, 1)
    await world.status_where(TOPIC, name, _is_ready, ENDED_S)
    bootstrap = tuple(quorum.nodes.bootstrap.split(","))
    for partition in range(2):
        # Enough data that the move is in progress when the controller dies.
        await produce(bootstrap, name, partition, *([b"x" * 900_000] * 6))
    async with _calm(world, operator, [name], "reassignment"):
        await world.patch(TOPIC, name, replicationFactor=3)
        await until(lambda: _moving(admin, name), lambda found: found)
        killed = await quorum.kill_active()
        # The status names the change, and not the dead controller.
        condition = await world.condition(TOPIC, name, "FullyReplicated", "False")
        assert condition["reason"] == "ReplicationFactorChanging", condition
        await world.status_where(
            TOPIC, name, lambda status: status["replicas"]["inSync"] == 6, ENDED_S
        )
        assert await replicas(admin, name) == [3, 3]
        await until(lambda: is_unthrottled(world, admin, name), lambda found: found)
        await world.status_where(TOPIC, name, _is_ready, ENDED_S)
    await asyncio.to_thread(quorum.nodes.start, [killed])


async def _moving(admin: Admin, name: str) -> bool:
    return any(topic == name for topic, _ in await admin.reassignments())


@pytest.mark.long
@pytest.mark.slow
async def test_missing_controller_majority_is_reported(alone: KafkaWorld, quorum: Quorum) -> None:
    world = alone
    await world.start_operator()
    await world.create_topic("made", 1, 1)
    await world.ready("made")
    # Two of three controllers: no majority.
    killed = [await quorum.kill_active()]
    other = next(
        controller_id
        for controller_id in quorum.nodes.controller_ids()
        if controller_id not in killed
    )
    killed.append(other)
    await asyncio.to_thread(quorum.nodes.kill, other)
    await world.create_topic("waits", 1, 1)

    def says(status: Json) -> bool:
        # The message says that controllers are missing.
        condition = condition_of(status, "Ready")
        return condition.get("status") == "False" and "controllers run" in str(
            condition.get("message")
        )

    began_s = time.monotonic()
    await world.status_where(CLUSTER, "demo", says, 60)
    await world.status_where(TOPIC, "waits", says, 60)
    print(f"without a majority of controllers: said after {time.monotonic() - began_s:.0f} s")
    await asyncio.to_thread(quorum.nodes.start, killed)
    await world.status_where(TOPIC, "waits", _is_ready, ENDED_S)
    await world.status_where(CLUSTER, "demo", _is_ready, ENDED_S)


@asynccontextmanager
async def _calm(
    world: KafkaWorld, operator: OperatorProcess, names: list[str], what: str
) -> AsyncIterator[None]:
    """Check that no Topic is ever Stalled, that each says what it waits for, and that requests
    to Kafka are rare.
    """
    log, began_s = operator.log, time.monotonic()
    bad: list[str] = []

    async def watch() -> None:
        # Watch continuously: a short-lived wrong condition is a failure as well.
        while True:
            for body in await world.api.list_all(TOPIC, world.namespace):
                if body["metadata"]["name"] in names:
                    bad.extend(_amiss(body.get("status") or {}))
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    elapsed_s = time.monotonic() - began_s
    requests = re.findall(r"kafka_client.client: request to \S+: (\w+)", operator.log[len(log) :])
    print(f"{what}: {elapsed_s:.1f} s, {len(requests)} requests")
    assert not bad, sorted(set(bad))
    # Bounded by time, not by the number of Topics.
    assert len(requests) <= REQUESTS_A_SECOND * (elapsed_s + 5), {
        item: requests.count(item) for item in requests
    }


def _amiss(status: Json) -> list[str]:
    stalled, ready = condition_of(status, "Stalled"), condition_of(status, "Ready")
    found = [] if stalled.get("status") != "True" else [f"Stalled: {stalled['message']}"]
    if ready.get("status") == "False" and not ready.get("message"):
        found.append("it does not say what it waits for")
    return found


def _is_ready(status: Json) -> bool:
    return condition_of(status, "Ready").get("status") == "True"
