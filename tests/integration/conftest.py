"""Real servers for all integration tests: one control plane and one MinIO for a whole session.

Both start when the first test asks for them, and end with the session or with pytest's process,
however that ends. Tests share them: each works in a namespace or a bucket of its own.
"""

from collections.abc import Iterator

import pytest

from tidemark_cli.controlplane import ControlPlane
from tidemark_cli.controlplane.minio import MinioServer


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane whose store is not synced to disk."""
    with ControlPlane.start(tmp_path_factory.mktemp("control-plane"), fsync=False) as running:
        yield running


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """A running MinIO server."""
    with MinioServer.start(tmp_path_factory.mktemp("minio")) as running:
        yield running
