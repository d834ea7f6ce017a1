"""Deleted objects that other finalizers hold do not look ready."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    EXPORT,
    RECORD_DELETION,
    TOPIC,
    USER,
    Json,
    Kind,
)
from tidemark_operator.reconcile.broker_reconciler import BrokerReconciler
from tidemark_operator.reconcile.export_reconciler import ExportReconciler
from tidemark_operator.reconcile.record_deletion_reconciler import RecordDeletionReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.reconcile.user_reconciler import UserReconciler
from tidemark_operator.reconcile.workers import LastPass, Workers
from tidemark_operator.resources.names import TOPIC_FINALIZER
from tidemark_operator.term.cluster_teardown import tear_down

OTHERS = "backup.example/keep"
FOREIGN_FINALIZER: Json = {"finalizers": [OTHERS]}
CLUSTER_REF: Json = {"clusterRef": {"name": "main"}}


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster()
    async with made.term():
        yield made


async def reconcile(world: ShellWorld, kind: Kind, name: str) -> None:
    """Reconcile a few times, as a worker does."""
    services = world.services
    reconcilers = {
        TOPIC.kind: TopicReconciler(services).reconcile,
        BROKER.kind: BrokerReconciler(services, world.reflector).reconcile,
        USER.kind: UserReconciler(services).reconcile,
        EXPORT.kind: ExportReconciler(services).reconcile,
        RECORD_DELETION.kind: RecordDeletionReconciler(services).reconcile,
    }
    workers = Workers(services, reconcilers, LastPass())
    for _ in range(4):
        assert await workers._one(world.key(kind, name)) == "done"


TOPIC_SPEC: Json = {**CLUSTER_REF, "partitions": 1, "replicationFactor": 1}
SPECS: dict[str, tuple[Kind, Json]] = {
    "Topic": (TOPIC, TOPIC_SPEC),
    "orphaned Topic": (TOPIC, {**TOPIC_SPEC, "deletionPolicy": "Orphan"}),
    "Broker": (BROKER, {**CLUSTER_REF, "nodeId": 1, "workload": "External"}),
    "User": (USER, CLUSTER_REF),
    "Export": (
        EXPORT,
        {"topicRef": {"name": "t"}, "table": {"name": "a.b", "warehouse": "/l"}, "continuous": {}},
    ),
}


@pytest.mark.parametrize("case", SPECS)
async def test_a_deleted_object_that_other_finalizers_hold_is_not_ready(
    world: ShellWorld, case: str
) -> None:
    kind, spec = SPECS[case]
    world.make(kind, "x", spec, metadata=FOREIGN_FINALIZER)
    await reconcile(world, kind, "x")
    assert world.condition(kind, "x", "Ready")[1] != "Deleted"
    # The operator releases its finalizer, but the foreign one keeps the object.
    world.delete(kind, "x")
    await reconcile(world, kind, "x")
    status, reason, message = world.condition(kind, "x", "Ready")
    assert (status, reason) == ("False", "Deleted")
    assert OTHERS in message
    assert ("orphaned" in message) == (case == "orphaned Topic")
    assert world.condition(kind, "x", "Reconciling")[0] == "False"
    assert world.condition(kind, "x", "Stalled")[0] == "False"
    # Conditions of the running object, such as Draining, are removed.
    assert {item["type"] for item in world.status(kind, "x")["conditions"]} == {
        "Ready",
        "Reconciling",
        "Stalled",
    }
    # At rest, the status of the deleted object is not written again.
    world.journal.clear()
    await reconcile(world, kind, "x")
    assert not [call for call in world.journal if call.startswith("replace_status")]


async def test_an_operator_that_comes_after_the_release_reports_the_deletion() -> None:
    world = ShellWorld()
    world.make_cluster()
    world.make(TOPIC, "x", TOPIC_SPEC, metadata=FOREIGN_FINALIZER)
    async with world.term():
        await reconcile(world, TOPIC, "x")
        world.delete(TOPIC, "x")
        # The first term ends after the release and before the final status.
        await world.services.client.release(TOPIC, world.known(TOPIC, "x"), TOPIC_FINALIZER)
    assert world.condition(TOPIC, "x", "Ready")[1] != "Deleted"
    async with world.term():
        await reconcile(world, TOPIC, "x")
        assert world.condition(TOPIC, "x", "Ready")[:2] == ("False", "Deleted")


async def test_a_record_deletion_that_was_deleted_before_it_finished_has_not_succeeded(
    world: ShellWorld,
) -> None:
    spec = {"topicRef": {"name": "t"}, "partitions": [{"partition": 0, "beforeOffset": 1}]}
    world.make(RECORD_DELETION, "x", spec, metadata=FOREIGN_FINALIZER)
    # The deletion arrives before the first reconcile: no record was deleted.
    world.delete(RECORD_DELETION, "x")
    await reconcile(world, RECORD_DELETION, "x")
    assert world.condition(RECORD_DELETION, "x", "Succeeded")[:2] == ("False", "Abandoned")


async def test_objects_of_another_cluster_are_left_to_its_operator(world: ShellWorld) -> None:
    world.make(USER, "x", {"clusterRef": {"name": "other"}}, metadata=FOREIGN_FINALIZER)
    world.delete(USER, "x")
    await reconcile(world, USER, "x")
    assert world.status(USER, "x").get("conditions", []) == []


async def test_a_cluster_that_others_hold_is_not_ready() -> None:
    world = ShellWorld()
    world.make(CLUSTER, "main", {}, metadata=FOREIGN_FINALIZER)
    async with world.term():
        pass
    world.server.delete("user", CLUSTER, "main")
    for _ in range(2):
        world.journal.clear()
        assert await tear_down(world.api, NAMESPACE, "main")  # type: ignore[arg-type]
    assert world.condition(CLUSTER, "main", "Ready")[:2] == ("False", "Deleted")
    assert not [call for call in world.journal if call.startswith("replace_status")]
