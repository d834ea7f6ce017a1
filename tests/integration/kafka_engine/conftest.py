"""One Apache Kafka for all tests of a process; each has topics of its own."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.operator.conftest import install_crds
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_devcluster.kafka_nodes import KafkaNodes

_numbers = itertools.count(1)


@pytest.fixture
def bootstrap(apache_kafka: KafkaNodes) -> tuple[str, ...]:
    """Addresses of its brokers."""
    return tuple(apache_kafka.bootstrap.split(","))


@pytest.fixture
async def admin(bootstrap: tuple[str, ...]) -> AsyncIterator[Admin]:
    """The engine's own client, for checks."""
    async with KafkaClient(KafkaAccess(bootstrap)) as client:
        admin = Admin(client)
        await admin.describe_cluster()
        yield admin


@pytest.fixture
def name() -> str:
    """Return an unused topic name."""
    return f"topic-{next(_numbers)}"


@pytest.fixture(scope="session")
def kubeconfig(control_plane: ControlPlane) -> Path:
    """Return the kubeconfig of an API server that serves the project's kinds."""
    asyncio.run(install_crds(control_plane.kubeconfig))
    return control_plane.kubeconfig


@pytest.fixture
async def world(
    kubeconfig: Path, tmp_path: Path, bootstrap: tuple[str, ...]
) -> AsyncIterator[KafkaWorld]:
    """A namespace with a Cluster on the Apache Kafka that all share."""
    made = await KafkaWorld.open(kubeconfig, tmp_path)
    await made.create_kafka_cluster(",".join(bootstrap))
    yield made
    await made.close()
