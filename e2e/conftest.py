"""The local clusters that tests of this folder share: each makes its own topics, and leaves all
brokers running, in sync, with a tier that answers.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.local_cluster import RunningCluster, run_cluster


@pytest.fixture(scope="package")
def local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Cluster started by ``tidemark up``."""
    with run_cluster(tmp_path_factory.mktemp("local") / "cluster") as running:
        yield running


@pytest.fixture(scope="package")
def s3_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Its tier is a MinIO."""
    with run_cluster(tmp_path_factory.mktemp("s3") / "cluster", brokers=2, tier="s3") as running:
        yield running
