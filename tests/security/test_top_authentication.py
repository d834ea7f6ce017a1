"""``tidemark top`` reads brokers' offsets from listeners with TLS and SASL."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.security.secured_broker import NODE, PASSWORD, WRITER, Secured, secured
from tests.user_states import user
from tidemark_cli.kafka_access import access_of, properties
from tidemark_cli.top.broker_offsets import BrokerOffsets, PartitionQuery, query_offsets
from tidemark_operator.controller.state.model import PartitionRow

LOOKER = user("looker", "ALLOW DESCRIBE TOPIC orders", password=PASSWORD)
BY_CERTIFICATE = user("CN=looker", "ALLOW DESCRIBE TOPIC orders")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured(tmp_path, WRITER, LOOKER, BY_CERTIFICATE) as made:
        yield made


async def asked(cluster: Secured, listener: str, *lines: str) -> BrokerOffsets:
    """Return the answer of a listener, with these lines in the file."""
    # A topic without records: its end offset is 0.
    row = PartitionRow(
        topic_id=uuid.uuid4(), partition=0, leader=NODE, isr=(NODE,), replicas=(NODE,)
    )
    host, _, port = cluster.address(listener).rpartition(":")
    access = access_of(properties("\n".join(lines)))
    where = {NODE: (host, int(port))}
    return await asyncio.to_thread(query_offsets, [PartitionQuery("orders", row)], where, access)


def sasl(protocol: str, mechanism: str, password: str = PASSWORD) -> list[str]:
    return [
        f"security.protocol={protocol}",
        f"sasl.mechanism={mechanism}",
        "sasl.username=looker",
        f"sasl.password={password}",
    ]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_top_authenticates_by_password(cluster: Secured, mechanism: str) -> None:
    trusted = f"ssl.ca.location={cluster.server.trusted}"
    for listener, lines in (
        ("SECURE", [*sasl("SASL_SSL", mechanism), trusted]),
        ("OPEN", sasl("SASL_PLAINTEXT", mechanism)),
    ):
        found = await asked(cluster, listener, *lines)
        assert found.problems == {}
        assert found.offsets[("orders", 0)].end == 0


async def test_top_authenticates_by_certificate(cluster: Secured) -> None:
    leaf = cluster.authority.leaf(cluster.folder / "looker", "CN=looker")
    found = await asked(
        cluster,
        "CERTS",
        "security.protocol=SSL",
        f"ssl.ca.location={cluster.server.trusted}",
        f"ssl.certificate.location={leaf.folder / 'tls.crt'}",
        f"ssl.key.location={leaf.folder / 'tls.key'}",
    )
    assert found.problems == {}
    assert found.offsets[("orders", 0)].end == 0


async def test_rejected_user_receives_the_reason(cluster: Secured) -> None:
    # A wrong password, no configuration at all, and one for another protocol.
    for lines, said in (
        (sasl("SASL_PLAINTEXT", "SCRAM-SHA-256", "wrong"), "user name or password"),
        ([], "--client-config"),
        (["security.protocol=SSL"], "--client-config"),
    ):
        found = await asked(cluster, "OPEN", *lines)
        (problem,) = found.problems.values()
        assert said in problem
        assert found.offsets == {}
