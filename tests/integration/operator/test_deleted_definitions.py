"""Definitions that are deleted, on an API server of this test's own. Their data stays, with and
without the policy that refuses the deletion, and is adopted again afterwards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.integration.operator import jobs
from tests.integration.operator.cluster_world import ClusterWorld, condition_of
from tests.integration.operator.conftest import install_crds
from tests.integration.operator.test_deletion_protection import dry_run, until_refused
from tests.integration.operator.test_users import fits, secret
from tidemark.annotations import ADOPT_TOPIC_ID, DELETION_PROTECTION
from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_operator.kube.errors import Invalid, NotFound
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    EXPORT,
    PARTITION_SLICE,
    RECORD_DELETION,
    TOPIC,
    USER,
    Json,
    Kind,
)

pytestmark = pytest.mark.full

POLICIES = Path(__file__).parents[3] / "policies"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS = (TOPIC, USER, EXPORT, RECORD_DELETION, BROKER, PARTITION_SLICE, CLUSTER)


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[ClusterWorld]:
    """A namespace on an API server of its own, because the tests delete its definitions."""
    # fsync off: this API server lives for one test.
    with ControlPlane.start(tmp_path / "control-plane", fsync=False) as running:
        await install_crds(running.kubeconfig)
        made = await ClusterWorld.open(running.kubeconfig, tmp_path)
        try:
            yield made
        finally:
            await made.close()


def path(kind: Kind) -> str:
    return f"{_CRDS}/{kind.plural}.{kind.group}"


def reports_deleted_topics(status: Json) -> bool:
    """Whether the Cluster's conditions name the definition of Topics."""
    found = condition_of(status, "Stalled")
    is_it = (found.get("status"), found.get("reason")) == ("True", "DefinitionDeleted")
    return is_it and "topics.tidemark.dev" in found["message"]


async def deleting(world: ClusterWorld, kind: Kind, name: str) -> bool:
    """Return whether an object is being deleted, or no longer exists."""
    try:
        return "deletionTimestamp" in (await world.get(kind, name))["metadata"]
    except NotFound:
        return True


async def let_go(world: ClusterWorld, kind: Kind) -> None:
    """Remove the finalizers of all remaining objects, as an administrator does."""
    with contextlib.suppress(NotFound):  # the definition or the object no longer exists
        for body in await world.api.list_all(kind, world.namespace):
            change: Json = {"metadata": {"finalizers": None}}
            await world.api.merge_patch(kind, world.namespace, body["metadata"]["name"], change)


async def definition_is_deleted(world: ClusterWorld, kind: Kind) -> bool:
    try:
        await world.api._call("GET", path(kind))
    except NotFound:
        return True
    return False


@pytest.mark.slow
async def test_deleting_the_definitions_deletes_no_data(own: ClusterWorld) -> None:
    world = own
    await world.create_cluster()
    operator = await jobs.start_operator(world)
    peer = await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await world.condition(TOPIC, "t", "Ready", "True")
    topic_id = (await world.get(TOPIC, "t"))["status"]["topicId"]
    await world.create(USER, "alice")
    await world.condition(USER, "alice", "Ready", "True")
    # Everything that must survive: topic id, password, rows.
    password = (await secret(world, "alice"))["password"]
    await jobs.create_export(world)
    await jobs.job(world, "x-1")
    rows = await world.rows()
    # Every definition is deleted at once; finalizers keep the objects for now.
    for kind in KINDS:
        await world.api._call("DELETE", path(kind))
    for kind, name in ((TOPIC, "t"), (USER, "alice"), (BROKER, "broker-1"), (CLUSTER, "demo")):
        await world.until(lambda k=kind, n=name: deleting(world, k, n), f"{name} is being deleted")
    # The operator reports it on the Cluster, which still exists.
    await world.status_where(CLUSTER, "demo", reports_deleted_topics)
    # A deletion of a topic takes less than three seconds when its definition exists.
    await asyncio.sleep(3)
    assert not await world.is_deleted(TOPIC, "t")
    assert await world.rows() == rows
    # No replica was removed, no password changed, the broker kept its session.
    assert peer.removed == set()
    assert fits(peer, "alice", password)
    assert not peer.fenced

    # An operator that begins now waits for the definitions before it takes over.
    await operator.kill()
    again = world.operator(export_image=jobs.IMAGE)
    await again.start()
    # The new operator deletes nothing either, although every object has a deletionTimestamp.
    await asyncio.sleep(2)
    assert not await world.is_deleted(TOPIC, "t")
    assert await world.rows() == rows
    assert (await secret(world, "alice"))["password"] == password

    # A person lets the objects go, and makes definitions and objects again.
    for kind in (TOPIC, EXPORT, RECORD_DELETION, USER):
        await let_go(world, kind)
        await world.until(
            lambda k=kind: definition_is_deleted(world, k), f"{kind.plural} are deleted"
        )
    await install_crds(world.kubeconfig)
    await world.start_peer(await world.peer(1), again)
    # The User adopts its Secret, the Topic its rows.
    await world.create(USER, "alice")
    await world.condition(USER, "alice", "Ready", "True")
    assert (await secret(world, "alice"))["password"] == password
    await world.create_topic("t", replicas=1)
    await world.annotate(TOPIC, "t", **{ADOPT_TOPIC_ID: str(topic_id)})
    # The peer that stands for the broker has another log directory, so it is not Ready again.
    await world.status_where(TOPIC, "t", lambda found: found.get("topicId") == topic_id)


@pytest.mark.slow
async def test_policies_refuse_deletion_of_definitions_until_annotated(
    own: ClusterWorld,
) -> None:
    """The policies are those of the folder, and apply to every verb."""
    for body in yaml.safe_load_all((POLICIES / "deletion-protection.yaml").read_text("utf-8")):
        plural = "validatingadmissionpolicies"
        if body["kind"].endswith("Binding"):
            plural = "validatingadmissionpolicybindings"
        await own.api._call("POST", f"{_ADMISSION}/{plural}", body=body)
    # The policies take effect a moment after their creation.
    for kind in KINDS:
        message = await until_refused(dry_run(own.api, path(kind)))
        assert "would be deleted with their definition" in message
    with pytest.raises(Invalid, match="would be deleted"):
        await own.api._call("DELETE", path(TOPIC))
    # Also for a deletion of the whole collection of definitions.
    with pytest.raises(Invalid, match="would be deleted"):
        await own.api._call("DELETE", _CRDS)
    # The annotation is the documented way to allow it.
    change = {"metadata": {"annotations": {DELETION_PROTECTION: "false"}}}
    patch = {"content_type": "application/merge-patch+json"}
    await own.api._call("PATCH", path(TOPIC), body=change, **patch)
    await own.api._call("DELETE", path(TOPIC))
    await own.until(lambda: definition_is_deleted(own, TOPIC), "the definition is deleted")
