"""One cluster for all conformance tests; each makes its own topics."""

import gc
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kcat import Kcat, ensure_kcat
from local_cluster import Cluster, run_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with run_cluster(tmp_path_factory.mktemp("conformance")) as running:
        yield running


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """kafka-python leaves sockets to the garbage collector when a broker dies: collect them before
    the next test begins, whoever's that is, so that they are never taken for a leak of its own.

    As the outermost wrapper: the log records that pytest keeps until then hold on to them.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def kcat() -> Kcat:
    return ensure_kcat()
