"""Brokers in pods on the real API server, which keeps what the operator applies; who would make
pods of that is the test itself (:mod:`pods`)."""

import asyncio

import pytest

from tests.integration.operator import pods
from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld, condition_of
from tests.integration.operator.operator_process import OperatorProcess
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    CONFIG_MAP,
    DISRUPTION_BUDGET,
    SERVICE,
    STATEFUL_SET,
    TOPIC,
    VOLUME_CLAIM,
    Json,
    reference,
)
from tidemark_operator.reconcile.pods import LOOK_AGAIN_S

T = ("t", 0)
OLD, NEW = "tidemark/broker:1", "tidemark/broker:2"
_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


async def test_a_broker_has_a_pod_a_volume_and_a_name(world: ClusterWorld) -> None:
    await world.create_cluster()
    await pods.start_operator(world)
    await pods.create_broker(world, 1, rackTopologyKey="zone")
    wanted = (await pods.stateful_set(world, 1))["spec"]["template"]["spec"]
    assert wanted["securityContext"]["runAsNonRoot"] is True
    for kind, name in (
        (SERVICE, "broker-1"),
        (SERVICE, "demo-bootstrap"),
        (CONFIG_MAP, "broker-1"),
        (VOLUME_CLAIM, "data-broker-1-0"),
        (DISRUPTION_BUDGET, "demo-brokers"),
    ):
        await world.until(
            lambda kind=kind, name=name: world.there(kind, name), f"{kind.kind} {name}"
        )
    config = (await world.get(CONFIG_MAP, "broker-1"))["data"]["broker.properties"]
    assert f"controller.addresses={pods.ADDRESSES}\n" in config
    await world.condition(BROKER, "broker-1", "PodUpToDate", "False", "PodStarting")
    await pods.run(world, 1)
    await world.condition(BROKER, "broker-1", "PodUpToDate", "True", "UpToDate")


async def test_without_addresses_there_is_no_pod_and_the_broker_says_so(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    await pods.create_broker(world, 1)
    await world.condition(BROKER, "broker-1", "Stalled", "True", "PodMissing")
    assert await world.gone(STATEFUL_SET, "broker-1")
    await operator.stop()
    await pods.start_operator(world)
    await pods.stateful_set(world, 1)


async def test_existing_object_of_the_name_blocks_until_it_is_deleted(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "broker-1"},
        "spec": {"clusterIP": "None", "selector": {"a": "b"}, "publishNotReadyAddresses": False},
    }
    await world.api.apply(SERVICE, world.namespace, "broker-1", theirs, manager="somebody")
    await pods.start_operator(world)
    await pods.create_broker(world, 1)
    told = await world.condition(BROKER, "broker-1", "Stalled", "True", "PodRefused")
    assert "somebody" in told["message"]
    assert await world.gone(STATEFUL_SET, "broker-1")
    await world.delete(SERVICE, "broker-1")
    await world.annotate(BROKER, "broker-1", touched="1")
    await pods.stateful_set(world, 1)


def claim(world: ClusterWorld, **labels: str) -> Json:
    """Return the claim of broker 1 as a user has created it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data-broker-1-0",
            "namespace": world.namespace,
            "labels": {f"tidemark.dev/{name}": value for name, value in labels.items()},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "nowhere",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


async def test_a_claim_that_was_there_is_a_brokers_once_its_labels_say_so(
    world: ClusterWorld,
) -> None:
    """Such a claim was adopted silently, whatever its creator."""
    await world.create_cluster()
    await world.api.create(VOLUME_CLAIM, world.namespace, claim(world))
    await pods.start_operator(world)
    size = {"size": "1Gi", "storageClassName": "nowhere"}
    await pods.create_broker(world, 1, storage=size)
    told = await world.condition(BROKER, "broker-1", "Stalled", "True", "PodRefused")
    command = told["message"].partition("kubectl label --overwrite pvc data-broker-1-0 ")[2]
    assert await world.gone(STATEFUL_SET, "broker-1")
    labels = dict(part.split("=") for part in command.split())
    await world.api.merge_patch(
        VOLUME_CLAIM, world.namespace, "data-broker-1-0", {"metadata": {"labels": labels}}
    )
    await world.annotate(BROKER, "broker-1", touched="1")
    await pods.stateful_set(world, 1)


async def test_missing_storage_class_is_reported(world: ClusterWorld) -> None:
    """As the volume binder reports it, in an Event of the claim."""
    await world.create_cluster()
    made = await world.api.create(
        VOLUME_CLAIM, world.namespace, claim(world, cluster="demo", broker="broker-1")
    )
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "data-broker-1-0.1", "namespace": world.namespace},
        "involvedObject": reference(made),
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": 'storageclass.storage.k8s.io "nowhere" not found',
        "source": {"component": "persistentvolume-controller"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    path = f"/api/v1/namespaces/{world.namespace}/events"
    await world.api._call("POST", path, body=event)
    await pods.start_operator(world)
    size = {"size": "1Gi", "storageClassName": "nowhere"}
    await pods.create_broker(world, 1, storage=size)
    told = await world.condition(BROKER, "broker-1", "PodUpToDate", "False", "PodStarting")
    assert "StorageClass nowhere does not exist" in told["message"]


async def test_changes_by_users_to_the_bootstrap_service_are_reverted(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await pods.start_operator(world)
    await pods.create_broker(world, 1)
    await world.until(lambda: world.there(SERVICE, "demo-bootstrap"), "the Service")
    wanted = (await world.get(SERVICE, "demo-bootstrap"))["spec"]
    await operator.stop()
    edited = {"spec": {"selector": {"app": "theirs"}, "publishNotReadyAddresses": True}}
    await world.api.merge_patch(SERVICE, world.namespace, "demo-bootstrap", edited)
    await pods.start_operator(world)

    async def is_back() -> bool:
        found = (await world.get(SERVICE, "demo-bootstrap"))["spec"]
        return bool(found["selector"] == wanted["selector"])

    await world.until(is_back, "it leads to the brokers again")


async def test_a_volume_grows_where_its_class_lets_it_and_says_so_where_not(
    world: ClusterWorld,
) -> None:
    name = f"grows-{world.namespace}"
    made = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "example.test/none",
        "allowVolumeExpansion": False,
    }
    await world.api._call("POST", _CLASSES, body=made)
    await world.create_cluster()
    await pods.start_operator(world)
    small = {"size": "10Gi", "storageClassName": name}
    await pods.create_broker(world, 1, storage=small)
    await pods.stateful_set(world, 1)
    await pods.run(world, 1)
    await pods.bind(world, 1)
    await world.patch(BROKER, "broker-1", pod={"storage": {"size": "20Gi"}})
    await world.condition(BROKER, "broker-1", "Stalled", "True", "VolumeRefused")
    await world.api._call(
        "PATCH",
        f"{_CLASSES}/{name}",
        body={"allowVolumeExpansion": True},
        content_type="application/merge-patch+json",
    )
    await world.annotate(BROKER, "broker-1", touched="1")
    await world.condition(BROKER, "broker-1", "PodUpToDate", "True")
    claim = await world.get(VOLUME_CLAIM, "data-broker-1-0")
    assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert (await pods.stateful_set(world, 1))["metadata"]["generation"] == 1, "no restart for it"


# ------------------------------------------------------------------ restarts


async def _three(world: ClusterWorld, operator: OperatorProcess) -> dict[int, BrokerPeer]:
    """Brokers 1, 2 and 3 whose pods run, and a topic that is in sync on all of them."""
    for node in (1, 2, 3):
        await pods.create_broker(world, node)
    for node in (1, 2, 3):
        await pods.run(world, node)
    peers = {node: await world.start_broker(node, operator) for node in (1, 2, 3)}
    await world.create_topic("t", replicas=3, config={"min.insync.replicas": "2"})
    await world.until(lambda: all(T in peer.rows for peer in peers.values()), "placed")
    for node in (1, 2, 3):
        await world.condition(BROKER, f"broker-{node}", "PodUpToDate", "True")
    return peers


async def _replaced(world: ClusterWorld) -> set[int]:
    return {node for node in (1, 2, 3) if await pods.image(world, node) == NEW}


@pytest.mark.slow
async def test_a_changed_pod_restarts_one_broker_after_the_other_each_once_all_are_in_sync(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await pods.start_operator(world)
    peers = await _three(world, operator)
    for node in (1, 2, 3):
        await world.patch(BROKER, f"broker-{node}", pod={"image": NEW})
    done: set[int] = set()
    for turn in (1, 2, 3):

        async def another(number: int = turn) -> bool:
            return len(await _replaced(world)) == number

        await world.until(another, f"the pod of a broker is replaced, {turn} of 3")
        (node,) = await _replaced(world) - done
        done.add(node)
        for other in {1, 2, 3} - done:
            await world.status_where(
                BROKER,
                f"broker-{other}",
                lambda found, node=node: (
                    condition_of(found, "PodUpToDate")["reason"] == "RestartPending"
                    and f"being created ({node})" in condition_of(found, "PodUpToDate")["message"]
                ),
            )
        # Its old pod ends and the new one is ready, before the broker is known to be away.
        await peers[node].close()
        await pods.run(world, node)
        await asyncio.sleep(LOOK_AGAIN_S + 0.5)
        assert await _replaced(world) == done, "it is away, and no other broker restarts"
        peers[node] = await world.start_peer(peers[node].restarted(clean=True), operator)
        await world.until(lambda node=node: T in peers[node].rows, "it knows of its replica")
        row = peers[node].rows[T]
        if node not in row.isr:
            assert (await peers[row.leader].alter("t", 0, (1, 2, 3))).error_code == 0
    for node in (1, 2, 3):
        await world.condition(BROKER, f"broker-{node}", "PodUpToDate", "True")


async def test_a_pod_that_never_came_up_is_replaced_without_waiting(world: ClusterWorld) -> None:
    await world.create_cluster()
    await pods.start_operator(world)
    for node in (1, 2):
        await pods.create_broker(world, node, image="tidemark/broker:misspelt")
        await world.condition(BROKER, f"broker-{node}", "PodUpToDate", "False", "PodStarting")
    for node in (1, 2):
        await world.patch(BROKER, f"broker-{node}", pod={"image": NEW})
    for node in (1, 2):

        async def replaced(node: int = node) -> bool:
            return await pods.image(world, node) == NEW

        await world.until(replaced, f"the pod of broker {node} is replaced")


# ------------------------------------------------------------------ their number


async def _brokers(world: ClusterWorld) -> set[str]:
    return {body["metadata"]["name"] for body in await world.api.list_all(BROKER, world.namespace)}


async def _number(world: ClusterWorld, replicas: int) -> None:
    wanted = {"replicas": replicas, "racks": ["a", "b"], "template": pods.pod()}
    await world.patch(CLUSTER, "demo", brokers=wanted)


async def test_a_cluster_makes_brokers_and_removes_them_once_they_are_drained(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await pods.start_operator(world)
    await _number(world, 3)

    async def three() -> bool:
        return await _brokers(world) == {"broker-1", "broker-2", "broker-3"}

    await world.until(three, "three Brokers")
    found = [(await world.get(BROKER, f"broker-{node}"))["spec"] for node in (1, 2, 3)]
    assert [spec["rack"] for spec in found] == ["a", "b", "a"]
    for node in (1, 2, 3):
        await pods.run(world, node)
        await world.start_broker(node, operator)
    await world.create_topic("t", replicas=3)
    await world.condition(TOPIC, "t", "Ready", "True")

    await _number(world, 2)
    told = await world.condition(BROKER, "broker-3", "Draining", "True", "ReplicasCannotMove")
    assert "t-0" in told["message"]
    assert (await world.get(BROKER, "broker-3"))["spec"]["drain"] is True
    await _number(world, 3)
    await world.status_where(BROKER, "broker-3", lambda found: not condition_of(found, "Draining"))
    assert "drain" not in (await world.get(BROKER, "broker-3"))["spec"]

    await world.delete(TOPIC, "t")
    await world.until(lambda: world.gone(TOPIC, "t"), "the topic goes")
    await _number(world, 2)
    await world.until(lambda: world.gone(BROKER, "broker-3"), "the empty broker goes")
    await world.until(lambda: world.gone(STATEFUL_SET, "broker-3"), "and its pod")
    assert not await world.gone(VOLUME_CLAIM, "data-broker-3-0"), "a volume stays"
    assert await _brokers(world) == {"broker-1", "broker-2"}

    former = (await world.get(BROKER, "broker-1"))["metadata"]["uid"]
    await world.delete(BROKER, "broker-1")

    async def another() -> bool:
        """Return an object of the same name or, while that one still exists, of the next free
        name.
        """
        found = await world.api.list_all(BROKER, world.namespace)
        uids = {body["metadata"]["uid"] for body in found}
        return len(uids) == 2 and former not in uids

    await world.until(another, "a person removed one, and another one is made")


async def test_the_brokers_that_a_cluster_has_made_go_with_it(world: ClusterWorld) -> None:
    await world.create_cluster()
    await pods.start_operator(world)
    await _number(world, 2)
    await pods.stateful_set(world, 2)
    await world.delete(CLUSTER, "demo")
    await world.until(lambda: world.gone(CLUSTER, "demo"), "the Cluster goes")
    assert await _brokers(world) == set()


async def test_unreadable_object_is_reported_and_others_continue(
    world: ClusterWorld,
) -> None:
    """Affinity is passed on as it is written."""
    await world.create_cluster()
    await pods.start_operator(world)
    await pods.create_broker(world, 1, affinity={"nodeAffinity": "a text"})
    await pods.create_broker(world, 2, affinity={"noSuchField": {"a": "b"}})
    await pods.create_broker(world, 3)
    await pods.stateful_set(world, 3)
    for node in (1, 2):
        await world.condition(BROKER, f"broker-{node}", "Stalled", "True", "PodRefused")
