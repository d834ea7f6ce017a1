"""Topic changes of Kafka clients on the real API server: admission and field ownership."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.operator_process import OperatorProcess
from tests.unit.topic_changes.requests import change, create, settings
from tidemark.wire.topics import DISABLEMENT_IN_PROGRESS, ChangeKind, TopicChange
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json

GIT = "argocd-controller"
POLICY_VIOLATION = int(ErrorCode.policy_violation)


async def _started(world: ClusterWorld) -> tuple[OperatorProcess, BrokerPeer]:
    await world.create_cluster()
    operator = await world.start_operator()
    return operator, await world.start_broker(1, operator)


async def _apply(world: ClusterWorld, name: str, **spec: Any) -> Json:
    """Apply a manifest with the field manager of Argo CD."""
    body = {
        "apiVersion": TOPIC.api_version,
        "kind": TOPIC.kind,
        "metadata": {"name": name, "namespace": world.namespace},
        "spec": {"clusterRef": {"name": "demo"}, "partitions": 1, "replicationFactor": 1} | spec,
    }
    return await world.api.apply(TOPIC, body, manager=GIT)


def _configure(topic: str, **values: str | None) -> TopicChange:
    return change(ChangeKind.CONFIGURE, topic, settings=settings(**values))


def _for_all_brokers(**values: str | None) -> TopicChange:
    return change(ChangeKind.CONFIGURE_CLUSTER, "", settings=settings(**values))


async def test_topic_of_a_client_is_managed_as_an_object(world: ClusterWorld) -> None:
    operator, peer = await _started(world)

    async def ask(*changes: TopicChange) -> list[int]:
        return [code for code, _ in await peer.change_topics(operator.control, *changes)]

    # Underscores and capitals are no valid object name, so topicName has the topic's name.
    made = create("Orders_EU", 2, settings=settings(retention_ms="60000"))
    # validateOnly (KIP-195 for CreatePartitions, CreateTopics v1): nothing is created.
    assert await peer.change_topics(operator.control, made, validate_only=True) == [(0, "")]
    assert await world.api.list_all(TOPIC, world.namespace) == []
    assert await ask(made, create("plain")) == [0, 0]
    await world.until(lambda: ("Orders_EU", 1) in peer.rows, "the broker is notified")
    objects = await world.api.list_all(TOPIC, world.namespace)
    name = next(body["metadata"]["name"] for body in objects if "topicName" in body["spec"])
    assert "by User:alice at 10.0.0.7" in await world.event("CreatedByClient")
    # Each kind of client change becomes a change of the object.
    assert await ask(change(ChangeKind.GROW, "Orders_EU", partitions=4)) == [0]
    assert await ask(_configure("Orders_EU", retention_ms=None, segment_ms="70000")) == [0]
    spec = (await world.get(TOPIC, name))["spec"]
    assert (spec["partitions"], spec["config"]) == (4, {"segment.ms": "70000"})
    # What it held before is still held, and goes with it.
    assert await ask(_configure("Orders_EU", segment_ms=None)) == [0]
    assert not (await world.get(TOPIC, name))["spec"].get("config")
    await world.until(lambda: ("Orders_EU", 3) in peer.rows, "the added partitions are sent")
    # Dynamic broker configuration becomes spec.config of the Cluster.
    assert await ask(_for_all_brokers(log_retention_ms="60000")) == [0]
    config = (await world.get(CLUSTER, "demo"))["spec"]["config"]
    assert config == {"remote.log.storage.system.enable": "true", "log.retention.ms": "60000"}
    assert await ask(_for_all_brokers(log_retention_ms=None)) == [0]
    assert "log.retention.ms" not in (await world.get(CLUSTER, "demo"))["spec"]["config"]
    # Deleting the topic deletes the object.
    assert await ask(change(ChangeKind.DELETE, "Orders_EU")) == [0]
    await world.until(lambda: world.is_deleted(TOPIC, name), "the object is deleted")


@pytest.mark.full
async def test_client_changes_respect_fields_owned_by_git(world: ClusterWorld) -> None:
    operator, peer = await _started(world)
    await _apply(world, "t", config={"retention.ms": "60000"})
    await world.until(lambda: ("t", 0) in peer.rows, "the broker is notified")

    async def ask(topic_change: TopicChange) -> tuple[int, str]:
        (result,) = await peer.change_topics(operator.control, topic_change)
        return result

    # Git also owns one key of the Cluster's configuration.
    manifest = {
        "apiVersion": CLUSTER.api_version,
        "kind": CLUSTER.kind,
        "metadata": {"name": "demo", "namespace": world.namespace},
        "spec": {"config": {"message.max.bytes": "60000"}},
    }
    await world.api.apply(CLUSTER, manifest, manager=GIT)
    # Every change of a field that Git owns is refused with the owner's name.
    for refused in (
        _for_all_brokers(message_max_bytes="70000"),
        _for_all_brokers(message_max_bytes=None),
        change(ChangeKind.GROW, "t", partitions=3),
        _configure("t", retention_ms="1"),
        _configure("t", retention_ms=None),
        change(ChangeKind.DELETE, "t"),
    ):
        code, message = await ask(refused)
        assert code == POLICY_VIOLATION
        assert GIT in message
    # Another key is free, and owned by the client from now on.
    assert await ask(_configure("t", segment_ms="70000")) == (0, "")
    spec = (await world.get(TOPIC, "t"))["spec"]
    assert spec["config"] == {"retention.ms": "60000", "segment.ms": "70000"}
    # The manifest still owns its own fields, and no others.
    await _apply(world, "t", config={"retention.ms": "90000"})
    spec = (await world.get(TOPIC, "t"))["spec"]
    assert spec["config"] == {"retention.ms": "90000", "segment.ms": "70000"}


@pytest.mark.full
async def test_client_cannot_enable_tiering_during_a_disablement(world: ClusterWorld) -> None:
    operator, peer = await _started(world)
    made = create("t", settings=settings(remote_storage_enable="true"))
    assert await peer.change_topics(operator.control, made) == [(0, "")]
    await world.status_where(
        TOPIC, "t", lambda status: (status.get("tiering") or {}).get("state") == "Enabled"
    )
    # The broker does not acknowledge, so the disablement stays pending.
    peer.acknowledge_disable = False
    off = _configure("t", remote_log_copy_disable="true")
    assert await peer.change_topics(operator.control, off) == [(0, "")]
    await world.status_where(TOPIC, "t", lambda status: status["tiering"]["state"] == "Disabling")
    # The admission rule of the CRD decides; its reason reaches the Kafka client.
    on = _configure("t", remote_storage_enable="true")
    ((code, message),) = await peer.change_topics(operator.control, on)
    assert code == DISABLEMENT_IN_PROGRESS
    assert "TIERED_STORAGE_DISABLEMENT_IN_PROGRESS" in message


async def test_internal_topic_is_placed_with_one_broker(world: ClusterWorld) -> None:
    operator, peer = await _started(world)
    config = settings(cleanup_policy="compact", min_insync_replicas="2")
    made = create("__transaction_state", 2, 3, automatic=True, settings=config)
    assert await peer.change_topics(operator.control, made) == [(0, "")]
    await world.until(lambda: ("__transaction_state", 1) in peer.rows, "the broker is notified")
    assert peer.rows["__transaction_state", 0].replicas == (1, -1, -2)
    # The group coordinator depends on compaction, so the policy cannot be changed.
    wrong = _configure("__transaction_state", cleanup_policy="delete")
    ((code, message),) = await peer.change_topics(operator.control, wrong)
    assert code == POLICY_VIOLATION
    assert "this internal topic stores the state of groups or transactions" in message


@pytest.mark.full
async def test_clients_change_no_manifest_of_a_cluster_that_refuses_it(
    world: ClusterWorld,
) -> None:
    operator, peer = await _started(world)

    async def ask(topic_change: TopicChange) -> tuple[int, str]:
        (result,) = await peer.change_topics(operator.control, topic_change)
        return result

    assert await ask(create("orders")) == (0, "")
    await world.until(lambda: ("orders", 0) in peer.rows, "the broker is notified")
    await world.patch(CLUSTER, "demo", clientChanges="Refuse")

    async def is_refused() -> bool:
        code, text = await ask(_configure("orders", segment_ms="70000"))
        return code == POLICY_VIOLATION and "change the Topic object" in text

    await world.until(is_refused, "the operator has read the Cluster")
    generation = (await world.get(TOPIC, "orders"))["metadata"]["generation"]
    for refused in (
        create("more"),
        create("automatic", automatic=True),
        change(ChangeKind.GROW, "orders", partitions=2),
        change(ChangeKind.DELETE, "orders"),
        _for_all_brokers(log_retention_ms="60000"),
    ):
        assert (await ask(refused))[0] == POLICY_VIOLATION
    (body,) = await world.api.list_all(TOPIC, world.namespace)
    # The Topic of one team may be open to its clients.
    await world.patch(TOPIC, body["metadata"]["name"], clientChanges="Allow")

    async def is_allowed() -> bool:
        return await ask(change(ChangeKind.GROW, "orders", partitions=2)) == (0, "")

    await world.until(is_allowed, "the operator has read the Topic")
    body = await world.get(TOPIC, "orders")
    assert (body["spec"]["partitions"], body["metadata"]["generation"]) == (2, generation + 2)
