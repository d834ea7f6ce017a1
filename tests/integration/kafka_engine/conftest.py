"""One Apache Kafka for all tests of a process; each has topics of its own."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.benchmarks.kafka import ApacheKafka, KafkaMissing
from tests.integration.kafka_engine.apache_kafka import start
from tidemark.kafka_client.access import Access
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Three brokers with a remote tier."""
    try:
        running = start(tmp_path_factory.mktemp("apache-kafka"))
    except KafkaMissing as error:
        pytest.skip(f"ENGINE KAFKA IS NOT TESTED HERE: {error}")
    yield running
    running.stop()


@pytest.fixture
async def admin(apache_kafka: ApacheKafka) -> AsyncIterator[Admin]:
    """What the engine speaks through, to look beside it."""
    async with KafkaClient(Access(tuple(apache_kafka.listeners))) as client:
        admin = Admin(client)
        await admin.describe_cluster()
        yield admin


@pytest.fixture
def name() -> str:
    """Of a topic that nobody else has."""
    return f"topic-{next(_numbers)}"
