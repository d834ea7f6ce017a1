"""Brokers in pods on the real API server, which stores what the operator applies. The test itself
acts as the controllers that would create pods (:mod:`pods`)."""

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


async def test_broker_has_a_pod_a_volume_and_services(world: ClusterWorld) -> None:
    await world.create_cluster()
    await pods.start_operator(world)
    await pods.create_broker(world, 1, rackTopologyKey="zone")
    desired = (await pods.stateful_set(world, 1))["spec"]["template"]["spec"]
    assert desired["securityContext"]["runAsNonRoot"] is True
    for kind, name in (
        (SERVICE, "broker-1"),
        (SERVICE, "demo-bootstrap"),
        (CONFIG_MAP, "broker-1"),
        (VOLUME_CLAIM, "data-broker-1-0"),
        (DISRUPTION_BUDGET, "demo-brokers"),
    ):
        # All objects of a broker, and those that the brokers share.
        await world.until(
            lambda kind=kind, name=name: world.exists(kind, name), f"{kind.kind} {name}"
        )
    config = (await world.get(CONFIG_MAP, "broker-1"))["data"]["broker.properties"]
    assert f"controller.addresses={pods.ADDRESSES}\n" in config
    # Up to date only once the StatefulSet's controller has reported the pod.
    await world.condition(BROKER, "broker-1", "PodUpToDate", "False", "PodStarting")
    await pods.run(world, 1)
    await world.condition(BROKER, "broker-1", "PodUpToDate", "True", "UpToDate")


@pytest.mark.full
async def test_missing_controller_addresses_are_reported(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    await pods.create_broker(world, 1)
    # Brokers in pods need an address of the operator, which is an option of it.
    await world.condition(BROKER, "broker-1", "Stalled", "True", "PodMissing")
    assert await world.is_deleted(STATEFUL_SET, "broker-1")
    await operator.stop()
    # With the option the same Broker gets its pod.
    await pods.start_operator(world)
    await pods.stateful_set(world, 1)


@pytest.mark.full
async def test_existing_object_of_the_name_blocks_until_it_is_deleted(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    foreign_service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "broker-1", "namespace": world.namespace},
        "spec": {"clusterIP": "None", "selector": {"a": "b"}, "publishNotReadyAddresses": False},
    }
    # Another field manager owns the Service of that name.
    await world.api.apply(SERVICE, foreign_service, manager="somebody")
    await pods.start_operator(world)
    await pods.create_broker(world, 1)
    condition = await world.condition(BROKER, "broker-1", "Stalled", "True", "PodRefused")
    assert "somebody" in condition["message"]
    assert await world.is_deleted(STATEFUL_SET, "broker-1")
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


@pytest.mark.full
async def test_existing_claim_is_adopted_once_it_is_labelled(
    world: ClusterWorld,
) -> None:
    """Claims without the Cluster's labels are not adopted."""
    await world.create_cluster()
    await world.api.create(VOLUME_CLAIM, world.namespace, claim(world))
    await pods.start_operator(world)
    size = {"size": "1Gi", "storageClassName": "nowhere"}
    await pods.create_broker(world, 1, storage=size)
    condition = await world.condition(BROKER, "broker-1", "Stalled", "True", "PodRefused")
    # The message has the command; its labels are taken from there.
    command = condition["message"].partition("kubectl label --overwrite pvc data-broker-1-0 ")[2]
    assert await world.is_deleted(STATEFUL_SET, "broker-1")
    labels = dict(part.split("=") for part in command.split())
    await world.api.merge_patch(
        VOLUME_CLAIM, world.namespace, "data-broker-1-0", {"metadata": {"labels": labels}}
    )
    await world.annotate(BROKER, "broker-1", touched="1")
    await pods.stateful_set(world, 1)


@pytest.mark.full
async def test_missing_storage_class_is_reported(world: ClusterWorld) -> None:
    """The volume binder reports a missing class in an Event of the claim."""
    await world.create_cluster()
    made = await world.api.create(
        VOLUME_CLAIM, world.namespace, claim(world, cluster="demo", broker="broker-1")
    )
    # What the persistent volume controller writes for an unknown class.
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
    # The condition repeats the cause from the Event.
    condition = await world.condition(BROKER, "broker-1", "PodUpToDate", "False", "PodStarting")
    assert "StorageClass nowhere does not exist" in condition["message"]


@pytest.mark.full
async def test_changes_by_users_to_the_bootstrap_service_are_reverted(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await pods.start_operator(world)
    await pods.create_broker(world, 1)
    await world.until(lambda: world.exists(SERVICE, "demo-bootstrap"), "the Service")
    desired = (await world.get(SERVICE, "demo-bootstrap"))["spec"]
    await operator.stop()
    # A user edits the Service while no operator runs.
    edited = {"spec": {"selector": {"app": "theirs"}, "publishNotReadyAddresses": True}}
    await world.api.merge_patch(SERVICE, world.namespace, "demo-bootstrap", edited)
    await pods.start_operator(world)

    async def is_back() -> bool:
        found = (await world.get(SERVICE, "demo-bootstrap"))["spec"]
        return bool(found["selector"] == desired["selector"])

    await world.until(is_back, "it leads to the brokers again")


@pytest.mark.full
async def test_volume_grows_only_if_its_class_allows_expansion(
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
    # The class does not allow expansion, so the larger size is refused.
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
    # A growing volume is not a new pod template.
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


@pytest.mark.full
@pytest.mark.slow
async def test_rolling_restart_waits_until_all_replicas_are_in_sync(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await pods.start_operator(world)
    peers = await _three(world, operator)
    # All three Brokers change at once.
    for node in (1, 2, 3):
        await world.patch(BROKER, f"broker-{node}", pod={"image": NEW})
    done: set[int] = set()
    for turn in (1, 2, 3):

        async def another(number: int = turn) -> bool:
            return len(await _replaced(world)) == number

        # Exactly one template is replaced in each turn.
        await world.until(another, f"the pod of a broker is replaced, {turn} of 3")
        (node,) = await _replaced(world) - done
        done.add(node)
        # The others wait, and name the broker that restarts.
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
        # Long enough for the operator's next check, which must not restart another broker.
        await asyncio.sleep(LOOK_AGAIN_S + 0.5)
        assert await _replaced(world) == done, "it is away, and no other broker restarts"
        peers[node] = await world.start_peer(peers[node].restarted(clean=True), operator)
        await world.until(lambda node=node: T in peers[node].rows, "it knows of its replica")
        row = peers[node].rows[T]
        # The leader adds the restarted broker to the ISR; only then the next one may restart.
        if node not in row.isr:
            assert (await peers[row.leader].alter("t", 0, (1, 2, 3))).error_code == 0
    for node in (1, 2, 3):
        await world.condition(BROKER, f"broker-{node}", "PodUpToDate", "True")


@pytest.mark.full
async def test_pod_that_never_became_ready_is_replaced_at_once(world: ClusterWorld) -> None:
    await world.create_cluster()
    await pods.start_operator(world)
    # Neither pod ever became ready, because of a misspelt image.
    for node in (1, 2):
        await pods.create_broker(world, node, image="tidemark/broker:misspelt")
        await world.condition(BROKER, f"broker-{node}", "PodUpToDate", "False", "PodStarting")
    for node in (1, 2):
        await world.patch(BROKER, f"broker-{node}", pod={"image": NEW})
    # Waiting for a healthy pod would block the correction forever.
    for node in (1, 2):

        async def replaced(node: int = node) -> bool:
            return await pods.image(world, node) == NEW

        await world.until(replaced, f"the pod of broker {node} is replaced")


# ------------------------------------------------------------------ their number


async def _brokers(world: ClusterWorld) -> set[str]:
    return {body["metadata"]["name"] for body in await world.api.list_all(BROKER, world.namespace)}


async def _number(world: ClusterWorld, replicas: int) -> None:
    desired = {"replicas": replicas, "racks": ["a", "b"], "template": pods.pod()}
    await world.patch(CLUSTER, "demo", brokers=desired)


@pytest.mark.full
async def test_cluster_creates_brokers_and_drains_them_before_removal(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await pods.start_operator(world)
    await _number(world, 3)

    async def three() -> bool:
        return await _brokers(world) == {"broker-1", "broker-2", "broker-3"}

    await world.until(three, "three Brokers")
    found = [(await world.get(BROKER, f"broker-{node}"))["spec"] for node in (1, 2, 3)]
    # Racks are assigned round-robin.
    assert [spec["rack"] for spec in found] == ["a", "b", "a"]
    for node in (1, 2, 3):
        await pods.run(world, node)
        await world.start_broker(node, operator)
    await world.create_topic("t", replicas=3)
    await world.condition(TOPIC, "t", "Ready", "True")

    # Three replicas on three brokers: the third broker cannot be drained.
    await _number(world, 2)
    condition = await world.condition(BROKER, "broker-3", "Draining", "True", "ReplicasCannotMove")
    assert "t-0" in condition["message"]
    assert (await world.get(BROKER, "broker-3"))["spec"]["drain"] is True
    # Raising the number again cancels the removal.
    await _number(world, 3)
    await world.status_where(BROKER, "broker-3", lambda found: not condition_of(found, "Draining"))
    assert "drain" not in (await world.get(BROKER, "broker-3"))["spec"]

    await world.delete(TOPIC, "t")
    await world.until(lambda: world.is_deleted(TOPIC, "t"), "the topic goes")
    await _number(world, 2)
    await world.until(lambda: world.is_deleted(BROKER, "broker-3"), "the empty broker goes")
    await world.until(lambda: world.is_deleted(STATEFUL_SET, "broker-3"), "and its pod")
    # Volumes are never deleted automatically, because they have data.
    assert not await world.is_deleted(VOLUME_CLAIM, "data-broker-3-0"), "a volume stays"
    assert await _brokers(world) == {"broker-1", "broker-2"}

    former = (await world.get(BROKER, "broker-1"))["metadata"]["uid"]
    # A Broker deleted by a user is replaced to keep the number.
    await world.delete(BROKER, "broker-1")

    async def another() -> bool:
        """Return an object of the same name or, while that one still exists, of the next free
        name.
        """
        found = await world.api.list_all(BROKER, world.namespace)
        uids = {body["metadata"]["uid"] for body in found}
        return len(uids) == 2 and former not in uids

    await world.until(another, "a person removed one, and another one is made")


@pytest.mark.full
async def test_brokers_created_by_a_cluster_are_deleted_with_it(world: ClusterWorld) -> None:
    await world.create_cluster()
    await pods.start_operator(world)
    await _number(world, 2)
    await pods.stateful_set(world, 2)
    await world.delete(CLUSTER, "demo")
    await world.until(lambda: world.is_deleted(CLUSTER, "demo"), "the Cluster goes")
    assert await _brokers(world) == set()


@pytest.mark.full
async def test_unreadable_object_is_reported_and_others_continue(
    world: ClusterWorld,
) -> None:
    """The API server validates the affinity, which is passed on unchanged."""
    await world.create_cluster()
    await pods.start_operator(world)
    await pods.create_broker(world, 1, affinity={"nodeAffinity": "a text"})
    await pods.create_broker(world, 2, affinity={"noSuchField": {"a": "b"}})
    await pods.create_broker(world, 3)
    # The unreadable objects do not stop the third broker.
    await pods.stateful_set(world, 3)
    for node in (1, 2):
        await world.condition(BROKER, f"broker-{node}", "Stalled", "True", "PodRefused")
