"""The policies of ``policies/`` on the real API server: protected objects are not deleted.

The control plane is shared by tests: the policies are installed under other names, for this test's
namespace or for objects that carry this test's label, and removed at its end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.operator.cluster_world import ClusterWorld
from tidemark.annotations import DELETION_PROTECTION
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import Invalid, KubeError, NotFound
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC, USER, Json, Kind

POLICIES = Path(__file__).parents[3] / "policies"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_LABEL = "tidemark.dev/test"
#: As the operator reads it: in small letters or capitals.
PROTECTED = {DELETION_PROTECTION: "True"}
TIMEOUT_S = 30


def _own(body: Json, namespace: str) -> Json:
    """A policy or binding for one test only."""
    spec = dict(body["spec"])
    name = f"{namespace}.{body['metadata']['name']}"
    if "policyName" in spec:
        spec["policyName"] = f"{namespace}.{spec['policyName']}"
        # Namespaces and definitions have no namespace to select, so these policies select by label.
        homes = "homes" in name or "definitions" in name
        selector = {"matchLabels": {_LABEL if homes else "kubernetes.io/metadata.name": namespace}}
        spec["matchResources"] = {"objectSelector" if homes else "namespaceSelector": selector}
    return {**body, "metadata": {"name": name}, "spec": spec}


@contextlib.asynccontextmanager
async def _installed(world: ClusterWorld) -> AsyncIterator[None]:
    texts = [path.read_text("utf-8") for path in sorted(POLICIES.glob("*.yaml"))]
    bodies = [_own(body, world.namespace) for text in texts for body in yaml.safe_load_all(text)]
    paths = [f"{_ADMISSION}/{_PLURALS[body['kind']]}" for body in bodies]
    try:
        for path, body in zip(paths, bodies, strict=True):
            await world.api._call("POST", path, body=body)
        yield
    finally:
        for path, body in zip(paths, bodies, strict=True):
            with contextlib.suppress(NotFound):
                await world.api._call("DELETE", f"{path}/{body['metadata']['name']}")


async def until_refused(delete: Callable[[], Awaitable[Any]]) -> str:
    """Repeat a dry-run deletion until a policy refuses it; policies take effect with a delay."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await delete()
            except Invalid as error:
                return error.message
            await asyncio.sleep(0.1)


def dry_run(api: KubeApi, path: str) -> Callable[[], Awaitable[Any]]:
    return lambda: api._call("DELETE", path, query={"dryRun": "All"})


async def _protect(api: KubeApi, path: str, *, on: bool) -> None:
    change = {"metadata": {"annotations": {DELETION_PROTECTION: "true" if on else None}}}
    await api._call("PATCH", path, body=change, content_type="application/merge-patch+json")


async def test_protected_objects_are_not_deleted_before_the_annotation_is_removed(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    await world.create_topic("t")
    await world.create_topic("other")
    await world.create(BROKER, "broker-1", nodeId=1, workload="External")
    await world.create(USER, "alice", authentication={"scram": {}})
    async with _installed(world):
        named: list[tuple[Kind, str]] = [
            (TOPIC, "t"),
            (BROKER, "broker-1"),
            (CLUSTER, "demo"),
            (USER, "alice"),
        ]
        for kind, name in named:
            # Dry runs until the policy is in force, then real deletions.
            await world.annotate(kind, name, **PROTECTED)
            message = await until_refused(dry_run(world.api, kind.path(world.namespace, name)))
            assert DELETION_PROTECTION in message
            assert "Remove the annotation first" in message
        with pytest.raises(Invalid, match="Remove the annotation first"):
            await world.delete(TOPIC, "t")
        # A deletion of the whole collection must not bypass the policy.
        with pytest.raises(Invalid, match="Remove the annotation first"):
            await world.api._call("DELETE", TOPIC.path(world.namespace))  # all of them
        # Without the annotation the deletion succeeds.
        await world.annotate(TOPIC, "t", **{DELETION_PROTECTION: None})
        await world.delete(TOPIC, "t")
        assert await world.is_deleted(TOPIC, "t")


@pytest.mark.full
async def test_protected_namespace_and_definition_are_not_deleted(world: ClusterWorld) -> None:
    # A definition and a namespace of this test, so that other tests are not affected.
    group = f"{world.namespace}.test"
    definition: Json = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"things.{group}",
            "labels": {_LABEL: world.namespace},
            "annotations": PROTECTED,
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        },
    }
    home = f"/api/v1/namespaces/{world.namespace}-home"
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": f"{world.namespace}-home",
            "labels": {_LABEL: world.namespace},
            "annotations": PROTECTED,
        },
    }
    api, crd = world.api, f"{_CRDS}/things.{group}"
    await api._call("POST", "/api/v1/namespaces", body=body)
    await api._call("POST", _CRDS, body=definition)
    try:
        # Both are protected until the annotation is switched off.
        async with _installed(world):
            for path in (home, crd):
                assert DELETION_PROTECTION in await until_refused(dry_run(api, path))
                with pytest.raises(Invalid, match="Remove the annotation first"):
                    await api._call("DELETE", path)
                await _protect(api, path, on=False)
                await api._call("DELETE", path)
    finally:
        for path in (home, crd):
            with contextlib.suppress(KubeError):
                await api._call("DELETE", path)
