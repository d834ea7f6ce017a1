"""One Apache Kafka for all tests of a process; each has topics of its own."""

import itertools
from collections.abc import AsyncIterator

import pytest

from tidemark.kafka_client.access import Access
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark_cli.local.kafka_nodes import KafkaNodes

_numbers = itertools.count(1)


@pytest.fixture
def bootstrap(apache_kafka: KafkaNodes) -> tuple[str, ...]:
    """Where its brokers listen."""
    return tuple(apache_kafka.bootstrap.split(","))


@pytest.fixture
async def admin(bootstrap: tuple[str, ...]) -> AsyncIterator[Admin]:
    """What the engine speaks through, to look beside it."""
    async with KafkaClient(Access(bootstrap)) as client:
        admin = Admin(client)
        await admin.describe_cluster()
        yield admin


@pytest.fixture
def name() -> str:
    """Of a topic that nobody else has."""
    return f"topic-{next(_numbers)}"
