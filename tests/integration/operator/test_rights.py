"""The operator under the chart's account, on an API server that enforces RBAC.

A recorder between it and the API server observes one life of everything that the operator manages:
no request is refused, and every granted right is used. So each rule of the Role is there for a
request that the API server would otherwise have refused.
"""

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helm import BASE_CHART, CHART, Helm, of_kind
from tests.integration.operator import jobs
from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.operator_process import OperatorProcess
from tests.integration.operator.pods import ADDRESSES
from tests.integration.operator.recorder import Right, RightsRecorder, write_kubeconfig
from tests.unit.pods.pod_values import POD
from tests.unit.topic_changes.requests import change, create
from tidemark.wire.topics import ChangeKind
from tidemark_operator.certificates.certificate_stores import write_files
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.errors import Conflict, NotFound
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    DISRUPTION_BUDGET,
    EVENT,
    EXPORT,
    JOB,
    PARTITION_SLICE,
    RECORD_DELETION,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    TOPIC,
    USER,
    Json,
    Kind,
)

pytestmark = pytest.mark.full

_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def granted(role: Json) -> Iterator[Right]:
    """Return the rights of a Role, one by one."""
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from (Right(group, resource, verb) for verb in rule["verbs"])


def definition_rights(folder: Path) -> list[Json]:
    """Right of every service account in the base chart, and its binding."""
    objects = Helm(folder / "helm-base").template(BASE_CHART)
    return [
        body
        for kind in ("ClusterRole", "ClusterRoleBinding")
        for body in of_kind(objects, kind)
        if body["metadata"]["name"] == "tidemark-definitions"
    ]


async def account(world: ClusterWorld, objects: list[Json]) -> str:
    """Make the chart's account and its rights; a token of it."""
    home = f"/namespaces/{world.namespace}"
    (name,) = (body["metadata"]["name"] for body in of_kind(objects, "ServiceAccount"))
    for body in definition_rights(world.folder):
        # Cluster-wide objects are shared by all tests of this API server.
        with contextlib.suppress(Conflict):  # of the cluster, and so of all tests
            await world.api._call("POST", f"{_RBAC}/{body['kind'].lower()}s", body=body)
    for kind, path in (
        ("ServiceAccount", f"/api/v1{home}/serviceaccounts"),
        ("Role", f"{_RBAC}{home}/roles"),
        ("RoleBinding", f"{_RBAC}{home}/rolebindings"),
    ):
        for body in of_kind(objects, kind):
            await world.api._call("POST", path, body=body)
    # A token as a pod's projected volume would have it.
    token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1{home}/serviceaccounts/{name}/token"
    return str((await world.api._call("POST", path, body=token_request))["status"]["token"])


async def start_peer(world: ClusterWorld, node: int, operator: OperatorProcess) -> BrokerPeer:
    """A broker whose certificate is made from what the operator keeps in Secrets."""

    async def authority() -> bool:
        try:
            body = await world.get(SECRET, "demo-ca")
        except NotFound:
            return False
        data = {name: base64.b64decode(text) for name, text in body["data"].items()}
        write_files(world.certificates / "demo-ca", data)
        return True

    await world.until(authority, "the operator has made an authority")
    return await world.start_broker(node, operator)


class Disturbance:
    """Changes each object just before the operator's first write, which then conflicts."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._done: set[str] = set()

    async def __call__(self, right: Right, path: str) -> None:
        resource, _, status = right.resource.partition("/")
        # Only conditional writes can conflict: updates of a status or a slice.
        if right.verb != "update" or not (status or resource == PARTITION_SLICE.plural):
            return
        if resource not in self._done:
            self._done.add(resource)
            # Any change gives the object a new resourceVersion.
            await self._world.api._call(
                "PATCH",
                path.removesuffix("/status"),
                body={"metadata": {"labels": {"touched": "1"}}},
                content_type="application/merge-patch+json",
            )


async def live(world: ClusterWorld, operator: OperatorProcess) -> None:
    """Let the operator write everything that occurs from a Cluster's creation to its deletion."""
    await world.create_cluster()
    await operator.wait_ready()
    one, two = [await start_peer(world, node, operator) for node in (1, 2)]
    tiering: Any = {"enabled": True}
    await world.create_topic("t", partitions=2, tiering=tiering)
    await world.condition(TOPIC, "t", "Ready", "True")
    await world.create_deletion("d", "t", all={"beforeOffset": -1})
    await world.condition(RECORD_DELETION, "d", "Succeeded", "True")
    # The second deletion expires, so that the operator deletes it itself.
    await world.create_deletion(
        "short", "t", partitions=[{"partition": 0, "beforeOffset": 10}], ttlAfterFinished="1s"
    )
    # Disabled and enabled again: both directions write the status.
    for enabled, state in ((False, "Disabled"), (True, "Enabled")):
        tiering_spec = {"enabled": enabled, "disablePolicy": None if enabled else "Retain"}
        await world.patch(TOPIC, "t", tiering=tiering_spec)
        await world.status_where(
            TOPIC, "t", lambda found, state=state: found["tiering"]["state"] == state
        )
    # Each kind of authentication has its own Secret, or none.
    await world.create(USER, "alice")
    await world.condition(USER, "alice", "Ready", "True")
    await world.patch(USER, "alice", authentication={"type": "tls"})
    await world.status_where(USER, "alice", lambda found: found.get("username") == "CN=alice")
    await world.patch(USER, "alice", authentication={"type": "oauth"})
    await world.until(lambda: world.is_deleted(SECRET, "alice"), "an unused Secret is deleted")
    # Clients create and delete topics as well.
    assert await one.change_topics(operator.control, create("theirs")) == [(0, "")]
    deletion = change(ChangeKind.DELETE, "theirs")
    assert await one.change_topics(operator.control, deletion) == [(0, "")]
    await world.until(lambda: world.is_deleted(TOPIC, "theirs"), "a client deletes its topic")
    await world.until(
        lambda: world.is_deleted(RECORD_DELETION, "short"), "its time to live is over"
    )
    await world.delete(RECORD_DELETION, "d")
    await live_exported(world)
    await live_in_pods(world)
    await world.delete(USER, "alice")
    await world.delete(TOPIC, "t")
    await world.until(lambda: world.is_deleted(TOPIC, "t"), "the topic goes")
    # The brokers are removed before the Cluster, which waits for them.
    for peer in (one, two):
        await world.delete(BROKER, f"broker-{peer.node_id}")
        await peer.close()
    await world.delete(CLUSTER, "demo")
    await world.until(lambda: world.is_deleted(CLUSTER, "demo"), "the Cluster goes last")
    assert await world.slices() == []
    assert await world.api.list_all(EVENT, world.namespace)


async def live_exported(world: ClusterWorld) -> None:
    """Create an Export with a Job, suspend it, and delete it."""
    await jobs.create_export(world)
    await jobs.job(world, "x-1")
    await world.condition(EXPORT, "x", "Ready", "False", "JobStarting")
    await world.patch(EXPORT, "x", suspend=True)
    await world.until(lambda: world.is_deleted(JOB, "x-1"), "no job is left of what is suspended")
    await world.delete(EXPORT, "x")


async def live_in_pods(world: ClusterWorld) -> None:
    """Create brokers in pods and remove one; the Cluster's deletion removes the other."""
    outside = {
        "name": "OUT",
        "port": 9095,
        "protocol": "PLAINTEXT",
        "external": {"type": "NodePort"},
    }
    # With and without an external listener, so that its Service is created and deleted.
    for replicas, listeners in ((2, [*POD["listeners"], outside]), (1, POD["listeners"])):
        template = POD | {"listeners": listeners}
        await world.patch(CLUSTER, "demo", brokers={"replicas": replicas, "template": template})
        await world.until(lambda: world.exists(STATEFUL_SET, "broker-3"), "a broker in a pod")
        for kind, name in ((BROKER, "broker-4"), (SERVICE, "broker-3-out")):
            await world.until(
                lambda kind=kind, name=name, is_there=replicas == 2: _is_there(
                    world, kind, name, is_there=is_there
                ),
                f"{kind.kind} {name}, for a while",
            )
    await world.until(lambda: world.exists(DISRUPTION_BUDGET, "demo-brokers"), "the budget")


async def _is_there(world: ClusterWorld, kind: Kind, name: str, *, is_there: bool) -> bool:
    return await world.exists(kind, name) is is_there


async def test_operator_uses_exactly_the_rights_of_its_role(
    world: ClusterWorld, tmp_path: Path
) -> None:
    objects = Helm(tmp_path / "helm").template(CHART, namespace=world.namespace)
    token = await account(world, objects)
    (role,) = of_kind(objects, "Role")
    configuration = await KubernetesAccess(world.kubeconfig).configuration()
    # Every request of the operator passes the recorder.
    async with RightsRecorder(configuration, Disturbance(world)) as recorder:
        kubeconfig = write_kubeconfig(tmp_path / "account", recorder.url, token)
        operator = OperatorProcess(
            kubeconfig,
            world.namespace,
            tmp_path / "operator.log",
            "127.0.0.1:0",
            certificates=None,
            controller_addresses=ADDRESSES,
            export_image=jobs.IMAGE,
        )
        world.operators.append(operator)
        await operator.launch()
        await live(world, operator)
        assert await operator.stop() == 0
    # Both directions: nothing was refused, and no granted right is superfluous.
    assert recorder.refused == set()
    unused = set(granted(role)) - recorder.used
    assert not unused, "granted, and never used"
    assert not recorder.used - set(granted(role)), "the API server lets more than the Role"
