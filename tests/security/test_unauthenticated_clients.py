"""Cost and knowledge that a client gets before it is authenticated; and the lifetime of its
authentication.

The attacker speaks Kafka by itself, to a listener with SASL in clear.
"""

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.broker.broker_process import BrokerProcess
from tests.integration.broker.scripted_controller import ScriptedController
from tests.security.secured_broker import ALL, PASSWORD, READER, WRITER, Secured, secured
from tests.unit.api import api_requests as kafka
from tests.user_states import user
from tidemark.wire.connection import ConnectionClosed, KafkaConnection
from tidemark.wire.framing import bare_frame, encode_request

DELAY_MS = 150
TIMEOUT_MS = 1500


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Secured]:
    # Short enough for tests, and far enough apart to tell the delay from the timeout.
    config = {
        "connection.failed.authentication.delay.ms": DELAY_MS,
        "tidemark.authentication.timeout.ms": TIMEOUT_MS,
    }
    async with secured(tmp_path, WRITER, READER, **config) as made:
        yield made


async def handshake(
    connection: KafkaConnection, mechanism: str = "PLAIN", *, version: int = 1
) -> Any:
    request = kafka.request(17, version, mechanism=mechanism)
    return await connection.request(request, kafka.answer_type(17, version), 5)


async def say(connection: KafkaConnection, message: bytes) -> Any:
    request = kafka.request(36, 2, auth_bytes=message)
    return await connection.request(request, kafka.answer_type(36, 2), 5)


async def plain(connection: KafkaConnection, name: str, password: str = PASSWORD) -> Any:
    await handshake(connection)
    return await say(connection, f"\0{name}\0{password}".encode())


async def produce(connection: KafkaConnection, topic: str = "orders") -> Any:
    request = kafka.produce(9, topic, kafka.batch(b"x"))
    answer: Any = await connection.request(request, kafka.answer_type(0, 9), 5)
    return answer.responses[0].partition_responses[0].error_code


async def ended(connection: KafkaConnection) -> bool:
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(5):
            await connection.read_frame()
    return connection.closed


async def test_authenticated_client_has_its_acls(cluster: Secured) -> None:
    """Or the tests below would prove nothing."""
    connection = await cluster.connect()
    answer = await plain(connection, "writer")
    assert answer.error_code is ErrorCode.none
    assert await produce(connection) is ErrorCode.none
    # Authenticated, but without a right on this topic.
    assert await produce(connection, "secret") is ErrorCode.topic_authorization_failed
    await connection.close()


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: (kafka.produce(9, "orders", kafka.batch(b"x")), 0, 9),
        lambda: (kafka.metadata(9, None), 3, 9),
        lambda: (kafka.request(60, 1, include_cluster_authorized_operations=False), 60, 1),
        lambda: (kafka.request(50, 0, users=None), 50, 0),
    ],
    ids=["Produce", "Metadata", "DescribeCluster", "DescribeUserScramCredentials"],
)
async def test_requests_before_authentication_disconnect(
    cluster: Secured, request_of: Callable[[], Any]
) -> None:
    """Neither at first nor in the middle of the proof, with Kafka's header (1) or without it."""
    # Without a handshake, and after SaslHandshake v0 and v1, of which v0 expects bare SASL
    # messages.
    for begun in (None, 0, 1):
        connection = await cluster.connect()
        if begun is not None:
            await handshake(connection, version=begun)
        request, key, version = request_of()
        with pytest.raises(ConnectionClosed):
            await connection.request(request, kafka.answer_type(key, version), 5)


async def test_api_versions_are_served_to_every_client(cluster: Secured) -> None:
    connection = await cluster.connect()
    request = kafka.request(18, 3, client_software_name="x", client_software_version="1")
    answer: Any = await connection.request(request, kafka.answer_type(18, 3), 5)
    assert {17, 36} <= {api.api_key for api in answer.api_keys}
    await connection.close()


async def test_unsupported_mechanism_lists_supported_ones(
    cluster: Secured,
) -> None:
    connection = await cluster.connect()
    answer = await handshake(connection, "GSSAPI")
    assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
    assert ",".join(answer.mechanisms) == ALL
    await connection.close()


WRONG = {
    **dict.fromkeys(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), "wrong user name or password"),
    "OAUTHBEARER": "the token has expired, or is not trusted here",
}


@pytest.mark.parametrize(
    ("mechanism", "messages"),
    [
        ("PLAIN", [b"\0writer\0wrong"]),
        ("PLAIN", [b"\0nobody\0" + PASSWORD.encode()]),
        ("PLAIN", [b"garbage"]),
        ("SCRAM-SHA-512", [b"n,,n=writer,r=abc", b"c=biws,r=abc,p=AAAA"]),
        ("SCRAM-SHA-256", [b"garbage"]),
        ("OAUTHBEARER", [b"n,,\x01auth=Bearer e30.e30.e30\x01\x01", b"\x01"]),
    ],
)
async def test_failed_authentication_is_answered_late_and_disconnects(
    cluster: Secured, mechanism: str, messages: list[bytes]
) -> None:
    connection = await cluster.connect()
    await handshake(connection, mechanism)
    # All messages but the last one are valid steps of the mechanism.
    for message in messages[:-1]:
        await say(connection, message)
    began_s = time.monotonic()
    answer = await say(connection, messages[-1])
    assert time.monotonic() - began_s >= DELAY_MS / 1000
    assert answer.error_code is ErrorCode.sasl_authentication_failed
    assert answer.error_message == f"{mechanism}: authentication failed: {WRONG[mechanism]}"
    assert await ended(connection)


@pytest.mark.parametrize(
    ("mechanism", "messages"),
    [
        ("PLAIN", [b"\0writer\0wrong"]),
        ("PLAIN", [b"\0nobody\0" + PASSWORD.encode()]),
        ("SCRAM-SHA-512", [b"n,,n=writer,r=abc", b"c=biws,r=abc,p=AAAA"]),
        ("SCRAM-SHA-256", [b"garbage!"]),
    ],
)
async def test_failed_authentication_without_kafkas_header_disconnects_late_without_an_answer(
    cluster: Secured, mechanism: str, messages: list[bytes]
) -> None:
    """After SaslHandshake v0 there is no place for an error."""
    connection = await cluster.connect()
    answer = await handshake(connection, mechanism, version=0)
    assert answer.error_code is ErrorCode.none
    for message in messages[:-1]:
        connection.write(b"".join(bare_frame(message)))
        assert await connection.read_frame()
    began_s = time.monotonic()
    connection.write(b"".join(bare_frame(messages[-1])))
    assert await ended(connection)
    # The end comes from the delay of a failure and not from the timeout of an unfinished
    # authentication.
    assert DELAY_MS / 1000 <= time.monotonic() - began_s < TIMEOUT_MS / 1000


async def test_pipelined_requests_wait_for_authentication(cluster: Secured) -> None:
    """A client that does not wait for the answers: the handshake, its proof without a header, and
    a request, in one write."""
    connection = await cluster.connect()
    metadata = encode_request(kafka.metadata(9, None), 7, "hasty")
    proof = b"".join(bare_frame(f"\0writer\0{PASSWORD}".encode()))
    first = encode_request(kafka.request(17, 0, mechanism="PLAIN"), 6, "hasty")
    # Requests that arrive before the authentication is decided have to wait for it.
    connection.write(first + proof + metadata)
    answers = [bytes(await connection.read_frame()) for _ in range(3)]
    # The first and third answers have their correlation ids. The second is an empty bare frame.
    assert answers[0][:4] == (6).to_bytes(4)
    assert answers[1] == b""
    assert answers[2][:4] == (7).to_bytes(4)
    await connection.close()


async def test_reauthentication_requires_kafkas_header(cluster: Secured) -> None:
    """No client that knows that it has to (KIP-368) does, and its requests may be large by now."""
    connection = await cluster.connect()
    assert (await plain(connection, "writer")).error_code is ErrorCode.none
    with pytest.raises(ConnectionClosed):
        await handshake(connection, version=0)


async def test_unknown_user_receives_a_stable_salt(cluster: Secured) -> None:
    """The salt of an unknown name is always the same, and has the length of the others."""
    firsts = []
    for name in ("writer", "nobody", "nobody"):
        connection = await cluster.connect()
        await handshake(connection, "SCRAM-SHA-256")
        answer = await say(connection, f"n,,n={name},r=abc".encode())
        firsts.append(dict(part.split(b"=", 1) for part in answer.auth_bytes.split(b",")))
        await connection.close()
    # Same salt for the same unknown name, same length and iterations as a known user: the answer
    # does not reveal whether the name exists.
    writer, nobody, again = firsts
    assert nobody[b"s"] == again[b"s"] != writer[b"s"]
    assert len(nobody[b"s"]) == len(writer[b"s"])
    assert nobody[b"i"] == writer[b"i"]
    assert nobody[b"r"] != again[b"r"]


async def test_unknown_user_costs_as_much_as_a_known_one(tmp_path: Path) -> None:
    """A password costs 100,000 iterations here; an unknown name costs them, too."""
    # Many iterations make the cost of one check measurable: about 0.1 s.
    slow = user("ann", password=PASSWORD, mechanisms=(2,))
    strong = type(slow.scram[0])(
        mechanism=2, iterations=100_000, salt=b"s" * 16, stored_key=b"k" * 64, server_key=b"k" * 64
    )
    slow = type(slow)(name="ann", scram=(strong,), acls=())
    quick = {"connection.failed.authentication.delay.ms": 0}
    async with secured(tmp_path, slow, **quick) as cluster:
        spent = {"ann": 0.0, "eve": 0.0}
        # CPU time of the broker alone, over five attempts each.
        for _ in range(5):
            for name in spent:
                connection = await cluster.connect()
                began_s = processor_s(cluster.broker.pid)
                await plain(connection, name, "wrong")
                spent[name] += processor_s(cluster.broker.pid) - began_s
        ann, eve = spent.values()
        assert ann > 5 * 0.01, "a password does not cost what it should"
        assert eve > ann / 2, f"{ann:.4f} s for a user, {eve:.4f} s for an unknown name"


def processor_s(pid: int) -> float:
    """Return a process's CPU time, which other load on the machine does not change."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def test_large_unauthenticated_frame_is_rejected(cluster: Secured) -> None:
    host, _, port = cluster.address("OPEN").rpartition(":")
    # 512 KiB is the limit before authentication. The connection ends on the announced size alone.
    for size in (512 * 1024 + 1, 50 * 1024 * 1024):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(struct.pack(">i", size))
        assert await asyncio.wait_for(reader.read(), 1.0) == b""
        writer.close()
    # After authentication the same size is accepted.
    connection = await cluster.connect()
    await plain(connection, "writer")
    request = kafka.produce(9, "orders", kafka.batch(bytes(600 * 1024)))
    answer: Any = await connection.request(request, kafka.answer_type(0, 9), 5)
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
    await connection.close()


async def test_authentication_has_a_timeout(cluster: Secured) -> None:
    # One never begins, the other stops after the handshake.
    silent, talking = await cluster.connect(), await cluster.connect()
    await handshake(talking)
    async with asyncio.timeout(5 * TIMEOUT_MS / 1000):
        assert await ended(silent)
        assert await ended(talking)
    # The timeout must not apply to an authenticated connection.
    proven = await cluster.connect()
    await plain(proven, "writer")
    await asyncio.sleep(1.2 * TIMEOUT_MS / 1000)
    assert await produce(proven) is ErrorCode.none
    await proven.close()


async def test_sasl_messages_out_of_order_disconnect(cluster: Secured) -> None:
    # SaslAuthenticate before SaslHandshake.
    before = await cluster.connect()
    with pytest.raises(ConnectionClosed):
        await say(before, b"\0writer\0x")
    # A second handshake in the middle of the first one.
    twice = await cluster.connect()
    await handshake(twice)
    with pytest.raises(ConnectionClosed):
        await handshake(twice)


async def test_unauthenticated_connections_are_closed_first(tmp_path: Path) -> None:
    async with secured(tmp_path, WRITER, **{"max.connections": 20}) as cluster:
        # 19 of 20 connections are unauthenticated. Another client makes room by closing half of
        # them.
        silent = [await cluster.connect() for _ in range(19)]
        connection = await cluster.connect("CLEAR")
        answer: Any = await connection.request(kafka.metadata(9, None), kafka.answer_type(3, 9), 5)
        assert answer.brokers
        assert sum(item.closed for item in silent) >= 9
        for item in (*silent, connection):
            await item.close()


async def test_authentication_expires_and_can_be_renewed(tmp_path: Path) -> None:
    """An authentication expires and can be renewed (KIP-368)."""
    async with secured(tmp_path, WRITER, READER, **{"connections.max.reauth.ms": 4000}) as cluster:
        one, other, third = [await cluster.connect() for _ in range(3)]
        # All three have a session of 4 s, of which 2.5 s pass.
        for connection in (one, other, third):
            answer = await plain(connection, "writer")
            assert 3 < answer.session_lifetime.total_seconds() <= 4
        await asyncio.sleep(2.5)
        # One renews its session, one does nothing, and one tries to continue as another user.
        assert (await plain(one, "writer")).error_code is ErrorCode.none
        assert (await plain(third, "reader")).error_code is ErrorCode.sasl_authentication_failed
        assert await ended(third), "it cannot continue as another user"
        # The first session is over by now, so only the renewed connection may continue.
        await asyncio.sleep(1.5)
        assert await produce(one) is ErrorCode.none
        with pytest.raises(ConnectionClosed):
            await produce(other)
        await one.close()


async def test_session_ends_with_its_token(cluster: Secured) -> None:
    connection = await cluster.connect()
    await handshake(connection, "OAUTHBEARER")
    # The token ended 25 s ago, and 30 s of clock skew are tolerated, so 5 s are left.
    token = cluster.issuer.token("robot", seconds=-25)
    answer = await say(connection, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    assert answer.error_code is ErrorCode.none
    assert answer.session_lifetime.total_seconds() <= 5, "of 30 s of skew 5 are left"
    # The connection must not outlive its token (KIP-368).
    await asyncio.sleep(5.1)
    with pytest.raises(ConnectionClosed):
        await produce(connection)


async def test_deleted_or_changed_user_is_disconnected(cluster: Secured) -> None:
    writer, reader = await cluster.connect(), await cluster.connect()
    await plain(writer, "writer")
    await plain(reader, "reader")
    # The user is deleted: connections that it authenticated are closed with its next request.
    await cluster.know(READER)
    with pytest.raises(ConnectionClosed):
        await produce(writer)
    assert await produce(reader) is ErrorCode.topic_authorization_failed
    # The reader's password and ACLs change, which requires a new authentication.
    await cluster.know(user("reader", password=PASSWORD))
    with pytest.raises(ConnectionClosed):
        await produce(reader)


async def test_no_user_is_admitted_before_the_users_are_known(tmp_path: Path) -> None:
    async with secured(tmp_path) as cluster:
        for listener in ("OPEN", "CLEAR"):
            connection = await cluster.connect(listener)
            assert await ended(connection), listener
        await cluster.know(WRITER)
        connection = await cluster.connect()
        await plain(connection, "writer")
        assert await produce(connection) is ErrorCode.none
        await connection.close()


async def test_no_client_is_served_before_the_acls_are_known(tmp_path: Path) -> None:
    """A listener in clear, and no other: every client is ANONYMOUS, which has no rights here."""
    # The controller announces that users follow, so the broker waits for them before it serves
    # anyone.
    controller = await ScriptedController().start()
    controller.users_follow = True
    broker = await BrokerProcess(1, tmp_path, [controller.port]).start()
    try:
        await controller.unfenced(1)
        await controller.create_topic("orders", [(1,)])
        host, _, port = broker.listener.rpartition(":")
        early = await KafkaConnection.connect(host, int(port), client_id="early")
        assert await ended(early)
        await controller.send_users()
        late = await KafkaConnection.connect(host, int(port), client_id="late")
        assert await produce(late) is ErrorCode.topic_authorization_failed
        await late.close()
    finally:
        await broker.kill()
        await controller.close()


async def test_users_of_an_older_controller_are_refused(cluster: Secured) -> None:
    # An update with a smaller epoch is from a controller that no longer leads.
    cluster.controller.epoch -= 1
    await cluster.know(user("eve", password=PASSWORD))
    assert cluster.controller.users_answers[-1] == ErrorCode.stale_controller_epoch.value
    connection = await cluster.connect()
    assert (await plain(connection, "eve")).error_code is ErrorCode.sasl_authentication_failed


async def test_metadata_has_addresses_of_the_requested_listener(cluster: Secured) -> None:
    # A client that dialed one listener must get addresses of that listener.
    clear, sasl = await cluster.connect("CLEAR"), await cluster.connect("OPEN")
    await plain(sasl, "writer")
    for connection, name in ((clear, "CLEAR"), (sasl, "OPEN")):
        answer: Any = await connection.request(kafka.metadata(9, None), kafka.answer_type(3, 9), 5)
        (broker,) = answer.brokers
        assert f"{broker.host}:{broker.port}" == cluster.address(name)
        await connection.close()


async def test_no_secret_reaches_the_log(cluster: Secured) -> None:
    # An expired token and a wrong password: both failures are logged.
    token = cluster.issuer.token("robot", seconds=-600)
    for mechanism, message in (
        ("PLAIN", b"\0writer\0hunter2-hunter2"),
        ("OAUTHBEARER", f"n,,\x01auth=Bearer {token}\x01\x01".encode()),
    ):
        connection = await cluster.connect()
        await handshake(connection, mechanism)
        await say(connection, message)
        await connection.close()
    log = cluster.broker.log_text()
    assert "closed a connection from 127.0.0.1" in log
    assert "hunter2" not in log
    assert token not in log
    assert PASSWORD not in log
