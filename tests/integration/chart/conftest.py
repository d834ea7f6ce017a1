"""An API server without Tidemark, and Helm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm import BASE_CHART, Helm
from tests.integration.chart.kubernetes import KubectlClient
from tidemark_devcluster.controlplane.launcher import ControlPlane


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubectlClient]:
    """An API server for these tests alone, because they install cluster-wide objects.

    No kubelet and no scheduler: objects are accepted, but none of them runs.
    """
    with ControlPlane.start(tmp_path_factory.mktemp("chart"), fsync=False) as running:
        yield KubectlClient(running.kubeconfig)


@pytest.fixture
def helm(kubernetes: KubectlClient, tmp_path: Path) -> Helm:
    """Helm on that API server."""
    return Helm(tmp_path / "helm", kubernetes.kubeconfig)


@pytest.fixture(scope="session")
def base(kubernetes: KubectlClient, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Install the objects that exist once in a Kubernetes cluster; a test that removes them
    restores them.
    """
    helm = Helm(tmp_path_factory.mktemp("base"), kubernetes.kubeconfig)
    helm.run("upgrade", "--install", "tidemark-base", str(BASE_CHART))
