"""Both engines, for tests of common behaviour."""

from collections.abc import Iterator

import pytest

from tests.integration.engines.driver import DrivenEngine, Engines, engines
from tidemark_devcluster.settings import KAFKA, TIDEMARK


@pytest.fixture(scope="session", name="engines")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Start the requested engines; tests create their own topics and leave all brokers running."""
    with engines(tmp_path_factory.mktemp) as found:
        yield found


@pytest.fixture(
    params=[pytest.param(TIDEMARK), pytest.param(KAFKA, marks=pytest.mark.java)],
    ids=[TIDEMARK, KAFKA],
)
def engine(engines: Engines, request: pytest.FixtureRequest) -> DrivenEngine:
    """Return one engine, then the other."""
    return engines.get(request.param)
