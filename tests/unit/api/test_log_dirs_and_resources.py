"""AlterReplicaLogDirs on a broker with one directory, and
ListConfigResources by type (KIP-1142)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.alter_replica_log_dirs.v2 import request as moves
from kio.schema.errors import ErrorCode

from tests.control_messages import partition_states
from tests.unit.api.admin_world import AdminWorld
from tidemark.wire import control
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.cluster import log_dirs
from tidemark_broker.api.configs import describe_configs

CLUSTER = int(ResourceType.CLUSTER), "kafka-cluster"
HERE = str(Path())
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


# ---------------------------------------------------------------- AlterReplicaLogDirs


def moved(path: str, *topics: tuple[str, tuple[int, ...]]) -> moves.AlterReplicaLogDir:
    named = tuple(
        moves.AlterReplicaLogDirTopic(name=name, partitions=numbers)  # type: ignore[arg-type]
        for name, numbers in topics
    )
    return moves.AlterReplicaLogDir(path=path, topics=named)


def hosting(*hosted: tuple[str, int]) -> AdminWorld:
    """Return a broker that hosts these replicas, of topics with two partitions each."""
    world = AdminWorld()
    replicas: Any = world.services.replicas
    replicas.get = lambda topic, number: SimpleNamespace() if (topic, number) in hosted else None
    for topic in sorted({topic for topic, _ in hosted}):
        world.topic(topic, partitions=2)
    return world


async def move(world: AdminWorld, *dirs: moves.AlterReplicaLogDir) -> dict[tuple[str, int], str]:
    answer = await world.send(log_dirs.ALTER, 2, dirs=dirs)
    return {
        (topic.topic_name, part.partition_index): part.error_code.name
        for topic in answer.results
        for part in topic.partitions
    }


async def test_a_move_to_the_only_directory_succeeds() -> None:
    world = hosting(("a", 0), ("b", 1))
    errors = await move(world, moved(HERE, ("a", (0, 1, 7)), ("b", (1,)), ("nope", (0,))))
    # Partition 1 of a is on another broker, and 7 does not exist.
    assert errors == {
        ("a", 0): "none",
        ("a", 1): "replica_not_available",
        ("a", 7): "unknown_topic_or_partition",
        ("b", 1): "none",
        ("nope", 0): "unknown_topic_or_partition",
    }


async def test_an_unknown_directory_is_rejected() -> None:
    world = hosting(("a", 0))
    errors = await move(world, moved("/elsewhere", ("a", (0,)), ("nope", (0,))))
    assert errors == {("a", 0): "log_dir_not_found", ("nope", 0): "log_dir_not_found"}


async def test_the_last_directory_of_a_replica_counts() -> None:
    # As in Kafka, where the request is a map from replica to directory.
    world = hosting(("a", 0))
    errors = await move(world, moved("/elsewhere", ("a", (0,))), moved(HERE, ("a", (0, 0))))
    assert errors == {("a", 0): "none"}


async def test_moving_replicas_requires_alter_on_the_cluster() -> None:
    world = hosting(("a", 0))
    world.allow((*CLUSTER, Operation.DESCRIBE))
    denied = {("a", 0): "cluster_authorization_failed"}
    assert await move(world, moved(HERE, ("a", (0,)))) == denied
    world = hosting(("a", 0))
    world.allow((*CLUSTER, Operation.ALTER))
    assert await move(world, moved(HERE, ("a", (0,)))) == {("a", 0): "none"}


# ---------------------------------------------------------------- ListConfigResources


def with_brokers(*nodes: int) -> AdminWorld:
    world = AdminWorld()
    brokers = tuple(
        control.BrokerState(
            broker_id=node,
            broker_epoch=node,
            rack=None,
            fenced=node == 2,
            listeners=(control.Endpoint(name="CLIENTS", host="h", port=9092),),
        )
        for node in nodes
    )
    world.cluster.apply(partition_states(full=True, cluster_id="c", brokers=brokers))
    return world


async def listed(world: AdminWorld, version: int, *kinds: int) -> Any:
    answer = await world.send(describe_configs.LIST_RESOURCES, version, resource_types=kinds)
    if answer.error_code is not ErrorCode.none:
        return answer.error_code.name
    return {
        (config_resource.resource_type, config_resource.resource_name)
        for config_resource in answer.config_resources
    }


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        ((TOPIC,), {(TOPIC, "a"), (TOPIC, "b")}),
        ((BROKER,), {(BROKER, "1"), (BROKER, "2")}),
        ((BROKER_LOGGER, GROUP), {(BROKER_LOGGER, "1"), (BROKER_LOGGER, "2")}),
        ((CLIENT_METRICS,), set()),
        ((TOPIC, 64), "unsupported_version"),
        ((0,), "unsupported_version"),
    ],
)
async def test_resources_are_listed_by_type(kinds: tuple[int, ...], names: object) -> None:
    world = with_brokers(1, 2)
    world.topic("a")
    world.topic("b")
    assert await listed(world, 1, *kinds) == names


async def test_every_type_is_listed_by_default() -> None:
    world = with_brokers(1)
    world.topic("a")
    assert await listed(world, 1) == {(TOPIC, "a"), (BROKER, "1"), (BROKER_LOGGER, "1")}
    # Version 0 lists client metrics only, of which there are none.
    assert await listed(world, 0) == set()


async def test_listing_resources_requires_describe_configs() -> None:
    world = with_brokers(1)
    # DESCRIBE on the cluster is not enough.
    world.allow((*CLUSTER, Operation.DESCRIBE))
    assert await listed(world, 1) == "cluster_authorization_failed"
    world.allow((*CLUSTER, Operation.DESCRIBE_CONFIGS))
    assert await listed(world, 1, BROKER) == {(BROKER, "1")}
