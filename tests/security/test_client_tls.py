"""TLS for clients: who is let in by which certificate, what a handshake may cost, and that a new
certificate needs no restart."""

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.security.client_certificates import ClientAuthority, Leaf
from tests.security.secured_broker import Secured, secured
from tests.unit.api import api_requests as kafka
from tests.user_states import user
from tidemark.wire.connection import ConnectionClosed, KafkaConnection
from tidemark.wire.framing import encode_request
from tidemark_operator.check import listener_complaint
from tidemark_operator.resources.broker_pod import ListenerProtocol
from tidemark_operator.settings import BindAddress

LOADER = user("CN=loader\\,x,OU=Data,O=Acme", "ALLOW WRITE TOPIC orders")
ANYBODY = user("ANONYMOUS", "ALLOW WRITE TOPIC open")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Secured]:
    config = {"listener.name.secure.ssl.client.auth": "none"}
    async with secured(tmp_path, LOADER, ANYBODY, topics=("orders", "open"), **config) as made:
        yield made


def context(own: Leaf | None, trusted: str) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=trusted)
    if own is not None:
        made.load_cert_chain(own.certificate, own.key)
    return made


async def connect(
    cluster: Secured, own: Leaf | None, trusted: str | None = None
) -> KafkaConnection:
    host, _, port = cluster.address("CERTS").rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: KafkaConnection(client_id="test"),
        host,
        int(port),
        ssl=context(own, trusted or cluster.server.trusted),
    )
    return connection


async def produce(connection: KafkaConnection, topic: str) -> Any:
    request = kafka.produce(9, topic, kafka.batch(b"x"))
    answer: Any = await connection.request(request, kafka.answer_type(0, 9), 5)
    return answer.responses[0].partition_responses[0].error_code


async def test_principal_is_the_certificate_subject(cluster: Secured, tmp_path: Path) -> None:
    """As RFC 2253 writes it, a comma of a name escaped."""
    loader = cluster.authority.leaf(tmp_path / "loader", "CN=loader\\,x,OU=Data,O=Acme")
    other = cluster.authority.leaf(tmp_path / "other", "CN=loader,OU=Data,O=Acme")
    # The right name, with an escaped comma, is the principal of the User.
    connection = await connect(cluster, loader)
    assert await produce(connection, "orders") is ErrorCode.none
    await connection.close()
    # A name without the part after the comma is another principal, which has no ACL.
    connection = await connect(cluster, other)
    assert await produce(connection, "orders") is ErrorCode.topic_authorization_failed
    await connection.close()


@pytest.mark.parametrize("shown", ["nothing", "another authority's"])
async def test_client_without_a_trusted_certificate_is_rejected(
    cluster: Secured, tmp_path: Path, shown: str
) -> None:
    # A certificate with the right name proves nothing if another authority signed it.
    own = None
    if shown != "nothing":
        own = ClientAuthority().leaf(tmp_path / "forged", "CN=loader\\,x,OU=Data,O=Acme")
    with pytest.raises((OSError, ConnectionClosed)):
        await produce(await connect(cluster, own), "orders")
    await cluster.logged("listener CERTS: closed a connection")


async def test_broker_certificate_is_rejected_on_client_listeners(
    cluster: Secured, tmp_path: Path
) -> None:
    """The cluster's own authority has no say on a listener for clients."""
    # A broker's certificate is from the cluster's own authority, which client listeners do not
    # trust.
    own = Leaf(Path(str(cluster.broker.entries["tidemark.tls.directory"])))
    with pytest.raises((OSError, ConnectionClosed)):
        await produce(await connect(cluster, own), "orders")


async def test_requested_certificate_is_optional(tmp_path: Path) -> None:
    """``requested``: a client without a certificate is anonymous; a wrong certificate is
    rejected.
    """
    config = {"listener.name.certs.ssl.client.auth": "requested"}
    async with secured(tmp_path, LOADER, ANYBODY, topics=("orders", "open"), **config) as cluster:
        loader = cluster.authority.leaf(tmp_path / "loader", "CN=loader\\,x,OU=Data,O=Acme")
        forged = ClientAuthority().leaf(tmp_path / "forged", "CN=loader\\,x,OU=Data,O=Acme")
        # A valid certificate gives its name.
        connection = await connect(cluster, loader)
        assert await produce(connection, "orders") is ErrorCode.none
        await connection.close()
        # No certificate: the principal is User:ANONYMOUS, with that user's ACLs.
        connection = await connect(cluster, None)
        assert await produce(connection, "open") is ErrorCode.none
        assert await produce(connection, "orders") is ErrorCode.topic_authorization_failed
        await connection.close()
        # An invalid certificate is no missing one: the handshake fails.
        with pytest.raises((OSError, ConnectionClosed)):
            await produce(await connect(cluster, forged), "orders")


async def test_renewed_certificate_applies_to_new_connections(
    cluster: Secured, tmp_path: Path
) -> None:
    """And one that cannot be used leaves the former one in force."""
    loader = cluster.authority.leaf(tmp_path / "loader", "CN=loader\\,x,OU=Data,O=Acme")
    # A connection keeps the certificate that it was opened with.
    before = await connect(cluster, loader)
    first = _serial(before)
    renewed = cluster.authority.leaf(tmp_path / "renewed", "CN=broker")
    shutil.copy(renewed.key, cluster.server.key)  # half of it: key and certificate do not fit
    # The key was replaced first, as with a Secret that is updated file by file. The listener keeps
    # the old pair.
    half = await connect(cluster, loader)
    assert _serial(half) == first
    shutil.copy(renewed.certificate, cluster.server.certificate)
    after = await connect(cluster, loader)
    assert _serial(after) != first
    # Renewal does not interrupt any connection.
    for connection in (before, half, after):
        assert await produce(connection, "orders") is ErrorCode.none
        await connection.close()


def _serial(connection: KafkaConnection) -> str:
    assert connection._transport is not None
    return str(connection._transport.get_extra_info("peercert")["serialNumber"])


async def test_removed_authority_is_rejected(cluster: Secured, tmp_path: Path) -> None:
    loader = cluster.authority.leaf(tmp_path / "loader", "CN=loader\\,x,OU=Data,O=Acme")
    trusted = cluster.server.trusted
    other = ClientAuthority("other").leaf(tmp_path / "other", "CN=x")
    shutil.copy(trusted, tmp_path / "trusted.crt")
    # The listener now trusts another authority. Only its own trust has changed, so the client still
    # accepts the listener.
    shutil.copy(other.trusted, trusted)
    with pytest.raises((OSError, ConnectionClosed)):
        await produce(await connect(cluster, loader, str(tmp_path / "trusted.crt")), "orders")


async def test_hanging_handshakes_do_not_block_other_clients(
    cluster: Secured, tmp_path: Path
) -> None:
    """Three hundred that never say a word: within limits, and each for five seconds at most."""
    loader = cluster.authority.leaf(tmp_path / "loader", "CN=loader\\,x,OU=Data,O=Acme")
    served = await connect(cluster, loader)
    host, _, port = cluster.address("CERTS").rpartition(":")
    # More than the limit of pending handshakes. A connection that was open before is still served.
    silent = [socket.create_connection((host, int(port))) for _ in range(300)]
    assert await produce(served, "orders") is ErrorCode.none
    # A new client gets in as soon as the first hung handshakes are closed.
    async with asyncio.timeout(20):
        while True:
            try:
                late = await connect(cluster, loader)
                break
            except OSError:
                await asyncio.sleep(0.2)
    assert await produce(late, "orders") is ErrorCode.none
    # Each is closed by the broker, and the log is throttled to a few lines.
    for item in silent:
        item.settimeout(10)
        assert not item.recv(1)
        item.close()
    assert cluster.broker.log_text().count("listener CERTS: closed a connection") <= 3
    await served.close()
    await late.close()


async def test_log_files_are_mapped_for_plaintext_listeners_only(tmp_path: Path) -> None:
    """TLS reads the bytes in the broker, which would be killed if a mapped file was cut."""
    users = (
        user("ANONYMOUS", "ALLOW WRITE TOPIC open", "ALLOW READ TOPIC open"),
        user("CN=reader", "ALLOW READ TOPIC open"),
    )
    async with secured(tmp_path, *users, topics=("open",)) as cluster:
        writer = await cluster.connect("CLEAR")
        for _ in range(14):
            request = kafka.produce(9, "open", kafka.batch(bytes(900_000)))
            await writer.request(request, kafka.answer_type(0, 9), 5)
        await writer.close()
        reader = cluster.authority.leaf(tmp_path / "reader", "CN=reader")
        tls = context(reader, cluster.server.trusted)
        responses = []
        for listener, secure in (("CLEAR", None), ("CERTS", tls)):
            host, _, port = cluster.address(listener).rpartition(":")
            stream, sender = await asyncio.open_connection(host, int(port), ssl=secure)
            request = kafka.fetch(11, "open", 0, partition_max_bytes=1 << 25)
            sender.write(encode_request(request, 1, "test"))
            # The rest is more than the buffers of both sockets, so the broker still has it.
            size = int.from_bytes(await stream.readexactly(4), "big")
            maps = Path(f"/proc/{cluster.broker.pid}/maps").read_text()
            assert (f"{0:020d}.log" in maps) is (secure is None)
            responses.append(await stream.readexactly(size))
            sender.close()
        assert len(responses[0]) > 12_000_000
        assert responses[0] == responses[1]


async def test_plaintext_on_a_tls_listener_is_rejected(cluster: Secured) -> None:
    connection = await cluster.connect("CERTS")
    with pytest.raises(ConnectionClosed):
        await produce(connection, "orders")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
async def test_tls_below_1_2_is_rejected(cluster: Secured, tmp_path: Path) -> None:
    old = context(None, cluster.server.trusted)
    old.minimum_version = ssl.TLSVersion.TLSv1_1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    host, _, port = cluster.address("SECURE").rpartition(":")
    with pytest.raises(OSError):  # noqa: PT011 - an alert, or a reset that overtakes it
        await asyncio.open_connection(host, int(port), ssl=old)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_1_2_and_1_3_are_accepted(cluster: Secured, version: ssl.TLSVersion) -> None:
    exact = context(None, cluster.server.trusted)
    exact.minimum_version = exact.maximum_version = version
    host, _, port = cluster.address("SECURE").rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=exact)
    writer.close()


LISTENERS = {
    "CLEAR": ListenerProtocol.PLAINTEXT,
    "CERTS": ListenerProtocol.SSL,
    "SECURE": ListenerProtocol.SASL_SSL,
    "OPEN": ListenerProtocol.SASL_PLAINTEXT,
}


async def test_listener_check_works_without_credentials(
    cluster: Secured,
) -> None:
    """As ``helm test`` does, which has none."""
    for name, protocol in LISTENERS.items():
        address = BindAddress.parse(cluster.address(name))
        assert not await asyncio.to_thread(listener_complaint, protocol, address, 1), name
    # A listener that speaks plaintext is reported with its address when TLS is expected.
    clear = BindAddress.parse(cluster.address("CLEAR"))
    assert str(clear) in await asyncio.to_thread(listener_complaint, ListenerProtocol.SSL, clear, 1)
