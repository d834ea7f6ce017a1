"""A kind that a test defines and deletes while informers and watches run."""

import asyncio

from tests.integration.operator.cluster_world import ClusterWorld
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import Kind

LATE = Kind("late.tidemark.dev", "v1", "latecomers", "Latecomer")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{LATE.plural}.{LATE.group}"},
    "spec": {
        "group": LATE.group,
        "scope": "Namespaced",
        "names": {"plural": LATE.plural, "singular": "latecomer", "kind": LATE.kind},
        "versions": [
            {
                "name": LATE.version,
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}


async def define(world: ClusterWorld) -> None:
    """Create the definition; wait while a former one is being deleted."""
    async with asyncio.timeout(30):
        while True:
            try:
                await world.api._call("POST", DEFINITIONS, body=DEFINITION)
                break
            except KubeError:
                await asyncio.sleep(0.05)


async def make(world: ClusterWorld, name: str) -> None:
    """Create an object of the kind, once the API server serves it."""
    body = {"apiVersion": f"{LATE.group}/v1", "kind": LATE.kind, "metadata": {"name": name}}
    async with asyncio.timeout(30):
        while True:
            try:
                await world.api.create(LATE, world.namespace, body)
                break
            except KubeError:
                await asyncio.sleep(0.05)


async def undefine(world: ClusterWorld) -> None:
    """Delete the definition and with it all objects of the kind."""
    await world.api._call("DELETE", f"{DEFINITIONS}/{LATE.plural}.{LATE.group}")
