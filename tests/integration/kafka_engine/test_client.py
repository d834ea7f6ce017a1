"""The client of Kafka's protocol, against Apache Kafka."""

import asyncio
import datetime as dt
import functools
import logging
import socket
import ssl
import time
import uuid
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.kafka_engine.waiting import until
from tests.security.client_certificates import ClientAuthority
from tidemark.kafka_client import configs, offsets
from tidemark.kafka_client.access import KafkaAccess, Login, Tls
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.errors import ClusterRefused, Unreachable
from tidemark.kafka_client.values import (
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    TOPIC,
    ConfigChange,
    NewTopic,
    Offset,
    RequestFailure,
)


def is_failure(found: object, code: ErrorCode) -> bool:
    return isinstance(found, RequestFailure) and found.code is code


async def test_cluster_description_has_brokers_and_racks(admin: Admin) -> None:
    found = await admin.describe_cluster()
    assert [(node.node_id, node.rack, node.fenced) for node in found.nodes] == [
        (1, "a", False), (2, "b", False), (3, "c", False)
    ]  # fmt: skip


async def test_topic_lifecycle(admin: Admin, name: str) -> None:
    other = f"{name}-refused"
    # One creation succeeds, one fails, in the same request.
    made = await admin.create_topics([
        NewTopic(name, ((1, 2), (2, 3)), {"retention.ms": "1000000"}),
        NewTopic(other, ((1, 99),)),
    ])  # fmt: skip
    topic_id = made[name]
    assert isinstance(topic_id, uuid.UUID)
    assert is_failure(made[other], ErrorCode.invalid_replica_assignment)
    look = functools.partial(admin.topics, [name, other])
    found = (await until(look, lambda found: name in found))[name]
    assert (found.topic_id, [partition.replicas for partition in found.partitions]) == (
        topic_id, [(1, 2), (2, 3)]
    )  # fmt: skip
    assert await admin.add_partitions({name: (3, [(3, 1)])}) == {name: None}
    # A reassignment of an unknown partition is an error of that partition only.
    moved = await admin.reassign({(name, 0): (1, 2, 3), (name, 7): (1,)})
    assert moved[name, 0] is None
    assert is_failure(moved[name, 7], ErrorCode.unknown_topic_or_partition)
    assert await admin.delete_topics([topic_id]) == {topic_id: None}
    again = await admin.delete_topics([topic_id])
    # The id of a deleted topic is unknown.
    assert is_failure(again[topic_id], ErrorCode.unknown_topic_id)


async def own_config(admin: Admin, name: str, node_id: int | None) -> dict[str, str | None]:
    found = (await configs.topic_configs(admin.client, [name], node_id=node_id))[name]
    if isinstance(found, RequestFailure):
        return {}
    return {key: entry.value for key, entry in found.items() if entry.own}


async def test_configurations_are_altered_key_by_key(admin: Admin, name: str) -> None:
    await admin.create_topics([NewTopic(name, ((1,),), {"retention.ms": "7", "flush.ms": "5"})])
    change = ConfigChange(TOPIC, name, {"retention.ms": "8"}, ("flush.ms",))
    assert await configs.alter_configs(admin.client, [change]) == {(TOPIC, name): None}
    # Brokers receive the change at different times.
    for node_id in (None, 1, 2, 3):
        look = functools.partial(own_config, admin, name, node_id)
        await until(look, lambda found: found == {"retention.ms": "8"})
    wrong = ConfigChange(TOPIC, name, {"retention.ms": "long"})
    refused = await configs.alter_configs(admin.client, [wrong])
    assert is_failure(refused[TOPIC, name], ErrorCode.invalid_config)


async def offset_of(
    admin: Admin, name: str, special: int, node_id: int = 2
) -> Offset | RequestFailure:
    return (await offsets.list_offsets(admin.client, node_id, {(name, 0): special}))[name, 0]


async def test_offsets_of_both_tiers(admin: Admin, name: str) -> None:
    await admin.create_topics([NewTopic(name, ((2,),))])
    # Without tiering the latest tiered offset is -1 (KIP-1005).
    at = {LATEST: 0, EARLIEST_LOCAL: 0, LATEST_TIERED: -1}
    for special, offset in at.items():
        look = functools.partial(offset_of, admin, name, special)
        found = await until(look, lambda found: isinstance(found, Offset))
        assert isinstance(found, Offset)
        assert found.offset == offset
    other = await offset_of(admin, name, LATEST, node_id=1)
    # A broker that does not lead answers one of two errors, depending on its metadata.
    unknown, not_led = ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower
    assert is_failure(other, unknown) or is_failure(other, not_led)
    answers = await offsets.delete_records(admin.client, 2, {(name, 0): 5}, 1000)
    assert is_failure(answers[name, 0][1], ErrorCode.offset_out_of_range)


async def test_unreachable_and_refusing_brokers_are_reported(bootstrap: tuple[str, ...]) -> None:
    async with KafkaClient(
        KafkaAccess(("127.0.0.1:1", *bootstrap))
    ) as client:  # the client tries the next one
        await Admin(client).describe_cluster()
        with pytest.raises(Unreachable, match="broker 9 is not known"):
            await configs.topic_configs(client, ["any"], node_id=9)
    async with KafkaClient(KafkaAccess(("127.0.0.1:1",))) as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: "):
            await Admin(client).describe_cluster()
    async with KafkaClient(KafkaAccess(bootstrap, login=Login("PLAIN", "ann", "secret"))) as client:
        with pytest.raises((ClusterRefused, Unreachable)) as refused:
            # The password is not in any message.
            await Admin(client).describe_cluster()
        assert "secret" not in str(refused.value)
    async with KafkaClient(KafkaAccess(bootstrap, tls=Tls())) as client:
        with pytest.raises((ClusterRefused, Unreachable), match="TLS"):
            await Admin(client).describe_cluster()


async def test_expired_server_certificate_is_refused(tmp_path: Path) -> None:
    leaf = ClientAuthority().leaf(tmp_path, "CN=broker", ends=dt.timedelta(hours=-1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf.certificate, leaf.key)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        KafkaClient(KafkaAccess((f"127.0.0.1:{port}",), Tls(leaf.trusted))) as client,
    ):
        with pytest.raises(ClusterRefused, match="not trusted: certificate has expired"):
            await Admin(client).describe_cluster()


def _refuse(listening: socket.socket, context: ssl.SSLContext) -> None:
    """One connection, which ends once the other side has read why."""
    # Keep the socket open until the client has read the alert.
    accepted, _ = listening.accept()
    with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as refused:
        with pytest.raises(ssl.SSLError):
            refused.do_handshake()
        time.sleep(0.3)


async def test_refused_client_certificate_names_the_remedy(tmp_path: Path) -> None:
    """TLS 1.3 reports the refusal only after the handshake."""
    authority = ClientAuthority()
    server = authority.leaf(tmp_path / "broker", "CN=broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # TLS 1.3 reports a refused client certificate after the handshake.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(server.certificate, server.key)
    context.load_verify_locations(server.trusted)
    context.verify_mode = ssl.CERT_REQUIRED
    old = authority.leaf(tmp_path / "old", "CN=us", ends=dt.timedelta(hours=-1))
    ended_s = time.time() - 3600
    strange = ClientAuthority("others").leaf(tmp_path / "strange", "CN=us")
    source = "Secret us"
    shown = {
        # With a known expiry the message has its time; otherwise the alert's name.
        "which expired at 20": Tls(
            server.trusted, old.certificate, old.key, own_source=source, ends_s=ended_s
        ),
        "EXPIRED": Tls(server.trusted, old.certificate, old.key, own_source=source),
        "UNKNOWN_CA": Tls(server.trusted, strange.certificate, strange.key, own_source=source),
        "none is configured": Tls(server.trusted, own_source=source),
    }
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        for text, tls in shown.items():
            refusal = asyncio.create_task(asyncio.to_thread(_refuse, listening, context))
            async with KafkaClient(KafkaAccess((f"127.0.0.1:{port}",), tls)) as client:
                with pytest.raises(ClusterRefused, match=f"{text}.* and its key, into Secret us"):
                    await Admin(client).describe_cluster()
            await refusal
        # A certificate and the key of another one.
        mixed = Tls(server.trusted, strange.certificate, old.key, own_source=source)
        async with KafkaClient(KafkaAccess((f"127.0.0.1:{port}",), mixed)) as client:
            with pytest.raises(ClusterRefused, match=r"cannot be used: .*: fix Secret us"):
                await Admin(client).describe_cluster()


async def test_concurrent_requests_share_connection_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "tidemark.kafka_client.client")
    async with KafkaClient(KafkaAccess(("127.0.0.1:1",))) as client:
        admin, until_s = Admin(client), time.monotonic() + 2
        while time.monotonic() < until_s:
            # Twenty concurrent requests share one connection attempt.
            pending = [admin.describe_cluster() for _ in range(20)]
            found = await asyncio.gather(*pending, return_exceptions=True)
            assert all(isinstance(item, Unreachable) for item in found)
            assert "127.0.0.1:1: " in str(found[0])
            await asyncio.sleep(0.1)
        # Two to four attempts in two seconds.
        assert 2 <= caplog.text.count("dialing 127.0.0.1:1") <= 4
        await client.use(KafkaAccess(("127.0.0.1:2",)))  # another way is tried at once
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:2: "):
            await admin.describe_cluster()
