"""The CRDs of this checkout on the real API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.admission.api_server import AdmissionApi, documents

CRDS = Path(__file__).parents[3] / "crds"


class AdmissionControlPlane(Protocol):
    """The attributes of the control plane fixture that these tests need."""

    @property
    def kubeconfig(self) -> Path:
        """Return the path of the kubeconfig of the API server."""


@pytest.fixture(scope="session")
def api(control_plane: AdmissionControlPlane) -> Iterator[AdmissionApi]:
    """Return a client of an API server that serves the project's kinds."""
    # Once per session: an API server takes a moment to serve each definition.
    api = AdmissionApi(control_plane.kubeconfig)
    for path in sorted(CRDS.glob("*.yaml")):
        for definition in documents(path):
            api.install(definition)
    yield api
    api.close()
