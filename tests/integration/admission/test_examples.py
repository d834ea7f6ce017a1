"""The examples are accepted unchanged."""

from pathlib import Path

import pytest

from tests.integration.admission.api_server import AdmissionApi, documents

pytestmark = pytest.mark.full

EXAMPLES = Path(__file__).parents[3] / "examples"
PATHS = sorted(set(EXAMPLES.glob("*/*.yaml")) - set(EXAMPLES.glob("*/kustomization.yaml")))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_example_applies(api: AdmissionApi, path: Path) -> None:
    for body in documents(path):
        # Another name, so that examples and tests do not collide.
        body["metadata"]["name"] += "-try"
        api.delete(api.apply(body, manager="kubectl"))
