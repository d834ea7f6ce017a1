"""The CRDs of this checkout on the real API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.admission.api_server import AdmissionApi, documents

CRDS = Path(__file__).parents[3] / "crds"


class RunningControlPlane(Protocol):
    """Attributes of the control plane's fixture that these tests need."""

    @property
    def kubeconfig(self) -> Path:
        """The file that leads to the API server."""


@pytest.fixture(scope="session")
def api(control_plane: RunningControlPlane) -> Iterator[AdmissionApi]:
    """A client of an API server that serves our kinds."""
    api = AdmissionApi(control_plane.kubeconfig)
    for path in sorted(CRDS.glob("*.yaml")):
        for definition in documents(path):
            api.install(definition)
    yield api
    api.close()
