"""Everything that is deleted goes, in whatever order, or says why it does not; on an API server
with the controllers that empty namespaces."""

import pytest

from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.operator_process import OperatorProcess
from tidemark.annotations import ADOPT_CLUSTER_ID
from tidemark_operator.kube.errors import Conflict, NotFound
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC, USER

#: Its controller looks again later and later while something is still there.
NAMESPACE_S = 120.0


async def furnished(world: ClusterWorld) -> OperatorProcess:
    """A Cluster with a Topic that is served by a broker."""
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await world.until(lambda: len(peer.rows) == 1, "placed")
    return operator


async def namespace_gone(world: ClusterWorld) -> bool:
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


async def all_gone(world: ClusterWorld) -> bool:
    kinds = (CLUSTER, BROKER, TOPIC, PARTITION_SLICE)
    return not any([await world.api.list_all(kind, world.namespace) for kind in kinds])


@pytest.mark.parametrize("first", [CLUSTER, BROKER, TOPIC], ids=lambda kind: kind.kind)
async def test_in_every_order_all_goes_once_the_broker_has_stopped(
    world: ClusterWorld, first: object
) -> None:
    await furnished(world)
    names = {CLUSTER: "demo", BROKER: "broker-1", TOPIC: "t"}
    for kind in sorted(names, key=lambda name: name is not first):
        await world.delete(kind, names[kind])
    await world.condition(CLUSTER, "demo", "Ready", "False", "Deleting")
    await world.until(lambda: world.gone(TOPIC, "t"), "the Topic goes while a broker confirms")
    await world.peers[0].close()
    await world.until(lambda: all_gone(world), "and the rest with the broker")


async def test_a_namespace_that_is_deleted_goes_with_all_that_is_in_it(
    world: ClusterWorld,
) -> None:
    """The topic goes, then the Broker, though its process runs on, then the Cluster."""
    await furnished(world)
    await delete_namespace(world)
    await world.until(lambda: namespace_gone(world), "the namespace is deleted", NAMESPACE_S)


@pytest.mark.long
async def test_operators_that_come_later_end_what_was_deleted_without_them(
    world: ClusterWorld,
) -> None:
    operator = await furnished(world)
    await operator.kill()
    await delete_namespace(world)
    again = await world.start_operator()
    await world.condition(CLUSTER, "demo", "Ready", "False", "Deleting")
    await again.kill()
    await world.peers[0].close()
    await world.start_operator()
    await world.until(lambda: namespace_gone(world), "the namespace is deleted", NAMESPACE_S)


async def test_forcibly_removed_cluster_continues_once_recreated(
    world: ClusterWorld,
) -> None:
    operator = await furnished(world)
    former = await world.cluster_id()
    rows = await world.rows()
    await operator.kill()
    await world.delete(CLUSTER, "demo")
    await world.api.merge_patch(
        CLUSTER, world.namespace, "demo", {"metadata": {"finalizers": None}}
    )
    await world.create_cluster()
    await world.start_operator()
    stalled = await world.condition(CLUSTER, "demo", "Stalled", "True", "SlicesOfAnotherCluster")
    remedy = f"{ADOPT_CLUSTER_ID}: {former}"
    assert remedy in stalled["message"]
    name, _, value = remedy.partition(": ")
    await world.api.merge_patch(
        CLUSTER, world.namespace, "demo", {"metadata": {"annotations": {name: value}}}
    )
    assert await world.cluster_id() == former
    await world.condition(CLUSTER, "demo", "Stalled", "False")
    assert [row.split()[:1] for row in await world.rows()] == [row.split()[:1] for row in rows]
    assert former in await world.event("ClusterAdopted")


async def test_deleted_objects_that_other_finalizers_hold_are_not_ready(
    world: ClusterWorld,
) -> None:
    """This includes a broker that was ready, and the Cluster once everything else is deleted."""
    await furnished(world)
    await world.create(USER, "u")
    names = {TOPIC: "t", USER: "u", BROKER: "broker-1", CLUSTER: "demo"}
    for kind, name in names.items():
        await world.condition(kind, name, "Ready", "True")
        body = await world.api.get(kind, world.namespace, name)
        held = [*(body["metadata"].get("finalizers") or []), "backup.example/keep"]
        await world.api.merge_patch(kind, world.namespace, name, {"metadata": {"finalizers": held}})
    for kind, name in names.items():
        await world.delete(kind, name)
        if kind is BROKER:
            await world.peers[0].close()
        if kind is not CLUSTER:
            ready = await world.condition(kind, name, "Ready", "False", "Deleted")
            assert "backup.example/keep" in ready["message"]
    await world.condition(CLUSTER, "demo", "Ready", "False", "Deleting")
    for kind, name in names.items():
        if kind is CLUSTER:
            await world.condition(kind, name, "Ready", "False", "Deleted")
        await world.api.merge_patch(kind, world.namespace, name, {"metadata": {"finalizers": None}})
    await world.until(lambda: all_gone(world), "all is deleted")
