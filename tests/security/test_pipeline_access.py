"""Spark's reader of the local tail at every kind of listener, and what it does not try again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.security.secured_broker import PASSWORD, READER, WRITER, Secured, secured
from tests.security.stock_clients import Login, kafka_python
from tidemark.kafka_client import blocking_client
from tidemark.kafka_client.access import PASSWORD_MECHANISMS, KafkaAccess
from tidemark.kafka_client.blocking_client import BlockingKafkaClient
from tidemark.kafka_client.errors import ClusterRefused
from tidemark.kafka_client.values import LATEST
from tidemark.records.decode import decode_records
from tidemark_pipeline.read.options import parse
from tidemark_pipeline.read.task_execution import read_tail

pytestmark = pytest.mark.full


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured(tmp_path, WRITER, READER) as made:
        writer = Login(
            bootstrap=made.address("OPEN"),
            protocol="SASL_PLAINTEXT",
            mechanism="PLAIN",
            name="writer",
            password=PASSWORD,
            token=None,
            trusted=made.server.trusted,
        )
        await asyncio.to_thread(kafka_python, writer, "orders", b"one")
        yield made


def access(cluster: Secured, listener: str, protocol: str, **options: str) -> KafkaAccess:
    """As a job's options have it."""
    # A user with READ on the topic, by default.
    given = {
        "bootstrap": cluster.address(listener),
        "security.protocol": protocol,
        "ssl.ca.location": str(cluster.server.trusted),
        "sasl.username": "reader",
        "sasl.password": PASSWORD,
    } | {name.replace("_", "."): value for name, value in options.items()}
    found = parse(
        {"topic": "orders", "tier": "local", "bootstrap": given.pop("bootstrap")}
        | {f"kafka.{name}": value for name, value in given.items()}
    ).access
    assert found is not None
    return found


def read(how: KafkaAccess) -> list[bytes | None]:
    """All of the topic, through one connection."""
    with BlockingKafkaClient(how) as client:
        end = client.list_offsets("orders", {0: LATEST})[0]
        fetched = list(read_tail(client, "orders", 0, 0, end))
        assert client.connections == 1
    return [record.value for item in fetched for record in decode_records(item.data)]


async def test_pipeline_reads_with_every_mechanism(cluster: Secured) -> None:
    """With every mechanism, with TLS and without."""
    for listener, protocol in (("SECURE", "SASL_SSL"), ("OPEN", "SASL_PLAINTEXT")):
        for mechanism in PASSWORD_MECHANISMS:
            how = access(cluster, listener, protocol, sasl_mechanism=mechanism)
            assert await asyncio.to_thread(read, how) == [b"one"]
            assert PASSWORD not in repr(how)


async def test_permanent_failure_is_reported_at_once(
    cluster: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong password, a missing ACL, an unknown user, a broker without a trusted certificate."""
    monkeypatch.setattr(blocking_client, "_RETRY", None)  # whose pause would be read
    for changes, message in (
        ({"sasl_password": "wrong"}, "refuses user 'reader'"),
        ({"sasl_username": "writer"}, "topic_authorization_failed"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "nobody"}, "refuses user 'nobody'"),
        ({"ssl_ca_location": ""}, "certificate is not trusted"),
    ):
        how = access(cluster, "SECURE", "SASL_SSL", **changes)
        with pytest.raises(ClusterRefused, match=message):
            await asyncio.to_thread(read, how)


async def test_returning_leader_is_retried(
    cluster: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection has ended in between, and another is opened."""
    opened = 0
    connect = BlockingKafkaClient._connect

    # Count connections: reading twice uses one, and a lost one is replaced once.
    def counted(self: BlockingKafkaClient, address: Any) -> Any:
        nonlocal opened
        opened += 1
        return connect(self, address)

    monkeypatch.setattr(BlockingKafkaClient, "_connect", counted)

    def read_twice() -> None:
        with BlockingKafkaClient(access(cluster, "OPEN", "SASL_PLAINTEXT")) as client:
            assert client.list_offsets("orders", {0: LATEST}) == {0: 1}
            assert client.list_offsets("orders", {0: LATEST}) == {0: 1}
            assert opened == 1
            # Close the socket under the client, as a restarting leader does.
            for connection in client._connections.values():
                connection._socket.shutdown(2)
            assert client.list_offsets("orders", {0: LATEST}) == {0: 1}
            assert opened == 2

    await asyncio.to_thread(read_twice)
