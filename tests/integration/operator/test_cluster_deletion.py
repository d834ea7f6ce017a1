"""Deletions complete in every order, or report what they wait for, on an API server with the
controllers that empty namespaces."""

import pytest

from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.operator_process import OperatorProcess
from tidemark.annotations import ADOPT_CLUSTER_ID
from tidemark_operator.kube.errors import Conflict, NotFound
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC, USER

#: The namespace controller retries with growing delays while objects remain.
NAMESPACE_S = 120.0


async def furnished(world: ClusterWorld) -> OperatorProcess:
    """A Cluster with a Topic that is served by a broker."""
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await world.until(lambda: len(peer.rows) == 1, "placed")
    return operator


async def namespace_is_deleted(world: ClusterWorld) -> bool:
    try:
        await world.api._call("GET", f"/api/v1/namespaces/{world.namespace}")
    except NotFound:
        return True
    return False


async def delete_namespace(world: ClusterWorld) -> None:
    try:
        await world.api._call("DELETE", f"/api/v1/namespaces/{world.namespace}")
    except Conflict:  # it is being deleted
        return


async def all_deleted(world: ClusterWorld) -> bool:
    kinds = (CLUSTER, BROKER, TOPIC, PARTITION_SLICE)
    return not any([await world.api.list_all(kind, world.namespace) for kind in kinds])


@pytest.mark.full
@pytest.mark.parametrize("first", [CLUSTER, BROKER, TOPIC], ids=lambda kind: kind.kind)
async def test_deletion_completes_in_every_order_once_the_broker_stops(
    world: ClusterWorld, first: object
) -> None:
    await furnished(world)
    names = {CLUSTER: "demo", BROKER: "broker-1", TOPIC: "t"}
    # One kind first, then the others in any order.
    for kind in sorted(names, key=lambda name: name is not first):
        await world.delete(kind, names[kind])
    # A live broker confirms the topic's deletion, but blocks that of the Cluster.
    await world.condition(CLUSTER, "demo", "Ready", "False", "Deleting")
    await world.until(
        lambda: world.is_deleted(TOPIC, "t"), "the Topic goes while a broker confirms"
    )
    # Without its broker the last finalizers are removed.
    await world.peers[0].close()
    await world.until(lambda: all_deleted(world), "and the rest with the broker")


async def test_namespace_deletion_completes_with_a_running_broker(
    world: ClusterWorld,
) -> None:
    """The topic is deleted, then the Broker although its process runs, then the Cluster."""
    await furnished(world)
    await delete_namespace(world)
    await world.until(lambda: namespace_is_deleted(world), "the namespace is deleted", NAMESPACE_S)


@pytest.mark.long
async def test_later_operators_complete_deletions_made_without_them(
    world: ClusterWorld,
) -> None:
    operator = await furnished(world)
    # Nothing removes finalizers while no operator runs.
    await operator.kill()
    await delete_namespace(world)
    # An operator that starts now finds everything already being deleted.
    again = await world.start_operator()
    await world.condition(CLUSTER, "demo", "Ready", "False", "Deleting")
    # This one dies before the broker has stopped, so a third one has to complete it.
    await again.kill()
    await world.peers[0].close()
    await world.start_operator()
    await world.until(lambda: namespace_is_deleted(world), "the namespace is deleted", NAMESPACE_S)


@pytest.mark.full
async def test_forcibly_removed_cluster_continues_once_recreated(
    world: ClusterWorld,
) -> None:
    operator = await furnished(world)
    # The slices carry the id of the Cluster that created them.
    former = await world.cluster_id()
    rows = await world.rows()
    await operator.kill()
    await world.delete(CLUSTER, "demo")
    # Finalizers removed by hand: the Cluster disappears while its slices stay.
    await world.api.merge_patch(
        CLUSTER, world.namespace, "demo", {"metadata": {"finalizers": None}}
    )
    # The new Cluster has another id, so the slices are not its own.
    await world.create_cluster()
    await world.start_operator()
    stalled = await world.condition(CLUSTER, "demo", "Stalled", "True", "SlicesOfAnotherCluster")
    # The remedy of the message is the annotation that the test then sets.
    remedy = f"{ADOPT_CLUSTER_ID}: {former}"
    assert remedy in stalled["message"]
    name, _, value = remedy.partition(": ")
    await world.api.merge_patch(
        CLUSTER, world.namespace, "demo", {"metadata": {"annotations": {name: value}}}
    )
    assert await world.cluster_id() == former
    await world.condition(CLUSTER, "demo", "Stalled", "False")
    # Topic id and partition of each row: the placement survived.
    assert [row.split()[:1] for row in await world.rows()] == [row.split()[:1] for row in rows]
    assert former in await world.event("ClusterAdopted")


@pytest.mark.full
async def test_objects_held_by_other_finalizers_report_deleted(
    world: ClusterWorld,
) -> None:
    """This includes a broker that was ready, and the Cluster once everything else is deleted."""
    await furnished(world)
    await world.create(USER, "u")
    names = {TOPIC: "t", USER: "u", BROKER: "broker-1", CLUSTER: "demo"}
    for kind, name in names.items():
        await world.condition(kind, name, "Ready", "True")
        body = await world.api.get(kind, world.namespace, name)
        # A finalizer of another controller, such as a backup tool.
        finalizers = [*(body["metadata"].get("finalizers") or []), "backup.example/keep"]
        await world.api.merge_patch(
            kind, world.namespace, name, {"metadata": {"finalizers": finalizers}}
        )
    for kind, name in names.items():
        await world.delete(kind, name)
        if kind is BROKER:
            await world.peers[0].close()
        # The operator has removed its own finalizer, but the object still exists.
        if kind is not CLUSTER:
            ready = await world.condition(kind, name, "Ready", "False", "Deleted")
            assert "backup.example/keep" in ready["message"]
    await world.condition(CLUSTER, "demo", "Ready", "False", "Deleting")
    for kind, name in names.items():
        if kind is CLUSTER:
            await world.condition(kind, name, "Ready", "False", "Deleted")
        # The other controller releases the objects.
        await world.api.merge_patch(kind, world.namespace, name, {"metadata": {"finalizers": None}})
    await world.until(lambda: all_deleted(world), "all is deleted")
