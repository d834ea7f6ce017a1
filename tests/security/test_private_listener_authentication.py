"""A stranger, and a broker that wants to be another one, at the private listeners.

The attacker reaches every port. What it has: nothing; a certificate of its own making; or the real
certificate of one broker of the cluster.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import authority_of, dialer, files_of, folder_of, now
from tests.integration.broker.broker_process import BrokerProcess
from tests.integration.broker.scripted_controller import CLUSTER_ID, ScriptedController
from tidemark.tls.dialing import Dialer
from tidemark.tls.identity import TlsIdentity, WrongPeer
from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark_broker.replication.following.wire import ReplicaFetchRequest, ReplicaFetchResponse
from tidemark_operator.certificates.authority import make_authority

LEADER, FOLLOWER = 1, 2


class Victim:
    """A broker that leads, and a scripted controller that it believes."""

    def __init__(self, controller: ScriptedController, broker: BrokerProcess) -> None:
        self.controller, self.broker = controller, broker

    @property
    def replication_port(self) -> int:
        listeners = self.controller.brokers[LEADER].registration.listeners
        return next(listener.port for listener in listeners if listener.name == "REPLICATION")

    def refusals(self) -> int:
        return self.broker.log_text().count("replication listener: closed a connection")


@pytest.fixture
async def victim(tmp_path: Path) -> AsyncIterator[Victim]:
    controller = await ScriptedController().start()
    broker = await BrokerProcess(LEADER, tmp_path, [controller.port]).start()
    await controller.unfenced(LEADER)
    yield Victim(controller, broker)
    await broker.kill()
    await controller.close()


def fetch(replica_id: int) -> ReplicaFetchRequest:
    return ReplicaFetchRequest(
        replica_id=replica_id,
        broker_epoch=0,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        partitions=(),
    )


async def ask(victim: Victim, through: Dialer, request: Any) -> Any:
    connection = await KafkaConnection.connect(
        "127.0.0.1", victim.replication_port, client_id="x", dialer=through, timeout_s=10
    )
    try:
        return await connection.request(request, ReplicaFetchResponse, 5)
    finally:
        await connection.close()


async def test_broker_of_the_cluster_is_accepted(victim: Victim, tmp_path: Path) -> None:
    """Or the tests below would prove nothing."""
    me = dialer(TlsIdentity(CLUSTER_ID, FOLLOWER), TlsIdentity(CLUSTER_ID, LEADER), tmp_path / "x")
    answer = await ask(victim, me, fetch(FOLLOWER))
    assert answer.error_code != 0, "the controller knows no such broker; but it was heard"


async def test_broker_cannot_fetch_as_another(victim: Victim, tmp_path: Path) -> None:
    """Otherwise it would move the other one's fetch offset, and with it the high watermark."""
    me = dialer(TlsIdentity(CLUSTER_ID, FOLLOWER), TlsIdentity(CLUSTER_ID, LEADER), tmp_path / "x")
    with pytest.raises(ConnectionError):
        await ask(victim, me, fetch(3))
    assert "broker 2 of cluster test-cluster fetches as broker 3" in victim.broker.log_text()


@pytest.mark.parametrize(
    "who",
    [TlsIdentity("other-cluster", FOLLOWER), TlsIdentity(CLUSTER_ID)],
    ids=["another cluster's broker", "a controller"],
)
async def test_only_brokers_of_this_cluster_fetch(
    victim: Victim, tmp_path: Path, who: TlsIdentity
) -> None:
    """Even with a certificate that the cluster's own authority has signed."""
    me = Dialer(
        # Signed by the right authority, with the name of another cluster or of a controller.
        files=files_of(replace(who), tmp_path / "x", issued_by=authority_of(CLUSTER_ID)),
        expected=TlsIdentity(CLUSTER_ID, LEADER),
    )
    (tmp_path / "x" / "ca.crt").write_bytes(authority_of(CLUSTER_ID).certificate)
    with pytest.raises(OSError, match=r"ended|reset|closed"):
        await ask(victim, me, fetch(FOLLOWER))


async def test_self_made_certificate_is_rejected(victim: Victim, tmp_path: Path) -> None:
    """The names in it are right, its signature is not."""
    # An authority of the attacker's own, with the cluster's name in it.
    forged = make_authority(CLUSTER_ID, now())
    me = Dialer(
        files=files_of(TlsIdentity(CLUSTER_ID, FOLLOWER), tmp_path / "x", issued_by=forged),
        expected=TlsIdentity(CLUSTER_ID, LEADER),
    )
    with pytest.raises(OSError):  # noqa: PT011 - whichever side says so first
        await ask(victim, me, fetch(FOLLOWER))
    # The refusal is logged by the listener after the client sees its end.
    async with asyncio.timeout(5):
        while not victim.refusals():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.05)
    assert victim.refusals() == 1


async def test_impostor_of_the_leader_receives_nothing(tmp_path: Path) -> None:
    """A follower only speaks with the broker that it has dialed."""
    # The impostor has a valid certificate of broker 3, at the address where broker 1 is expected.
    listening = await asyncio.start_server(
        lambda _, writer: writer.close(),
        "127.0.0.1",
        0,
        ssl=files_of(TlsIdentity(CLUSTER_ID, 3), tmp_path / "other").contexts().server,
    )
    port = listening.sockets[0].getsockname()[1]
    me = dialer(TlsIdentity(CLUSTER_ID, FOLLOWER), TlsIdentity(CLUSTER_ID, LEADER), tmp_path / "x")
    with pytest.raises(WrongPeer, match="it is broker 3 of cluster test-cluster, not broker 1"):
        await KafkaConnection.connect("127.0.0.1", port, client_id="x", dialer=me)
    listening.close()


async def test_client_listener_rejects_replica_requests(victim: Victim) -> None:
    host, _, port = victim.broker.listener.rpartition(":")
    connection = await KafkaConnection.connect(host, int(port), client_id="x")
    with pytest.raises(ConnectionError):
        await connection.request(fetch(FOLLOWER), ReplicaFetchResponse, 5)
    await connection.close()


async def test_silent_strangers_do_not_block_brokers(victim: Victim, tmp_path: Path) -> None:
    """Two hundred that never say a word; a broker is served meanwhile."""
    silent = []
    # More connections than the limit of handshakes in progress. Some may be refused.
    for _ in range(200):
        with contextlib.suppress(OSError):
            silent.append(await asyncio.open_connection("127.0.0.1", victim.replication_port))
    me = dialer(TlsIdentity(CLUSTER_ID, FOLLOWER), TlsIdentity(CLUSTER_ID, LEADER), tmp_path / "x")
    # The broker gets its turn as soon as silent connections time out.
    async with asyncio.timeout(20):
        while True:
            try:
                await ask(victim, me, fetch(FOLLOWER))
                break
            except OSError:
                await asyncio.sleep(0.2)
    for _, writer in silent:
        writer.close()
    assert victim.refusals() <= 3


async def test_tls_below_1_3_is_rejected(victim: Victim, tmp_path: Path) -> None:
    folder = folder_of(TlsIdentity(CLUSTER_ID, FOLLOWER), tmp_path / "x")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Private listeners accept TLS 1.3 only.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.load_verify_locations(folder / "ca.crt")
    with pytest.raises(OSError):  # noqa: PT011 - an alert, or a reset that overtakes it
        await asyncio.open_connection("127.0.0.1", victim.replication_port, ssl=context)


@pytest.mark.parametrize("token", [b"", b"0" * 16])
async def test_messages_hide_session_token(token: bytes) -> None:
    """Not in a log line, nor in the message of an exception."""
    request = control.AttachRequest(broker_id=1, broker_epoch=7, session_token=token)
    assert "session_token" not in repr(request)
