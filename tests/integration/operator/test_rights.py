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

from tests.helm import BASE_CHART, CHART, Helm, of_kind
from tests.integration.operator import jobs
from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.operator_process import OperatorProcess
from tests.integration.operator.pods import ADDRESSES
from tests.integration.operator.recorder import Recorder, Right, write_kubeconfig
from tests.unit.pods.pod_values import POD
from tests.unit.topic_changes.requests import change, create
from tidemark.wire.topics import ChangeKind
from tidemark_operator.certificates.certificate_folders import write_files
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
        with contextlib.suppress(Conflict):  # of the cluster, and so of all tests
            await world.api._call("POST", f"{_RBAC}/{body['kind'].lower()}s", body=body)
    for kind, path in (
        ("ServiceAccount", f"/api/v1{home}/serviceaccounts"),
        ("Role", f"{_RBAC}{home}/roles"),
        ("RoleBinding", f"{_RBAC}{home}/rolebindings"),
    ):
        for body in of_kind(objects, kind):
            await world.api._call("POST", path, body=body)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1{home}/serviceaccounts/{name}/token"
    return str((await world.api._call("POST", path, body=asked))["status"]["token"])


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
    """The first write of each kind meets an object that another client has just changed: a
    conflict.
    """

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._done: set[str] = set()

    async def __call__(self, right: Right, path: str) -> None:
        resource, _, status = right.resource.partition("/")
        if right.verb != "update" or not (status or resource == PARTITION_SLICE.plural):
            return
        if resource not in self._done:
            self._done.add(resource)
            await self._world.api._call(
                "PATCH",
                path.removesuffix("/status"),
                body={"metadata": {"labels": {"touched": "1"}}},
                content_type="application/merge-patch+json",
            )


async def live(world: ClusterWorld, operator: OperatorProcess) -> None:
    """All that the operator writes in a cluster's life, from the Cluster to its deletion."""
    await world.create_cluster()
    await operator.wait_ready()
    one, two = [await start_peer(world, node, operator) for node in (1, 2)]
    tiering: Any = {"enabled": True}
    await world.create_topic("t", partitions=2, tiering=tiering)
    await world.condition(TOPIC, "t", "Ready", "True")
    await world.create_deletion("d", "t", all={"beforeOffset": -1})
    await world.condition(RECORD_DELETION, "d", "Succeeded", "True")
    await world.create_deletion(
        "short", "t", partitions=[{"partition": 0, "beforeOffset": 10}], ttlAfterFinished="1s"
    )
    for enabled, state in ((False, "Disabled"), (True, "Enabled")):
        wanted = {"enabled": enabled, "disablePolicy": None if enabled else "Retain"}
        await world.patch(TOPIC, "t", tiering=wanted)
        await world.status_where(
            TOPIC, "t", lambda found, state=state: found["tiering"]["state"] == state
        )
    await world.create(USER, "alice")
    await world.condition(USER, "alice", "Ready", "True")
    await world.patch(USER, "alice", authentication={"type": "tls"})
    await world.status_where(USER, "alice", lambda found: found.get("username") == "CN=alice")
    await world.patch(USER, "alice", authentication={"type": "oauth"})
    await world.until(lambda: world.gone(SECRET, "alice"), "an unused Secret is deleted")
    assert await one.change_topics(operator.control, create("theirs")) == [(0, "")]
    deletion = change(ChangeKind.DELETE, "theirs")
    assert await one.change_topics(operator.control, deletion) == [(0, "")]
    await world.until(lambda: world.gone(TOPIC, "theirs"), "a client deletes its topic")
    await world.until(lambda: world.gone(RECORD_DELETION, "short"), "its time to live is over")
    await world.delete(RECORD_DELETION, "d")
    await live_exported(world)
    await live_in_pods(world)
    await world.delete(USER, "alice")
    await world.delete(TOPIC, "t")
    await world.until(lambda: world.gone(TOPIC, "t"), "the topic goes")
    for peer in (one, two):
        await world.delete(BROKER, f"broker-{peer.node_id}")
        await peer.close()
    await world.delete(CLUSTER, "demo")
    await world.until(lambda: world.gone(CLUSTER, "demo"), "the Cluster goes last")
    assert await world.slices() == []
    assert await world.api.list_all(EVENT, world.namespace)


async def live_exported(world: ClusterWorld) -> None:
    """An Export whose job is made, looked at, and ended."""
    await jobs.create_export(world)
    await jobs.job(world, "x-1")
    await world.condition(EXPORT, "x", "Ready", "False", "JobStarting")
    await world.patch(EXPORT, "x", suspend=True)
    await world.until(lambda: world.gone(JOB, "x-1"), "no job is left of what is suspended")
    await world.delete(EXPORT, "x")


async def live_in_pods(world: ClusterWorld) -> None:
    """Brokers that the operator makes, keeps a pod for, and removes; one is left to the Cluster's
    deletion."""
    outside = {
        "name": "OUT",
        "port": 9095,
        "protocol": "PLAINTEXT",
        "external": {"type": "NodePort"},
    }
    for replicas, listeners in ((2, [*POD["listeners"], outside]), (1, POD["listeners"])):
        template = POD | {"listeners": listeners}
        await world.patch(CLUSTER, "demo", brokers={"replicas": replicas, "template": template})
        await world.until(lambda: world.there(STATEFUL_SET, "broker-3"), "a broker in a pod")
        for kind, name in ((BROKER, "broker-4"), (SERVICE, "broker-3-out")):
            await world.until(
                lambda kind=kind, name=name, is_there=replicas == 2: _is_there(
                    world, kind, name, is_there=is_there
                ),
                f"{kind.kind} {name}, for a while",
            )
    await world.until(lambda: world.there(DISRUPTION_BUDGET, "demo-brokers"), "the budget")


async def _is_there(world: ClusterWorld, kind: Kind, name: str, *, is_there: bool) -> bool:
    return await world.there(kind, name) is is_there


async def test_the_account_can_do_what_the_operator_does_and_no_more(
    world: ClusterWorld, tmp_path: Path
) -> None:
    objects = Helm(tmp_path / "helm").template(CHART, namespace=world.namespace)
    token = await account(world, objects)
    (role,) = of_kind(objects, "Role")
    configuration = await KubernetesAccess(world.kubeconfig).configuration()
    async with Recorder(configuration, Disturbance(world)) as recorder:
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
    assert recorder.refused == set()
    unused = set(granted(role)) - recorder.used
    assert not unused, "granted, and never used"
    assert not recorder.used - set(granted(role)), "the API server lets more than the Role"
