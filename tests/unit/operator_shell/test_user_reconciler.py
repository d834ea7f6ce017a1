"""One User on a fake API server: its Secret is written, then brokers receive it, then its
status.
"""

import base64
import datetime as dt
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tidemark.wire.users import ScramCredential
from tidemark_operator.certificates import authority
from tidemark_operator.certificates.authority import KeyPair
from tidemark_operator.clock import utc_now
from tidemark_operator.controller import snapshot
from tidemark_operator.controller.state import users as users_module
from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict, Forbidden
from tidemark_operator.kube.kinds import CLUSTER, SECRET, USER
from tidemark_operator.reconcile import user_secrets
from tidemark_operator.reconcile.user_reconciler import (
    CONTENDED_RETRY_S,
    FIRST_PATIENCE_S,
    PASSWORD_CHECK_S,
    PATIENCE_S,
    PROBLEM_RETRY_S,
    SECRET_CHECK_S,
    UserReconciler,
)
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.resources.names import OFFERED_ANNOTATION, USER_UID_ANNOTATION
from tidemark_operator.users.scram import SALT_KEY_BYTES, Mechanism, credential
from tidemark_operator.users.user_secret import USER_SECRETS, StoredPassword, password_data

ALICE = ShellWorld.key(USER, "alice")
REF = {"password": {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "pw"}}}}
READ = {"resource": {"type": "Topic", "name": "t"}, "operations": ["Read"]}


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster()
    async with made.term():
        yield made


async def reconcile(world: ShellWorld, name: str = "alice") -> float | None:
    return await UserReconciler(world.services).reconcile(world.key(USER, name))


def secret_of(world: ShellWorld, name: str = "alice") -> dict[str, bytes]:
    body = world.server.find(SECRET, name)
    assert body is not None
    return {key: base64.b64decode(text) for key, text in body["data"].items()}


def put_password(world: ShellWorld, password: str, name: str = "keys") -> None:
    data = {"pw": base64.b64encode(password.encode()).decode()}
    former = world.server.find(SECRET, name)
    if former is None:
        meta = {"name": name, "annotations": {OFFERED_ANNOTATION: "User"}}
        world.server.create("user", SECRET, NAMESPACE, {"metadata": meta, "data": data})
    else:
        world.server.replace("user", SECRET, {**former, "data": data})


def user_state(world: ShellWorld, name: str = "alice") -> Any:
    state = world.services.state.users.get(f"{NAMESPACE}/{name}")
    assert state is not None
    return state


def derives_from(world: ShellWorld, password: str) -> bool:
    """Return whether the brokers' credential was derived from this password."""
    (scram,) = user_state(world).scram
    return bool(credential(password, scram.salt, Mechanism(scram.mechanism)) == scram)


# ---------------------------------------------------------------- passwords


async def test_a_secret_is_written_before_brokers_and_the_status_have_the_user(
    world: ShellWorld,
) -> None:
    world.make_user()
    assert await reconcile(world) == SECRET_CHECK_S
    assert world.journal == ["create Secret alice", "users pushed", "replace_status User alice"]
    data = secret_of(world)
    assert len(data["password"]) == 32
    assert derives_from(world, data["password"].decode())
    assert user_state(world).scram[0].mechanism == Mechanism.SCRAM_SHA_512
    status = world.status(USER, "alice")
    assert (status["username"], status["secret"]) == ("alice", "alice")
    assert world.condition(USER, "alice", "Ready")[:2] == ("True", "Usable")
    assert world.events.reasons == ["Usable"]


async def test_a_secret_belongs_to_the_user_and_is_deleted_with_it(world: ShellWorld) -> None:
    body = world.make_user()
    await reconcile(world)
    meta = world.server.find(SECRET, "alice")["metadata"]  # type: ignore[index]
    assert meta["labels"] == USER_SECRETS.labels
    assert meta["annotations"] == {USER_UID_ANNOTATION: body["metadata"]["uid"]}
    world.delete(USER, "alice")
    await reconcile(world)
    assert world.server.find(SECRET, "alice") is None


async def test_unchanged_user_costs_no_write_and_no_derivation(
    world: ShellWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noted(*arguments: Any) -> ScramCredential:
        threads.append(threading.current_thread())
        return credential(*arguments)

    monkeypatch.setattr(user_secrets, "credential", noted)
    world.make_user()
    await reconcile(world)
    world.journal.clear()
    await reconcile(world)
    assert world.journal == []
    # PBKDF2 takes tens of milliseconds, so it runs once and in a thread.
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread(), "heartbeats and elections continue meanwhile"


async def test_another_term_finds_the_same_credentials(world: ShellWorld) -> None:
    world.make_user()
    await reconcile(world)
    before = user_state(world)
    async with world.term():
        assert snapshot.users(world.services.state) is None, "alice was not looked at yet"
        # The second controller derives the same credential from the same Secret.
        world.journal.clear()
        await reconcile(world)
        assert user_state(world) == before
        assert "create Secret alice" not in world.journal
        assert snapshot.users(world.services.state) is not None


async def test_referenced_password_is_used_and_followed(world: ShellWorld) -> None:
    put_password(world, "first one")
    world.make_user(authentication={"type": "scram-sha-256", **REF})
    assert await reconcile(world) == PASSWORD_CHECK_S
    assert derives_from(world, "first one")
    former = user_state(world).scram[0]
    assert former.mechanism == Mechanism.SCRAM_SHA_256
    # The owner changes the password, which takes effect with a new salt.
    put_password(world, "second one")
    await reconcile(world)
    assert derives_from(world, "second one")
    assert user_state(world).scram[0].salt != former.salt
    assert secret_of(world)["password"] == b"second one"


async def test_a_removed_password_stays_in_force_and_is_reported(
    world: ShellWorld,
) -> None:
    put_password(world, "first one")
    world.make_user(authentication=REF)
    await reconcile(world)
    # The referenced Secret disappears: users must not lose access for that.
    world.server.delete("user", SECRET, "keys")
    assert await reconcile(world) == PROBLEM_RETRY_S
    assert derives_from(world, "first one")
    status, reason, message = world.condition(USER, "alice", "Ready")
    assert (status, reason) == ("False", "PasswordUnusable")
    assert "Secret keys does not exist" in message
    assert "The previously accepted settings stay in force" in message
    assert world.events.reasons == ["Usable", "PasswordUnusable"]


async def test_user_without_its_referenced_password_has_no_credential(world: ShellWorld) -> None:
    world.make_user(authentication=REF, authorization={"acls": [READ]})
    assert await reconcile(world) == PROBLEM_RETRY_S
    assert user_state(world).scram == ()
    assert user_state(world).acls, "its permissions are pushed all the same"
    assert world.server.find(SECRET, "alice") is None
    assert "secret" not in world.status(USER, "alice")
    # As soon as the Secret exists, the user gets its credential.
    put_password(world, "now it is there")
    await reconcile(world)
    assert derives_from(world, "now it is there")


async def test_operators_own_secrets_cannot_be_referenced_as_passwords(world: ShellWorld) -> None:
    await world.services.certificates.authorities()
    ref = {"valueFrom": {"secretKeyRef": {"name": "main-ca", "key": "tls.key"}}}
    world.make_user(authentication={"password": ref})
    await reconcile(world)
    assert world.condition(USER, "alice", "Ready")[1] == "PasswordUnusable"
    assert world.server.find(SECRET, "alice") is None


async def test_a_password_written_into_the_users_secret_is_used(
    world: ShellWorld,
) -> None:
    world.make_user()
    await reconcile(world)
    body = world.server.find(SECRET, "alice")
    assert body is not None
    # A person edits the password in the generated Secret.
    data = {**body["data"], "password": base64.b64encode(b"my own").decode()}
    world.server.replace("user", SECRET, {**body, "data": data})
    await reconcile(world)
    assert derives_from(world, "my own")
    assert b'password="my own"' in secret_of(world)["sasl.jaas.config"]


async def test_a_recreated_user_gets_another_password(world: ShellWorld) -> None:
    """A user may delete the object because the password was compromised."""
    world.make_user()
    await reconcile(world)
    former = secret_of(world)["password"]
    world.delete(USER, "alice")
    world.make_user()
    await reconcile(world)
    assert secret_of(world)["password"] != former
    assert not derives_from(world, former.decode())


def restore_secret(world: ShellWorld, data: dict[str, bytes], **meta: Any) -> None:
    """Restore the Secret under another uid, as a backup tool or a person does."""
    texts = {key: base64.b64encode(value).decode() for key, value in data.items()}
    body = {"metadata": {"name": "alice", **meta}, "type": "Opaque", "data": texts}
    if world.server.find(SECRET, "alice") is not None:
        world.server.delete("backup", SECRET, "alice")
    world.server.create("backup", SECRET, NAMESPACE, body)


@pytest.mark.parametrize(
    "meta",
    [
        {"labels": USER_SECRETS.labels},
        {"labels": {**USER_SECRETS.labels, "velero.io/restore-name": "r"}},
        {
            "labels": USER_SECRETS.labels,
            "annotations": {USER_UID_ANNOTATION: "of-before"},
            "ownerReferences": [
                {
                    "apiVersion": "tidemark.dev/v1alpha1",
                    "kind": "User",
                    "name": "alice",
                    "uid": "of-before",
                    "controller": True,
                }
            ],
        },
    ],
    ids=["labels", "a label of a backup", "owner of before"],
)
@pytest.mark.parametrize("before", [True, False], ids=["known before", "unknown before"])
async def test_a_restored_user_keeps_its_restored_password(
    world: ShellWorld, meta: dict[str, Any], before: bool
) -> None:
    world.make_user()
    # Either the same operator issued the Secret, or it only knows the backup.
    if before:
        await reconcile(world)
        data = secret_of(world)
        world.delete(USER, "alice")
        await reconcile(world)
        assert world.server.find(SECRET, "alice") is None  # deleted together with its User
        restore_secret(world, data, **meta)
        world.make_user()
    else:
        data = password_data("alice", StoredPassword("from the backup", b"s" * SALT_KEY_BYTES))
        restore_secret(world, data, **meta)
    await reconcile(world)
    assert secret_of(world) == data
    assert derives_from(world, data["password"].decode())
    assert world.condition(USER, "alice", "Ready")[0] == "True"
    now = world.server.find(SECRET, "alice")
    assert now is not None
    assert meta["labels"].items() <= now["metadata"]["labels"].items()
    # The restored owner reference names a uid that does not exist.
    assert "ownerReferences" not in now["metadata"]  # the garbage collector would delete it
    user = world.server.find(USER, "alice")
    assert user is not None
    uid = user["metadata"]["uid"]
    assert now["metadata"]["annotations"] == {USER_UID_ANNOTATION: uid}


async def test_relabelled_secret_keeps_its_password(world: ShellWorld) -> None:
    """The exit of SecretTaken: the labels. A password is the only required key."""
    # A backup without labels: the Secret could belong to anybody.
    restore_secret(world, {"password": b"my own"})
    world.make_user()
    await reconcile(world)
    assert world.condition(USER, "alice", "Ready")[1] == "SecretTaken"
    restore_secret(world, {"password": b"my own"}, labels=USER_SECRETS.labels)
    await reconcile(world)
    assert derives_from(world, "my own")
    assert secret_of(world)["password"] == b"my own"
    assert len(secret_of(world)["salt.key"]) == SALT_KEY_BYTES
    assert world.condition(USER, "alice", "Ready")[0] == "True"


async def test_unusable_password_is_reported_and_retained(world: ShellWorld) -> None:
    # A line break at the end, as many editors add, is not part of any password.
    restore_secret(world, {"password": b"my own\n"}, labels=USER_SECRETS.labels)
    world.make_user()
    await reconcile(world)
    status, reason, message = world.condition(USER, "alice", "Ready")
    assert (status, reason) == ("False", "PasswordUnusable")
    assert "Correct it, or delete the Secret" in message
    assert secret_of(world) == {"password": b"my own\n"}
    restore_secret(world, {"password": b"my own"}, labels=USER_SECRETS.labels)
    await reconcile(world)
    assert derives_from(world, "my own")


async def test_a_restored_certificate_is_still_served(world: ShellWorld) -> None:
    world.make_user(authentication={"type": "tls"})
    await reconcile(world)
    data = secret_of(world)
    world.delete(USER, "alice")
    await reconcile(world)
    # The backup is restored before the User is created again.
    restore_secret(world, data, labels=USER_SECRETS.labels)
    world.make_user(authentication={"type": "tls"})
    await reconcile(world)
    assert secret_of(world) == data


# ---------------------------------------------------------------- Secrets of others


async def test_a_user_deleted_during_a_check_blocks_no_renewal(
    world: ShellWorld,
) -> None:
    """Otherwise the renewal waits for its certificate until the term ends."""
    world.make_user(authentication={"type": "tls"})
    await reconcile(world)
    certificates = world.services.client_certificates
    world.delete(USER, "alice")
    # The reconciler was in the middle of its check when the User was deleted.
    await certificates.leaf("alice", None)
    assert "alice" in certificates._seen
    assert await reconcile(world) is None
    assert "alice" not in certificates._seen


async def test_a_secret_of_another_owner_is_not_modified(world: ShellWorld) -> None:
    put_password(world, "theirs", name="alice")
    before = world.server.find(SECRET, "alice")
    world.make_user()
    assert await reconcile(world) == PROBLEM_RETRY_S
    assert world.server.find(SECRET, "alice") == before
    status, reason, message = world.condition(USER, "alice", "Ready")
    assert (status, reason) == ("False", "SecretTaken")
    assert "does not belong to the operator" in message
    assert user_state(world).scram == ()
    # The owner removes the foreign Secret, as the message demands.
    world.server.delete("user", SECRET, "alice")
    await reconcile(world)
    assert derives_from(world, secret_of(world)["password"].decode())
    assert world.condition(USER, "alice", "Ready")[0] == "True"


@pytest.mark.parametrize("type_", ["scram-sha-512", "tls", "oauth"])
async def test_user_cannot_replace_the_secret_of_an_authority(
    world: ShellWorld, type_: str
) -> None:
    """The CRD refuses such names. An existing object must not damage the authority."""
    await world.services.certificates.authorities()
    before = world.server.find(SECRET, "main-ca")
    world.make_user("main-ca", authentication={"type": type_})
    await reconcile(world, "main-ca")
    assert world.server.find(SECRET, "main-ca") == before


async def test_concurrent_creation_of_a_secret_is_retried(world: ShellWorld) -> None:
    world.make_user()
    # The other operator created the Secret between the read and the write.
    world.api.fail("create Secret", Conflict(409, "exists"))
    assert await reconcile(world) == CONTENDED_RETRY_S
    assert world.services.state.users.get(ALICE.namespaced_name) is None
    await reconcile(world)
    assert derives_from(world, secret_of(world)["password"].decode())


async def test_a_missing_permission_for_secrets_is_reported(world: ShellWorld) -> None:
    world.make_user()
    world.api.fail("get Secret", Forbidden(403, "secrets is forbidden"))
    assert await reconcile(world) == PROBLEM_RETRY_S
    assert world.condition(USER, "alice", "Ready")[1] == "SecretRefused"
    await reconcile(world)  # the permission has been granted
    assert world.condition(USER, "alice", "Ready")[0] == "True"


async def test_accepted_credential_stays_while_secrets_are_forbidden(
    world: ShellWorld,
) -> None:
    world.make_user()
    await reconcile(world)
    scram = user_state(world).scram
    assert scram
    # The role loses its permission after the credential was issued.
    world.api.fail("get Secret", Forbidden(403, "secrets is forbidden"))
    await reconcile(world)
    assert user_state(world).scram == scram


async def test_a_user_with_a_secret_that_was_never_read_is_not_pushed(world: ShellWorld) -> None:
    """After a takeover, brokers keep the user that the former controller pushed."""
    users = world.services.state.users
    body = world.make_user()
    # The takeover found the User, but its Secret cannot be read.
    users.expect(body["metadata"]["namespace"] + "/alice")
    world.api.fail("get Secret", Forbidden(403, "secrets is forbidden"))
    await reconcile(world)
    assert not users.complete


# ---------------------------------------------------------------- certificates


async def test_a_user_with_tls_is_given_a_certificate(world: ShellWorld) -> None:
    world.make_user(authentication={"type": "tls"})
    assert await reconcile(world) == SECRET_CHECK_S
    data = secret_of(world)
    assert data.keys() == {"user.crt", "user.key", "ca.crt"}
    leaf = KeyPair(data["user.crt"], data["user.key"])
    assert authority.is_for_client(leaf, "alice")
    assert authority.is_issued_by(leaf, KeyPair(data["ca.crt"], b""))
    assert world.server.find(SECRET, "main-clients-ca") is not None
    assert user_state(world).name == world.status(USER, "alice")["username"] == "CN=alice"
    assert user_state(world).scram == ()
    world.journal.clear()
    await reconcile(world)
    assert world.journal == []


async def test_a_certificate_is_renewed_in_time() -> None:
    world = ShellWorld()
    world.make_cluster()
    now = utc_now()
    world.now = lambda: now
    async with world.term():
        world.make_user(authentication={"type": "tls"})
        await reconcile(world)
        first = secret_of(world)
        # Certificates are valid for 90 days and renewed after two thirds.
        now += dt.timedelta(days=61)
        await reconcile(world)
        second = secret_of(world)
        assert second["user.crt"] != first["user.crt"]
        assert second["ca.crt"] == first["ca.crt"]
        assert authority.is_for_client(KeyPair(second["user.crt"], second["user.key"]), "alice")


async def test_an_authority_that_cannot_be_read_is_never_replaced(world: ShellWorld) -> None:
    put_password(world, "theirs", name="main-clients-ca")
    world.make_user(authentication={"type": "tls"})
    await reconcile(world)
    assert world.condition(USER, "alice", "Ready")[1] == "CertificatesUnusable"
    assert world.server.find(SECRET, "alice") is None


async def test_an_authority_that_is_restored_issues_again(world: ShellWorld) -> None:
    world.make_user(authentication={"type": "tls"})
    await reconcile(world)
    sound = world.server.find(SECRET, "main-clients-ca")
    assert sound is not None
    # The authority's Secret is emptied: it must be restored, never replaced.
    damaged = world.server.replace("somebody", SECRET, {**sound, "data": {}})
    world.make_user("bob", authentication={"type": "tls"})
    await reconcile(world, "bob")
    status, reason, message = world.condition(USER, "bob", "Ready")
    assert (status, reason) == ("False", "CertificatesUnusable")
    assert "main-clients-ca" in message
    world.server.replace("user", SECRET, {**damaged, "data": sound["data"]})
    await reconcile(world, "bob")
    assert world.condition(USER, "bob", "Ready")[0] == "True"


@pytest.mark.parametrize(("type_", "username"), [("tls-external", "CN=alice"), ("oauth", "alice")])
async def test_a_user_with_another_authentication_has_no_secret(
    world: ShellWorld, type_: str, username: str
) -> None:
    """The former Secret is deleted, because its password is still valid elsewhere."""
    world.make_user()
    await reconcile(world)
    world.edit(USER, "alice", authentication={"type": type_})
    await reconcile(world)
    assert world.server.find(SECRET, "alice") is None
    assert (user_state(world).name, user_state(world).scram) == (username, ())
    assert "secret" not in world.status(USER, "alice")
    assert world.condition(USER, "alice", "Ready")[0] == "True"


async def test_changed_authentication_replaces_the_secret(world: ShellWorld) -> None:
    world.make_user()
    await reconcile(world)
    world.edit(USER, "alice", authentication={"type": "tls"})
    await reconcile(world)
    assert secret_of(world).keys() == {"user.crt", "user.key", "ca.crt"}
    world.edit(USER, "alice", authentication={"type": "scram-sha-256"})
    await reconcile(world)
    assert secret_of(world).keys() == {"username", "password", "sasl.jaas.config", "salt.key"}


# ---------------------------------------------------------------- brokers


async def test_a_user_is_ready_once_every_broker_knows_it(world: ShellWorld) -> None:
    world.engine.reachable = {1, 2}
    world.make_user()
    reconciler = UserReconciler(world.services)
    assert await reconciler.reconcile(ALICE) == FIRST_PATIENCE_S
    assert "conditions" not in world.status(USER, "alice"), "brokers are given a moment"
    assert await reconciler.reconcile(ALICE) == PROBLEM_RETRY_S
    assert world.condition(USER, "alice", "Ready")[:2] == ("False", "AcknowledgementsPending")
    assert world.services.state.users.take_waiting() == {ALICE.namespaced_name}
    # The last broker acknowledges, which the status reports in the next pass.
    world.engine.users_acknowledged = world.services.state.users.version
    assert await reconciler.reconcile(ALICE) == SECRET_CHECK_S
    assert world.condition(USER, "alice", "Ready")[:2] == ("True", "Usable")


async def test_usable_user_stays_ready_across_a_takeover(
    world: ShellWorld,
) -> None:
    world.make_user()
    await reconcile(world)
    async with world.term():
        # After the takeover, broker 1 has not acknowledged this controller's users yet.
        world.engine.reachable = {1}
        assert await reconcile(world) == PATIENCE_S
        assert world.condition(USER, "alice", "Ready")[0] == "True"


async def test_deleted_user_is_revoked_at_once(world: ShellWorld) -> None:
    world.make_user()
    await reconcile(world)
    world.journal.clear()
    world.delete(USER, "alice")
    assert world.journal == ["users pushed"]
    assert world.services.state.users.get(ALICE.namespaced_name) is None
    assert await reconcile(world) is None


async def test_deleted_user_with_foreign_finalizer_is_revoked(
    world: ShellWorld,
) -> None:
    world.make(USER, "alice", {"clusterRef": {"name": "main"}}, metadata={"finalizers": ["x/y"]})
    await reconcile(world)
    world.delete(USER, "alice")
    assert world.server.find(USER, "alice") is not None
    assert world.services.state.users.get(ALICE.namespaced_name) is None


async def test_a_user_that_is_deleted_while_its_secret_is_read_stays_deleted(
    world: ShellWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make_user()
    read = world.api.get

    # The deletion arrives while the Secret is read.
    async def deleted_meanwhile(*arguments: Any) -> Any:
        if world.server.find(USER, "alice") is not None:
            world.delete(USER, "alice")
        return await read(*arguments)

    monkeypatch.setattr(world.api, "get", deleted_meanwhile)
    await reconcile(world)
    assert world.services.state.users.get(ALICE.namespaced_name) is None


async def test_a_user_with_an_unreadable_secret_delays_the_push_of_users(
    world: ShellWorld,
) -> None:
    """Brokers keep the former users: without them, all users would be locked out."""
    world.make_user()
    async with world.term():
        world.api.fail("get Secret", ApiServerUnavailable(503, "busy"))
        with pytest.raises(ApiServerUnavailable):
            await reconcile(world)
        # Until alice's Secret is read, the list of users is incomplete.
        assert snapshot.users(world.services.state) is None
        await reconcile(world)
        assert snapshot.users(world.services.state) is not None


async def test_a_user_being_deleted_at_a_takeover_blocks_no_other(
    world: ShellWorld,
) -> None:
    world.make(USER, "alice", {"clusterRef": {"name": "main"}}, metadata={"finalizers": ["x/y"]})
    world.delete(USER, "alice")
    async with world.term():
        present = snapshot.users(world.services.state)
        assert present is not None
        assert present[1].users == ()


async def test_a_fault_in_one_user_does_not_block_others(
    world: ShellWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make_user()
    body = world.make_user("unreadable")
    async with world.term():
        # An object whose authentication type this version does not know.
        world.services.objects.put(
            {**body, "spec": {}, "metadata": {**body["metadata"], "resourceVersion": "999999"}}
            | {"spec": {"clusterRef": {"name": "main"}, "authentication": {"type": "none"}}}
        )
        with pytest.raises(InvalidResource):
            await reconcile(world, "unreadable")

        # A bug in one reconciler must not hold back the list of users either.
        async def fault(*_: Any) -> Any:
            raise ZeroDivisionError

        reconciler = UserReconciler(world.services)
        monkeypatch.setattr(reconciler._secrets, "provide", fault)
        with pytest.raises(ZeroDivisionError):
            await reconciler.reconcile(ALICE)
        present = snapshot.users(world.services.state)
        assert present is not None
        assert [user.name for user in present[1].users] == ["alice"]


async def test_super_users_follow_the_cluster(world: ShellWorld) -> None:
    world.make_user(authorization={"acls": [READ]})
    await reconcile(world)
    assert "have no effect" in world.condition(USER, "alice", "Ready")[2]
    world.journal.clear()
    # Alice becomes a super user, which makes her ACLs pointless.
    world.edit(CLUSTER, "main", authorization={"type": "simple", "superUsers": ["CN=b", "a"]})
    assert world.journal == ["users pushed"]
    present = snapshot.users(world.services.state)
    assert present is not None
    assert (present[1].authorize, present[1].super_users) == (True, ("CN=b", "a"))
    assert ALICE in {await world.services.queue.get() for _ in range(2)}
    await reconcile(world)
    assert "have no effect" not in world.condition(USER, "alice", "Ready")[2]


async def test_a_user_beyond_the_limit_is_rejected(
    world: ShellWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_module, "USERS_MAX", 1)
    for name in ("alice", "bob"):
        world.make_user(name)
        await reconcile(world, name)
    assert world.condition(USER, "alice", "Ready")[0] == "True"
    assert world.condition(USER, "bob", "Ready")[:2] == ("False", "LimitReached")
    # Once alice is deleted, bob fits within the limit.
    world.delete(USER, "alice")
    await reconcile(world)
    await reconcile(world, "bob")
    assert world.condition(USER, "bob", "Ready")[0] == "True"


async def test_a_user_of_another_cluster_is_not_pushed(world: ShellWorld) -> None:
    world.make(USER, "alice", {"clusterRef": {"name": "other"}})
    await reconcile(world)
    assert world.condition(USER, "alice", "Ready")[:2] == ("False", "ClusterNotFound")
    assert world.services.state.users.get(ALICE.namespaced_name) is None
    assert world.server.find(SECRET, "alice") is None


# ---------------------------------------------------------------- secrecy


async def test_no_password_or_key_is_logged_or_published(
    world: ShellWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    put_password(world, "hunter2hunter2")
    world.make_user(authentication=REF)
    world.make_user("bob")
    world.make_user("carol", authentication={"type": "tls"})
    for name in ("alice", "bob", "carol"):
        await reconcile(world, name)
    # The changed password is unusable, so an error message is produced as well.
    put_password(world, "hunter3hunter3\n")
    await reconcile(world)
    shown = [
        caplog.text,
        repr(world.events.emitted),
        repr([world.server.find(USER, name) for name in ("alice", "bob", "carol")]),
        repr([user_state(world, name) for name in ("alice", "bob", "carol")]),
        " ".join(world.api.calls),
    ]
    user_secrets_data = [secret_of(world, name) for name in ("alice", "bob", "carol")]
    keys = ("password", "salt.key", "user.key")
    raw = [data[key] for data in user_secrets_data for key in keys if key in data]
    # alice: password and salt key, bob: both, carol: her private key.
    assert len(raw) == 5
    secrets = ["hunter2", "hunter3", *(repr(item)[2:-1] for item in raw)]
    secrets += [base64.b64encode(item).decode() for item in raw]
    for text in shown:
        assert not [secret for secret in secrets if secret in text]
