"""Protected objects that are deleted nevertheless continue to be served."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.unit.operator_shell.shell_world import NAMESPACE, UNDER_REPLICATED, ShellWorld
from tidemark.annotations import DELETION_PROTECTION
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC
from tidemark_operator.reconcile.broker_reconciler import BrokerReconciler
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.resources.names import GROUP
from tidemark_operator.term.cluster_teardown import tear_down

T = ShellWorld.key(TOPIC, "t")
ONE = ShellWorld.key(BROKER, "broker-1")
PROTECTED = {DELETION_PROTECTION: "true"}
POLICIES = Path(__file__).parents[3] / "policies"


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster(UNDER_REPLICATED)
    made.make_broker(1)
    async with made.term():
        await made.start_broker(1)
        await BrokerReconciler(made.services, made.reflector).reconcile(ONE)
        made.make_topic()
        await TopicReconciler(made.services).reconcile(T)
        yield made


async def test_protected_topic_is_served_until_the_annotation_is_removed(
    world: ShellWorld,
) -> None:
    topics = TopicReconciler(world.services)
    # The admission policy was not installed: the API server accepts the deletion.
    world.annotate(TOPIC, "t", **PROTECTED)
    world.delete(TOPIC, "t")
    world.acknowledge(1)
    await topics.reconcile(T)
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("True", "Serving")
    status, reason, message = world.condition(TOPIC, "t", "Stalled")
    assert (status, reason) == ("True", "DeletionProtected")
    assert "remove the annotation" in message
    assert world.events.reasons.count("DeletionProtected") == 1
    # The topic still follows changes of its spec.
    world.edit(TOPIC, "t", partitions=2)
    await topics.reconcile(T)
    await topics.reconcile(T)
    assert world.status(TOPIC, "t")["partitionsPlaced"] == 2
    assert not world.services.state.tombstones

    # Without the annotation, the pending deletion takes effect.
    world.annotate(TOPIC, "t")
    await topics.reconcile(T)
    assert world.services.state.tombstones


async def test_a_protected_topics_data_is_kept_by_orphan_as_the_message_says(
    world: ShellWorld,
) -> None:
    topics = TopicReconciler(world.services)
    world.annotate(TOPIC, "t", **PROTECTED)
    world.delete(TOPIC, "t")
    await topics.reconcile(T)
    assert "deletionPolicy: Orphan" in world.condition(TOPIC, "t", "Stalled")[2]
    world.edit(TOPIC, "t", deletionPolicy="Orphan")
    world.annotate(TOPIC, "t")
    await topics.reconcile(T)
    assert world.server.find(TOPIC, "t") is None
    assert len(list(world.services.state.all_rows())) == 1
    (left,) = world.status(CLUSTER, "main")["leftBehind"]
    assert left["topicName"] == "t"


async def test_a_protected_broker_keeps_its_replicas_until_the_annotation_is_removed(
    world: ShellWorld,
) -> None:
    brokers = BrokerReconciler(world.services, world.reflector)
    world.annotate(BROKER, "broker-1", **PROTECTED)
    world.delete(BROKER, "broker-1")
    await brokers.reconcile(ONE)
    assert world.condition(BROKER, "broker-1", "Stalled")[:2] == ("True", "DeletionProtected")
    assert world.condition(BROKER, "broker-1", "Ready")[0] == "True"
    assert not world.services.state.brokers[1].deleting
    world.annotate(BROKER, "broker-1")
    await brokers.reconcile(ONE)
    assert world.services.state.brokers[1].deleting


async def test_a_protected_cluster_continues_until_the_annotation_is_removed(
    world: ShellWorld,
) -> None:
    clusters, key = ClusterReconciler(world.services), world.services.cluster_key
    await clusters.reconcile(key)
    world.annotate(CLUSTER, "main", **PROTECTED)
    world.delete(CLUSTER, "main")
    await clusters.reconcile(key)
    assert world.condition(CLUSTER, "main", "Stalled")[:2] == ("True", "DeletionProtected")
    assert world.condition(CLUSTER, "main", "Ready")[0] == "True"
    # The teardown does not start either.
    assert not await tear_down(world.api, NAMESPACE, "main")  # type: ignore[arg-type]
    world.annotate(CLUSTER, "main")
    await clusters.reconcile(key)
    assert world.condition(CLUSTER, "main", "Ready")[1] == "Deleting"


async def test_protection_survives_a_takeover(world: ShellWorld) -> None:
    world.annotate(TOPIC, "t", **PROTECTED)
    world.delete(TOPIC, "t")
    async with world.term():
        await TopicReconciler(world.services).reconcile(T)
        assert world.condition(TOPIC, "t", "Stalled")[1] == "DeletionProtected"
        await ClusterReconciler(world.services).reconcile(world.services.cluster_key)
    assert world.server.find(TOPIC, "t") is not None


def test_the_policies_name_our_group_and_our_annotation() -> None:
    for path in POLICIES.glob("*.yaml"):
        for body in yaml.safe_load_all(path.read_text("utf-8")):
            assert body["metadata"]["name"].endswith(f".{GROUP}")
            for rule in body["spec"].get("validations", ()):
                assert f"annotations[?'{DELETION_PROTECTION}']" in rule["expression"]
                assert DELETION_PROTECTION in rule["message"]
