"""Users from a manifest to the brokers: Secrets, commands, statuses, and operator changes."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld
from tests.user_states import quota
from tidemark.wire.users import Acl
from tidemark_operator.kube.errors import Conflict
from tidemark_operator.kube.kinds import CLUSTER, EVENT, SECRET, USER, Json
from tidemark_operator.resources.names import OFFERED_ANNOTATION
from tidemark_operator.users.scram import Mechanism, credential

READ = {"resource": {"type": "Topic", "name": "t"}, "operations": ["Read"], "host": "10.0.0.7"}


async def secret(world: ClusterWorld, name: str) -> dict[str, bytes]:
    body = await world.get(SECRET, name)
    return {key: base64.b64decode(text) for key, text in body["data"].items()}


def fits(peer: BrokerPeer, name: str, password: bytes) -> bool:
    """Return whether a broker's credentials were derived from this password."""
    (scram,) = peer.users[name].scram
    return credential(password.decode(), scram.salt, Mechanism(scram.mechanism)) == scram


async def put_secret(world: ClusterWorld, name: str, password: str) -> None:
    meta = {"name": name, "annotations": {OFFERED_ANNOTATION: "User"}}
    body: Json = {"metadata": meta, "stringData": {"pw": password}}
    try:
        await world.api.create(SECRET, world.namespace, body)
    except Conflict:
        await world.api.merge_patch(SECRET, world.namespace, name, body)


async def touch(world: ClusterWorld, name: str, value: str) -> None:
    """Change the object, so that the operator reconciles it now."""
    body = {"metadata": {"labels": {"touched": value}}}
    await world.api.merge_patch(USER, world.namespace, name, body)


async def test_user_is_sent_to_every_broker_and_removed(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    peers = [await world.start_broker(node, operator) for node in (1, 2)]
    await world.until(lambda: all(peer.user_states for peer in peers), "they know of no user")
    # An empty list of users was sent, so that brokers do not wait for one.
    assert all(not peer.users and not peer.user_states[-1].authorize for peer in peers)
    spec: Any = {"authorization": {"acls": [READ]}, "quotas": {"producerByteRate": 7}}
    await world.create(USER, "alice", **spec)
    await world.condition(USER, "alice", "Ready", "True", "Usable")
    status = (await world.get(USER, "alice"))["status"]
    assert (status["username"], status["secret"], status["observedGeneration"]) == (
        "alice",
        "alice",
        1,
    )
    password = (await secret(world, "alice"))["password"]
    # Every broker has credentials, ACLs and quotas of the user.
    for peer in peers:
        assert fits(peer, "alice", password)
        (acl,) = peer.users["alice"].acls
        # The numbers of Kafka's protocol: topic, literal, read, allow.
        assert acl == Acl(
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            host="10.0.0.7",
            operation=3,
            permission=3,
        )
        assert peer.user_states[-1].quotas == (quota("alice", None, produce=7),)
    # Defaults and super users come from the Cluster.
    quotas: Any = {"clients": [{"clientId": "*", "consumerByteRate": 9}]}
    authorization = {"type": "simple", "superUsers": ["admin"]}
    await world.patch(CLUSTER, "demo", authorization=authorization, quotas=quotas)
    await world.until(
        lambda: all(
            (peer.user_states[-1].authorize, peer.user_states[-1].super_users) == (True, ("admin",))
            for peer in peers
        ),
        "ACLs decide from now on",
    )
    defaults = (quota(None, "", fetch=9), quota("alice", None, produce=7))
    assert all(peer.user_states[-1].quotas == defaults for peer in peers)
    await world.delete(USER, "alice")
    await world.until(lambda: not any(peer.users for peer in peers), "alice is deleted")
    # No password in the log.
    assert password.decode() not in operator.log


@pytest.mark.full
async def test_next_operator_sends_the_complete_user_list(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    for name in ("alice", "bob", "carol"):
        await world.create(USER, name)
        await world.condition(USER, name, "Ready", "True")
    before = peer.users
    # The next operator reads Secrets and Users again.
    await operator.kill()
    await peer.close()
    other = await world.start_operator()
    again = await world.start_peer(peer.restarted(clean=True), other)
    await world.until(lambda: bool(again.user_states), "the other operator tells of users")
    # One complete list: an incomplete one would lock users out for a moment.
    assert again.users == before
    assert [len(states.users) for states in again.user_states] == [3]
    assert again.user_states[0].controller_epoch > peer.user_states[-1].controller_epoch
    found = (await world.get(USER, "alice"))["status"]
    assert found["conditions"][0]["status"] == "True"


@pytest.mark.full
async def test_refused_user_command_is_repeated(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    await world.until(lambda: bool(peer.user_states), "it knows of no user")
    # 56 is KAFKA_STORAGE_ERROR; the next command is answered with it once.
    peer.user_errors = [56]
    await world.create(USER, "alice")
    await world.condition(USER, "alice", "Ready", "True")
    # The first list, the refused command, and its repetition.
    assert len(peer.user_states) >= 3
    assert not peer.user_errors


async def test_changed_password_takes_effect(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    ref = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "pw"}}}
    await world.create(USER, "alice", authentication={"password": ref})
    # The Secret of the password does not exist yet.
    await world.condition(USER, "alice", "Ready", "False", "PasswordUnusable")
    await put_secret(world, "keys", "first one")
    await touch(world, "alice", "1")
    await world.condition(USER, "alice", "Ready", "True")
    assert fits(peer, "alice", b"first one")
    # Changes of foreign Secrets are not watched, hence the touch.
    await put_secret(world, "keys", "second one")
    await touch(world, "alice", "2")
    await world.until(lambda: fits(peer, "alice", b"second one"), "the password is another one")
    assert (await secret(world, "alice"))["password"] == b"second one"
    events = await world.api.list_all(EVENT, world.namespace)
    # Neither password appears in a log, an object or an Event.
    shown = [operator.log, repr(await world.get(USER, "alice")), repr(events)]
    for text in shown:
        assert "first one" not in text
        assert "second one" not in text


@pytest.mark.full
async def test_user_and_secret_are_restored_from_a_backup(world: ClusterWorld) -> None:
    """Backup tools restore the Secret first, without its owner."""
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    await world.create(USER, "alice")
    await world.condition(USER, "alice", "Ready", "True")
    backup = await world.get(SECRET, "alice")
    password = (await secret(world, "alice"))["password"]
    await world.delete(USER, "alice")
    # Both are deleted; the backup has the Secret only.
    await world.until(lambda: world.is_deleted(SECRET, "alice"), "the Secret goes with its User")
    kept_fields = ("name", "labels", "annotations", "ownerReferences")
    meta = {name: backup["metadata"][name] for name in kept_fields if name in backup["metadata"]}
    # With an owner reference the garbage collector would delete the restored Secret at once.
    assert "ownerReferences" not in meta
    await world.api.create(SECRET, world.namespace, {**backup, "metadata": meta})
    await world.create(USER, "alice")
    await world.condition(USER, "alice", "Ready", "True")
    # The same password, because the operator adopts the Secret.
    assert fits(peer, "alice", password)
    assert (await secret(world, "alice"))["password"] == password


@pytest.mark.full
async def test_secret_of_another_owner_is_left_alone(world: ClusterWorld) -> None:
    await world.create_cluster()
    await put_secret(world, "alice", "theirs")
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    await world.create(USER, "alice")
    found = await world.condition(USER, "alice", "Ready", "False", "SecretTaken")
    assert "does not belong to the operator" in found["message"]
    # The foreign Secret is unchanged.
    assert (await secret(world, "alice")) == {"pw": b"theirs"}
    await world.until(lambda: "alice" in peer.users, "it is sent, and cannot authenticate")
    # Without credentials the user cannot log in by SCRAM.
    assert peer.users["alice"].scram == ()


async def test_user_certificate_authenticates_at_a_listener(
    world: ClusterWorld, tmp_path: Path
) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    await world.create(USER, "alice", authentication={"type": "tls"})
    await world.condition(USER, "alice", "Ready", "True")
    assert peer.users.keys() == {"CN=alice"}
    # The Secret has all files that a client and a listener need.
    for name, content in (await secret(world, "alice")).items():
        (tmp_path / name).write_bytes(content)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(tmp_path / "ca.crt")
    leaf = peer.certificates.parent / "peers" / "1"
    server.load_cert_chain(leaf / "tls.crt", leaf / "tls.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The peer's certificate has no host name for this test.
    client.check_hostname = False
    client.load_verify_locations(leaf / "ca.crt")
    client.load_cert_chain(tmp_path / "user.crt", tmp_path / "user.key")
    assert shake_hands(server, client) == ((("commonName", "alice"),),)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> object:
    """Return the user whom the server has authenticated."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server),
    )
    # Two flights in each direction complete a TLS 1.3 handshake in memory.
    for _ in range(3):
        for end in ends[::-1]:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = ends[0].getpeercert()
    assert certificate is not None
    return certificate["subject"]
