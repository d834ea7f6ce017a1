"""One cluster for all conformance tests; each makes its own topics."""

import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

# The tests import their helpers as top-level modules.
sys.path.insert(0, str(Path(__file__).parent))

from kcat import Kcat, ensure_kcat
from local_cluster import RunningCluster, run_cluster

from tests.leftover_sockets import pytest_runtest_teardown

__all__ = ["pytest_runtest_teardown"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with run_cluster(tmp_path_factory.mktemp("conformance")) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport]:
    """Add what the shared cluster reports to a failure, because its folder may be removed."""
    report = yield
    running = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(running, RunningCluster):
        report.sections.append(("problems of the cluster", running.problems()))
    return report


@pytest.fixture(scope="session")
def kcat() -> Kcat:
    return ensure_kcat()
