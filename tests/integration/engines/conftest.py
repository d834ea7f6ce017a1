"""Both engines, for tests of what is the same on both."""

from collections.abc import Iterator

import pytest

from tests.integration.engines.driver import Engine, Engines, engines
from tidemark_cli.local.settings import KAFKA, TIDEMARK


@pytest.fixture(scope="session", name="engines")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """The requested engines; each test creates its own topics, and leaves all brokers running."""
    with engines(tmp_path_factory.mktemp) as found:
        yield found


@pytest.fixture(
    params=[pytest.param(TIDEMARK), pytest.param(KAFKA, marks=pytest.mark.java)],
    ids=[TIDEMARK, KAFKA],
)
def engine(engines: Engines, request: pytest.FixtureRequest) -> Engine:
    """One of them, and then the other."""
    return engines.get(request.param)
