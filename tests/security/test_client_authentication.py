"""Stock clients at every kind of listener: each gets in by its proof, and by nothing else."""

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError as AioKafkaError
from kafka.errors import KafkaError

from tests.security.secured_broker import PASSWORD, READER, WRITER, Secured, secured
from tests.security.stock_clients import CLIENTS, ClientError, Login, kafka_python
from tests.user_states import user

BY_CERTIFICATE = user("CN=loader,O=Acme", "ALLOW WRITE TOPIC orders", "ALLOW READ TOPIC orders")
BY_TOKEN = user("robot", "ALLOW ALL TOPIC orders")
BOTH = user("both", "ALLOW ALL TOPIC orders", password=PASSWORD)
#: aiokafka leaves an attempt to connect behind when it gives up, which says so when collected.
GIVES_UP = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured(tmp_path, WRITER, READER, BY_CERTIFICATE, BY_TOKEN, BOTH) as made:
        yield made


def login(cluster: Secured, mechanism: str, name: str = "both", password: str = PASSWORD) -> Login:
    return Login(
        bootstrap=cluster.address("SECURE"),
        protocol="SASL_SSL",
        mechanism=mechanism,
        name=name,
        password=password,
        token=(lambda: cluster.issuer.token("robot")) if mechanism == "OAUTHBEARER" else None,
        trusted=cluster.server.trusted,
    )


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_client_authenticates_by_sasl(cluster: Secured, client: str, mechanism: str) -> None:
    use, how = CLIENTS[client], login(cluster, mechanism)
    assert await asyncio.to_thread(use, how, "orders", b"one") == b"one"
    assert await asyncio.to_thread(use, how, "orders", None) == b"one"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_client_older_than_kafka_1_authenticates(cluster: Secured, mechanism: str) -> None:
    """SaslHandshake v0: the mechanism's messages come without Kafka's header."""
    # A client that knows the broker's version sends no ApiVersions request, and uses the old
    # handshake.
    use = functools.partial(kafka_python, version=(0, 11))
    how = login(cluster, mechanism)
    assert await asyncio.to_thread(use, how, "orders", b"one") == b"one"
    assert await asyncio.to_thread(use, how, "orders", None) == b"one"


@GIVES_UP
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_client_older_than_kafka_1_is_rejected_with_a_wrong_password(
    cluster: Secured, mechanism: str
) -> None:
    wrong = login(cluster, mechanism, password="wrong")
    with pytest.raises((ClientError, KafkaError)):
        await asyncio.to_thread(kafka_python, wrong, "orders", b"one", version=(0, 11))
    await cluster.logged(f"{mechanism}: unknown user or wrong password")
    assert cluster.written("orders") == 0


@GIVES_UP
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_wrong_password_is_rejected(cluster: Secured, client: str, mechanism: str) -> None:
    wrong = login(cluster, mechanism, password="wrong")
    # Some report the cause, some only that no broker answers.
    with pytest.raises((ClientError, KafkaError, AioKafkaError)):
        await asyncio.to_thread(CLIENTS[client], wrong, "orders", b"one")
    await cluster.logged(f"{mechanism}: unknown user or wrong password")
    assert cluster.written("orders") == 0


@GIVES_UP
@pytest.mark.parametrize("client", CLIENTS)
async def test_acls_apply_per_user(cluster: Secured, client: str) -> None:
    """One may write and not read, the other the reverse; neither touches a third topic."""
    use = CLIENTS[client]
    writer, reader = (login(cluster, "SCRAM-SHA-512", name) for name in ("writer", "reader"))
    assert await asyncio.to_thread(use, writer, "orders", b"one") == b"one"
    assert await asyncio.to_thread(use, reader, "orders", None) == b"one"
    for how, topic, value in (
        (reader, "orders", b"two"),
        (writer, "orders", None),
        (writer, "secret", b"two"),
    ):
        # Some say why, some only that time is up.
        with pytest.raises((ClientError, KafkaError, AioKafkaError, TimeoutError)):
            await asyncio.to_thread(use, how, topic, value)
    assert cluster.written("orders") == 1
    assert cluster.written("secret") == 0


@pytest.mark.parametrize("client", CLIENTS)
async def test_client_authenticates_by_certificate(
    cluster: Secured, tmp_path: Path, client: str
) -> None:
    own = cluster.authority.leaf(tmp_path / "loader", "CN=loader,O=Acme")
    how = Login(
        bootstrap=cluster.address("CERTS"),
        protocol="SSL",
        trusted=own.trusted,
        own=own,
    )
    use = CLIENTS[client]
    assert await asyncio.to_thread(use, how, "orders", b"one") == b"one"
    assert await asyncio.to_thread(use, how, "orders", None) == b"one"
