"""A namespace of its own for every test, on the real API server with this checkout's CRDs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
import yaml

from tests.integration.operator.cluster_world import ClusterWorld
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import Json, Kind

CRDS = Path(__file__).parents[3] / "crds"


class OperatorControlPlane(Protocol):
    """The attributes of the control plane fixture that these tests need."""

    @property
    def kubeconfig(self) -> Path:
        """Return the path of the kubeconfig of the API server."""


@pytest.fixture(scope="session")
def kubeconfig(control_plane: OperatorControlPlane) -> Path:
    """Return the kubeconfig of an API server that serves the project's kinds."""
    asyncio.run(install_crds(control_plane.kubeconfig))
    return control_plane.kubeconfig


async def install_crds(kubeconfig: Path) -> None:
    """Apply the CRDs and wait until each kind is served and can be written."""
    async with await KubeApi.open(KubernetesAccess(kubeconfig)) as api:
        for path in sorted(CRDS.glob("*.yaml")):
            definition = yaml.safe_load(path.read_text("utf-8"))
            await apply_crd(api, definition)


async def apply_crd(api: KubeApi, definition: Json) -> None:
    """Server-side apply of one definition."""
    name = definition["metadata"]["name"]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    await api._call(
        "PATCH",
        path,
        query={"fieldManager": "tidemark-test", "force": "true"},
        body=definition,
        content_type="application/apply-patch+yaml",
    )
    names = definition["spec"]["names"]
    kind = Kind("tidemark.dev", "v1alpha1", names["plural"], names["kind"])
    async with asyncio.timeout(30):
        # A definition is accepted before its kind is served, so lists fail for a moment.
        while True:
            try:
                await api.list_all(kind, "default")
                return
            except KubeError:
                await asyncio.sleep(0.05)


@pytest.fixture
async def world(kubeconfig: Path, tmp_path: Path) -> AsyncIterator[ClusterWorld]:
    """Return a cluster in a namespace of its own."""
    cluster_world = await ClusterWorld.open(kubeconfig, tmp_path)
    yield cluster_world
    await cluster_world.close()
