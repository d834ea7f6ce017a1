"""Admission policies that require labels: the operator's objects have them, and refused objects are
reported on the Cluster."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.operator import pods
from tests.integration.operator.cluster_world import ClusterWorld, condition_of
from tests.integration.operator.jobs import IMAGE, create_export
from tests.integration.operator.operator_process import OperatorProcess
from tests.unit.topic_changes.requests import create, settings
from tidemark.wire.topics import TopicChange
from tidemark_operator.certificates.certificates import authority_name
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    CONFIG_MAP,
    DISRUPTION_BUDGET,
    EVENT,
    JOB,
    LEASE,
    PARTITION_SLICE,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    TOPIC,
    USER,
    VOLUME_CLAIM,
    Json,
    Kind,
)

pytestmark = pytest.mark.full

MESSAGE = "every object needs the label team (ask the platform team)"
GIVEN: Json = {
    # A value that conflicts with a label of the operator itself.
    "labels": {"team": "streams", "app.kubernetes.io/managed-by": "somebody"},
    "annotations": {"example.com/cost-center": "7"},
}
#: As a broker requests it.
OFFSETS = create(
    "__consumer_offsets", 1, automatic=True, settings=settings(cleanup_policy="compact")
)
HAS_LABEL = "has(object.metadata.labels) && 'team' in object.metadata.labels"
TEMPLATES_HAVE_LABEL = (
    "!has(object.spec) || !has(object.spec.template) || !has(object.spec.template.metadata) || "
    "(has(object.spec.template.metadata.labels) && "
    "'team' in object.spec.template.metadata.labels)"
)
_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


class Policy:
    """Admission policy of one namespace, in force inside the context."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._name = world.namespace

    async def install(self, *groups: str, operations: Sequence[str]) -> None:
        """Require a label on objects of the API groups and on pod templates."""
        rule = {
            "apiGroups": list(groups),
            "apiVersions": ["*"],
            "operations": list(operations),
            "resources": ["*"],
            "scope": "Namespaced",  # an API server makes an IPAddress for each Service
        }
        # Selected by namespace, so that other tests are not affected.
        here = {"matchLabels": {"kubernetes.io/metadata.name": self._world.namespace}}
        await self._post(
            "",
            {
                "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
                "validations": [
                    {"expression": HAS_LABEL, "message": MESSAGE},
                    {"expression": TEMPLATES_HAVE_LABEL, "message": MESSAGE},
                ],
            },
        )
        await self._post("Binding", {"policyName": self._name, "validationActions": ["Deny"]})

    async def _post(self, kind: str, spec: Json) -> None:
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"ValidatingAdmissionPolicy{kind}",
            "metadata": {"name": self._name},
            "spec": spec,
        }
        path = _POLICIES.removesuffix("ies") + "ybindings" if kind else _POLICIES
        await self._world.api._call("POST", path, body=body)

    async def refuses(self, path: str, body: Json) -> bool:
        """Return whether the policy is in force, which takes a moment."""
        try:
            await self._world.api._call("POST", path, body=body, query={"dryRun": "All"})
        except KubeError as error:
            return MESSAGE in error.message
        return False

    async def remove(self) -> None:
        for path in (_POLICIES.removesuffix("ies") + "ybindings", _POLICIES):
            await self._world.api._call("DELETE", f"{path}/{self._name}")


@pytest.fixture
async def policy(world: ClusterWorld) -> AsyncIterator[Policy]:
    made = Policy(world)
    yield made
    await made.remove()


def cluster(world: ClusterWorld, **spec: Any) -> Json:
    storage = {"filesystem": {"path": str(world.tier)}}
    config = {"remote.log.storage.system.enable": "true"}
    return {
        "apiVersion": CLUSTER.api_version,
        "kind": "Cluster",
        "metadata": {"name": "demo", "labels": {"team": "streams"}},
        "spec": {"config": config, "remoteStorage": storage, **spec},
    }


async def all_objects(world: ClusterWorld) -> list[Json]:
    """Return all objects of the namespace, of every kind that the API server lists."""
    groups = (await world.api._call("GET", "/apis"))["groups"]
    paths = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    found: list[Json] = []
    for path in paths:
        for resource in (await world.api._call("GET", path))["resources"]:
            # These kinds are created by Kubernetes' own controllers.
            is_created_by_operator = resource["kind"] not in (
                "Endpoints",
                "EndpointSlice",
                "ServiceAccount",
            )
            if is_created_by_operator and resource["namespaced"] and "list" in resource["verbs"]:
                where = f"{path}/namespaces/{world.namespace}/{resource['name']}"
                items = (await world.api._call("GET", where))["items"]
                found += ({**item, "kind": resource["kind"]} for item in items)
    return found


async def test_created_objects_have_the_labels_of_the_cluster(
    world: ClusterWorld, policy: Policy
) -> None:
    # From here on the API server refuses every object without the label.
    await policy.install("*", operations=["CREATE", "UPDATE"])
    unlabelled = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    at = f"/api/v1/namespaces/{world.namespace}/configmaps"
    await world.until(lambda: policy.refuses(at, unlabelled), "the policy is in force")
    listener = {
        "name": "OUT",
        "port": 9095,
        "protocol": "PLAINTEXT",
        "external": {"type": "NodePort"},
    }
    # A Cluster that makes the operator create every kind: pods, Services, certificates.
    listeners = [{"name": "PLAINTEXT", "port": 9092, "protocol": "PLAINTEXT"}, listener]
    made = cluster(
        world,
        objectMetadata=GIVEN,
        brokers={"replicas": 1, "template": pods.pod(listeners=listeners)},
    )
    world.api.own.follow(made)  # what the test itself creates is labelled as well
    await world.api.create(CLUSTER, world.namespace, made)
    operator = OperatorProcess(
        world.kubeconfig,
        world.namespace,
        world.folder / "operator.log",
        "127.0.0.1:0",
        certificates=None,
        controller_addresses=pods.ADDRESSES,
        export_image=IMAGE,
    )
    world.operators.append(operator)
    await operator.start()
    # Peers need the authority, which is in a Secret here.
    name = authority_name("demo")
    await pods.mount(world, name, world.certificates / name)
    peer = await world.start_broker(9, operator)
    # Topics created by clients are objects as well.
    changes = [create("plain"), OFFSETS]
    assert [code for code, _ in await peer.change_topics(operator.control, *changes)] == [0, 0]
    await world.create(USER, "u")
    await world.create_topic("t", replicas=1)
    await world.condition(TOPIC, "t", "Ready", "True")
    await create_export(world)
    # Wait for the last objects of each kind before looking at all of them.
    expected: tuple[tuple[Kind, str], ...] = (
        (JOB, "x-1"),
        (SECRET, "u"),
        (SERVICE, "demo-bootstrap"),
        (SERVICE, "demo-out-bootstrap"),
        (DISRUPTION_BUDGET, "demo-brokers"),
        (TOPIC, "plain"),
    )
    for kind, object_name in expected:
        await world.until(
            lambda kind=kind, name=object_name: world.exists(kind, name),
            f"{kind.kind} {object_name}",
        )
    brokers = await world.api.list_all(BROKER, world.namespace)
    (pod_broker,) = [broker["metadata"]["name"] for broker in brokers if broker["spec"].get("pod")]
    await world.until(lambda: world.exists(STATEFUL_SET, pod_broker), "its StatefulSet")
    await world.until(lambda: world.exists(SERVICE, f"{pod_broker}-out"), "its way in")
    found = await all_objects(world)
    kinds = {item["kind"] for item in found}
    of_operator = {
        BROKER, CONFIG_MAP, DISRUPTION_BUDGET, EVENT, JOB, LEASE, PARTITION_SLICE, SECRET, SERVICE,
        STATEFUL_SET, TOPIC, VOLUME_CLAIM,
    }  # fmt: skip
    # The test would prove nothing about a kind that was never created.
    assert {kind.kind for kind in of_operator} <= kinds, "each kind that the operator creates"
    for item in found:
        meta = item["metadata"]
        assert meta["labels"]["team"] == "streams", (item["kind"], meta["name"])
        assert meta["annotations"]["example.com/cost-center"] == "7", (item["kind"], meta["name"])
        template = item.get("spec", {}).get("template")
        if template:
            assert template["metadata"]["labels"]["team"] == "streams", item["kind"]
    (stateful_set,) = [item for item in found if item["kind"] == "StatefulSet"]
    labels = stateful_set["metadata"]["labels"]
    # The operator's own labels win over those of the Cluster.
    assert labels["app.kubernetes.io/managed-by"] == "tidemark-operator", "its own go before"
    assert not condition_of((await world.get(CLUSTER, "demo"))["status"], "ObjectsAccepted")


async def test_refused_objects_are_reported_to_clients_and_on_the_cluster(
    world: ClusterWorld, policy: Policy
) -> None:
    await world.api.create(CLUSTER, world.namespace, cluster(world))
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    # Only Topics are refused, and the Cluster has no objectMetadata yet.
    await policy.install(TOPIC.group, operations=["CREATE"])
    body = {
        "apiVersion": TOPIC.api_version,
        "kind": "Topic",
        "metadata": {"name": "x"},
        "spec": {"clusterRef": {"name": "demo"}, "partitions": 1, "replicationFactor": 1},
    }
    at = TOPIC.path(world.namespace)
    await world.until(lambda: policy.refuses(at, body), "the policy is in force")

    async def ask(change: TopicChange, **fields: Any) -> tuple[int, str]:
        (refusal,) = await peer.change_topics(operator.control, change, **fields)
        return refusal

    orders = create("orders")
    # A validation reports the refusal, but does not change the Cluster.
    code, message = await ask(orders, validate_only=True)
    assert (code, MESSAGE in message) == (int(ErrorCode.policy_violation), True)
    assert not condition_of((await world.get(CLUSTER, "demo"))["status"], "ObjectsAccepted")
    # A refused creation does, with the names of all topics.
    for change in (orders, OFFSETS):
        code, message = await ask(change)
        assert (code, MESSAGE in message) == (int(ErrorCode.policy_violation), True)

    def names_all(status: Json) -> bool:
        refusal = condition_of(status, "ObjectsAccepted").get("message", "")
        return "Topic orders" in refusal and "Topic __consumer_offsets" in refusal

    status = await world.status_where(CLUSTER, "demo", names_all)
    refusal = condition_of(status, "ObjectsAccepted")
    assert (refusal["status"], refusal["reason"]) == ("False", "CreationRefused")
    assert MESSAGE in refusal["message"]
    assert "spec.objectMetadata" in refusal["message"]
    assert MESSAGE in await world.event("CreationRefused")
    # With the label added the same requests succeed, and the condition is removed.
    merged = {"metadata": {"labels": GIVEN["labels"]}, "spec": {"objectMetadata": GIVEN}}
    await world.api.merge_patch(CLUSTER, world.namespace, "demo", merged)
    await world.status_where(
        CLUSTER, "demo", lambda status: not condition_of(status, "ObjectsAccepted")
    )
    assert [await ask(change) for change in (orders, OFFSETS)] == [(0, ""), (0, "")]
