"""The Cluster on a fake API server: its remote storage is persisted before a broker receives it."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tidemark.tier.maintenance.sweep_lease import SweepLease, SweepRemainder
from tidemark.tier.stores.config import from_json, location_of
from tidemark.tier.stores.directory import DirectoryStore
from tidemark_operator.kube.kinds import CLUSTER, SECRET, TOPIC, Kind
from tidemark_operator.reconcile import remote_storage
from tidemark_operator.reconcile.cluster_reconciler import (
    STORAGE_CHECK_S,
    STORAGE_RETRY_S,
    ClusterReconciler,
    RemoteStorageState,
)
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.resources.names import OFFERED_ANNOTATION

MAIN = ShellWorld.key(CLUSTER, "main")


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster()
    made.make_topic()
    async with made.term():
        yield made


def folder(path: Path) -> dict[str, Any]:
    return {"filesystem": {"path": str(path)}}


async def test_without_storage_the_status_is_written_once_without_a_recheck(
    world: ShellWorld,
) -> None:
    for _ in range(2):
        assert await ClusterReconciler(world.services).reconcile(MAIN) is None
    assert world.journal == ["replace_status Cluster main"]


async def test_an_accepted_store_is_recorded_before_brokers_receive_it(
    world: ShellWorld, tmp_path: Path
) -> None:
    world.edit(CLUSTER, "main", remoteStorage=folder(tmp_path))
    assert await ClusterReconciler(world.services).reconcile(MAIN) == STORAGE_CHECK_S
    pushed = world.journal.index("published brokers")
    assert world.journal[:pushed] == ["replace_status Cluster main"]
    assert world.status(CLUSTER, "main")["acceptedStorage"] == folder(tmp_path)
    assert world.services.state.cluster.remote_storage
    assert world.events.reasons == ["RemoteStorageAccepted"]
    assert await world.services.queue.get() in {MAIN, world.key(TOPIC, "t")}


async def test_brokers_do_not_receive_a_store_whose_acceptance_is_not_persisted(
    world: ShellWorld, tmp_path: Path
) -> None:
    world.edit(CLUSTER, "main", remoteStorage=folder(tmp_path))
    world.api.fail("replace_status Cluster")
    reconciler = ClusterReconciler(world.services)
    with pytest.raises(Exception, match="no answer"):
        await reconciler.reconcile(MAIN)
    assert not world.services.state.cluster.remote_storage
    await reconciler.reconcile(MAIN)
    assert world.services.state.cluster.remote_storage


async def test_another_store_under_the_same_path_is_unavailable_and_reported_once(
    world: ShellWorld, tmp_path: Path
) -> None:
    world.edit(CLUSTER, "main", remoteStorage=folder(tmp_path))
    reconciler = ClusterReconciler(world.services)
    await reconciler.reconcile(MAIN)
    # Empty the folder: the store's identity is lost with its marker object.
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    for _ in range(2):
        assert await reconciler.reconcile(MAIN) == STORAGE_RETRY_S
    assert world.services.state.cluster.storage_problem
    assert world.events.reasons == ["RemoteStorageAccepted", "RemoteStorageUnavailable"]


async def test_a_store_in_use_is_neither_moved_nor_removed(
    world: ShellWorld, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    world.edit(CLUSTER, "main", remoteStorage=folder(tmp_path / "a"))
    reconciler = ClusterReconciler(world.services)
    await reconciler.reconcile(MAIN)
    accepted = world.services.state.cluster.remote_storage
    # A tiered topic pins the store, in the status that the next reconcile reads.
    status = {**world.status(CLUSTER, "main"), "tieredTopics": 1}
    await world.services.statuses.write(CLUSTER, MAIN, status)
    for spec, why in ((folder(tmp_path / "b"), "path changed"), (None, "was removed")):
        world.edit(CLUSTER, "main", remoteStorage=spec)
        await reconciler._storage(MAIN, world.known(CLUSTER, "main"))
        assert why in world.services.state.cluster.storage_problem
        assert world.services.state.cluster.remote_storage == accepted


S3 = {
    "s3": {
        "endpoint": "http://127.0.0.1:1",
        "region": "r",
        "buckets": ["bucket"],
        "credentialsSecretRef": {"name": "keys"},
    }
}


async def test_accepted_storage_stays_with_the_brokers_while_its_secret_is_missing(
    world: ShellWorld,
) -> None:
    world.edit(CLUSTER, "main", remoteStorage=S3)
    reconciler = ClusterReconciler(world.services)
    reconciler._know(RemoteStorageState("as accepted", ""))
    body = world.known(CLUSTER, "main") | {"status": {"acceptedStorage": location_of(S3)}}
    await reconciler._storage(MAIN, body)
    assert "Secret keys does not exist" in world.services.state.cluster.storage_problem
    assert world.services.state.cluster.remote_storage == "as accepted"


async def test_credentials_are_read_from_the_secret_and_its_problems_are_reported(
    world: ShellWorld,
) -> None:
    world.edit(CLUSTER, "main", remoteStorage=S3)
    reconciler = ClusterReconciler(world.services)
    # First the Secret is missing, then it has only one of the two keys.
    await reconciler.reconcile(MAIN)
    assert "Secret keys does not exist" in world.services.state.cluster.storage_problem
    data = {"accessKeyId": base64.b64encode(b"me").decode()}
    # Without this annotation the operator may not read the Secret at all.
    meta = {"name": "keys", "annotations": {OFFERED_ANNOTATION: "Cluster"}}
    body = {"metadata": meta, "data": data}
    world.server.create("user", SECRET, NAMESPACE, body)
    await reconciler.reconcile(MAIN)
    assert "has no key secretAccessKey" in world.services.state.cluster.storage_problem


async def test_without_a_secret_brokers_receive_no_keys(world: ShellWorld) -> None:
    """Brokers use the identity of their own pods. A Secret with temporary keys has a token."""
    api = world.services.client.api
    settings = {"roleArn": "arn:aws:iam::1:role/r", "encryption": "SSE-S3"}
    plain = {name: S3["s3"][name] for name in ("endpoint", "region", "buckets")}
    text = await remote_storage.resolve(
        api, NAMESPACE, {"s3": {**plain, **settings, "createBuckets": True}}
    )
    assert json.loads(text) == {"s3": {**plain, **settings}}
    keys = {"accessKeyId": "me", "secretAccessKey": "secret", "sessionToken": "token"}
    meta = {"name": "keys", "annotations": {OFFERED_ANNOTATION: "Cluster"}}
    data = {name: base64.b64encode(value.encode()).decode() for name, value in keys.items()}
    world.server.create("user", SECRET, NAMESPACE, {"metadata": meta, "data": data})
    assert json.loads(await remote_storage.resolve(api, NAMESPACE, S3)) == {"s3": {**plain, **keys}}


async def test_brokers_receive_the_encryption_keys_of_a_secret(world: ShellWorld) -> None:
    """For each kind of storage; the status and the location have nothing of them."""
    spec = {"filesystem": {"path": "/tier", "encryptionKeysSecretRef": {"name": "tier-keys"}}}
    keys = f"k1: {'A' * 43}=\n"
    meta = {"name": "tier-keys", "annotations": {OFFERED_ANNOTATION: "Cluster"}}
    data = {"encryptionKeys": base64.b64encode(keys.encode()).decode()}
    world.server.create("user", SECRET, NAMESPACE, {"metadata": meta, "data": data})
    text = await remote_storage.resolve(world.services.client.api, NAMESPACE, spec)
    assert json.loads(text) == {"filesystem": {"path": "/tier", "encryptionKeys": keys}}
    assert from_json(text).key_ring.active_id == "k1"
    assert location_of(spec) == {"filesystem": {"path": "/tier"}}


async def test_unusable_encryption_keys_are_reported(world: ShellWorld, tmp_path: Path) -> None:
    section = {**folder(tmp_path)["filesystem"], "encryptionKeysSecretRef": {"name": "tier-keys"}}
    world.edit(CLUSTER, "main", remoteStorage={"filesystem": section})
    meta = {"name": "tier-keys", "annotations": {OFFERED_ANNOTATION: "Cluster"}}
    data = {"encryptionKeys": base64.b64encode(b"k1: too short").decode()}
    world.server.create("user", SECRET, NAMESPACE, {"metadata": meta, "data": data})
    await ClusterReconciler(world.services).reconcile(MAIN)
    problem = world.services.state.cluster.storage_problem
    assert "line 1 must have a colon and 32 bytes in base64" in problem
    assert "too short" not in problem


async def test_the_accepted_store_is_known_before_the_first_push_to_a_broker(
    world: ShellWorld, tmp_path: Path
) -> None:
    world.edit(CLUSTER, "main", remoteStorage=folder(tmp_path))
    await ClusterReconciler(world.services).reconcile(MAIN)
    # A new term knows only the accepted storage of the status until it has checked it.
    async with world.term():
        assert not world.services.state.cluster.remote_storage
        await ClusterReconciler(world.services).check_first()
        assert world.services.state.cluster.remote_storage
        assert not world.services.state.cluster.storage_problem


@pytest.mark.parametrize("failure", [TimeoutError(), ValueError("a fault"), OSError("no CA file")])
async def test_failed_first_check_of_the_storage_is_logged_and_does_not_end_the_term(
    world: ShellWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
) -> None:
    world.edit(CLUSTER, "main", remoteStorage=folder(tmp_path))
    reconciler = ClusterReconciler(world.services)

    async def fail(*_: object) -> None:
        raise failure

    # The first check fails, and says so.
    with monkeypatch.context() as patched:
        patched.setattr(remote_storage, "resolve", fail)
        await reconciler.check_first()
    assert type(failure).__name__ in caplog.text
    assert "ns/main: " in caplog.text
    assert world.services.state.cluster.storage_problem
    # The reconciler repeats the check.
    await reconciler.reconcile(MAIN)
    assert not world.services.state.cluster.storage_problem


async def test_a_condition_reports_leftovers_of_a_sweep_until_they_are_deleted(
    world: ShellWorld, tmp_path: Path
) -> None:
    world.edit(CLUSTER, "main", remoteStorage=folder(tmp_path))
    reconciler, store = ClusterReconciler(world.services), DirectoryStore(tmp_path)

    async def swept_reasons() -> list[str]:
        # Reset the interval of one minute, so that this pass reads the lease.
        reconciler._sweep_due_s = 0.0
        world.journal.clear()
        await reconciler.reconcile(MAIN)
        conditions = world.status(CLUSTER, "main")["conditions"]
        return [condition["reason"] for condition in conditions if condition["type"] == "TierSwept"]

    def swept(left: SweepRemainder) -> None:
        lease = SweepLease(store, "broker 1", lambda: 1_800_000_000_000).take()
        lease.end(done=True, left=left)

    assert await swept_reasons() == []
    swept(SweepRemainder(orphans=2, size_bytes=70, unknown=1))
    assert await swept_reasons() == ["OrphansLeft"]
    message = world.condition(CLUSTER, "main", "TierSwept")[2]
    assert message.startswith(
        "2 objects (70 bytes) and 0 unfinished uploads are unreferenced; 1 obj"
    )
    swept(SweepRemainder(orphans=2, size_bytes=70, unknown=1))
    assert await swept_reasons() == ["OrphansLeft"]
    assert world.journal == [], "the same is not written again"
    # Within the minute the former result stays.
    swept(SweepRemainder())
    await reconciler.reconcile(MAIN)
    assert world.condition(CLUSTER, "main", "TierSwept")[0] == "False", "once a minute"
    assert await swept_reasons() == ["Swept"]
    async with world.term():
        assert await swept_reasons() == ["Swept"], "under every controller"


async def test_a_second_cluster_of_the_namespace_is_rejected(world: ShellWorld) -> None:
    world.make(CLUSTER, "second", {})
    await ClusterReconciler(world.services).reconcile(world.key(CLUSTER, "second"))
    assert world.condition(CLUSTER, "second", "Ready")[:2] == ("False", "SecondCluster")


@pytest.mark.parametrize("kind", [CLUSTER, TOPIC], ids=["cluster", "topic"])
async def test_another_operators_status_of_its_objects_is_not_overwritten(
    world: ShellWorld, kind: Kind
) -> None:
    """Otherwise two operators in a namespace, each with its own Cluster, would overwrite each
    other's statuses without end.
    """
    world.make(CLUSTER, "second", {})
    if kind is TOPIC:
        world.make(TOPIC, "u", {"clusterRef": {"name": "second"}, "partitions": 1})
    name = "u" if kind is TOPIC else "second"
    reconciler: Any = (TopicReconciler if kind is TOPIC else ClusterReconciler)(world.services)
    await reconciler.reconcile(world.key(kind, name))
    body = world.known(kind, name)
    # The other operator writes its own status over the rejection.
    conditions = body["status"]["conditions"]
    foreign = {**body, "status": {"conditions": [{**conditions[0], "reason": "Serving"}]}}
    world.services.objects.put(world.server.replace_status("foreign", kind, foreign))
    await reconciler.reconcile(world.key(kind, name))
    assert world.condition(kind, name, "Ready")[1] == "Serving"
    # Only a change of the spec makes the rejection news again.
    world.edit(CLUSTER, "second", config={"num.partitions": "3"})
    if kind is CLUSTER:
        await reconciler.reconcile(world.key(kind, name))
        assert world.condition(kind, name, "Ready")[1] == "SecondCluster", "it is another one now"


async def test_observed_generation_of_a_cluster_is_the_reconciled_generation(
    world: ShellWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit during the check of the store must not advance it."""
    world.edit(CLUSTER, "main", remoteStorage=folder(tmp_path))
    accept = remote_storage.accept

    # The edit arrives between the read of the spec and the write of the status.
    async def edited(*args: Any) -> Any:
        monkeypatch.undo()
        world.edit(CLUSTER, "main", config={"min.insync.replicas": "2"})
        return await accept(*args)

    monkeypatch.setattr(remote_storage, "accept", edited)
    await ClusterReconciler(world.services).reconcile(MAIN)
    assert world.known(CLUSTER, "main")["metadata"]["generation"] == 3
    assert world.status(CLUSTER, "main")["observedGeneration"] == 2
    await ClusterReconciler(world.services).reconcile(MAIN)
    assert world.status(CLUSTER, "main")["observedGeneration"] == 3
