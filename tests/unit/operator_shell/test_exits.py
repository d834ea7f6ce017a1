"""Exits that messages name: the user follows the message literally, and the condition clears.

``tests/unit/repository/test_condition_exits.py`` maps each reason to the test of its exit.
"""

import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.control_messages import topic_state
from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tests.unit.operator_shell.test_term_runner import Shell
from tidemark.leader_epochs import GENERATION
from tidemark_operator.controller import elections, snapshot
from tidemark_operator.controller.state.commit import SLICE_BYTES_MAX
from tidemark_operator.kube.errors import Conflict, Forbidden, Invalid
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC
from tidemark_operator.reconcile.broker_reconciler import BrokerReconciler
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.object_conditions import report_foreign
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler

PAUSED = "tidemark.dev/paused"
TIERING_SYSTEM = "remote.log.storage.system.enable"


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster()
    for node_id in (1, 2):
        made.make_broker(node_id)
    async with made.term():
        await made.start_broker(1)
        yield made


async def ready(world: ShellWorld, name: str = "t") -> tuple[str, str, str]:
    """Reconcile a Topic, with acknowledging brokers, and return its Ready condition."""
    key = ShellWorld.key(TOPIC, name)
    # Three passes: placement, acknowledgement by the brokers, and the final status.
    for _ in range(3):
        await TopicReconciler(world.services).reconcile(key)
        for broker in world.services.state.live_brokers():
            world.acknowledge(broker.node_id)
    return world.condition(TOPIC, name, "Ready")


async def served(world: ShellWorld, name: str = "t") -> bool:
    return (await ready(world, name))[:2] == ("True", "Serving")


async def test_exit_of_brokers_missing_is_to_start_brokers(world: ShellWorld) -> None:
    world.make_topic(replicas=2)
    status, reason, message = await ready(world)
    assert (status, reason) == ("False", "BrokersMissing")
    assert "Start brokers, or set enable.under.replicated.topic.creation" in message
    await world.start_broker(2)
    assert await served(world)


async def test_exit_of_brokers_missing_is_to_allow_under_replication(world: ShellWorld) -> None:
    world.make_topic(replicas=2)
    assert (await ready(world))[1] == "BrokersMissing"
    world.edit(CLUSTER, "main", config=UNDER_REPLICATED)
    assert await served(world)


async def test_a_pause_ends_with_its_annotation(world: ShellWorld) -> None:
    world.make_topic()
    world.annotate(TOPIC, "t", **{PAUSED: "true"})
    await ready(world)
    assert PAUSED in world.condition(TOPIC, "t", "Reconciling")[2]
    world.annotate(TOPIC, "t")
    assert await served(world)


async def test_exit_of_name_taken_is_to_delete_one_topic(world: ShellWorld) -> None:
    world.make_topic("first", topicName="t")
    assert await served(world, "first")
    world.make_topic("second", topicName="t")
    status, reason, message = await ready(world, "second")
    assert (status, reason) == ("False", "NameTaken")
    assert "Topic ns/first" in message
    # Delete the first topic, with its records.
    world.edit(TOPIC, "first", deletionPolicy="Delete")
    world.delete(TOPIC, "first")
    state = world.services.state
    topic_id = state.topics["ns/first"].id
    for _ in range(2):
        await TopicReconciler(world.services).reconcile(ShellWorld.key(TOPIC, "first"))
    # The broker confirms the removal of its replicas.
    world.services.deletions._confirmed[topic_id] = {1: state.brokers[1].directory_id}
    while world.services.queue.depth:
        world.services.queue.done(await world.services.queue.get())
    await TopicReconciler(world.services).reconcile(ShellWorld.key(TOPIC, "first"))
    assert world.server.find(TOPIC, "first") is None
    assert await world.services.queue.get() == ShellWorld.key(TOPIC, "second"), "it is woken"
    assert await served(world, "second")


async def test_exit_of_partitions_offline_is_to_start_a_replica(world: ShellWorld) -> None:
    world.make_topic()
    assert await served(world)
    await world.services.committer.decide(
        lambda draft: elections.fence(draft, [1], reason="no heartbeat")
    )
    status, reason, message = await ready(world)
    assert (status, reason) == ("False", "PartitionsOffline")
    assert "start broker 1" in message
    # A new process of the broker has the same log directory, so its copy counts.
    await world.start_broker(1, incarnation=7)
    assert await served(world)


async def test_partitions_that_are_lost_are_rebuilt_once_brokers_have_reported(
    world: ShellWorld,
) -> None:
    world.make_topic()
    assert await served(world)
    state = world.services.state
    # The slice was restored from an older backup: the partition's row is missing.
    (row,) = state.all_rows()
    state.remove_row(row.key)
    status, reason, message = await ready(world)
    assert (status, reason) == ("False", "Rebuilding")
    assert "brokers 1, 2 have not reported. Start them" in message
    report = topic_state(row.topic_id, "t", partitions=(snapshot.partition_state(row),))
    # Both brokers report: broker 1 has the partition, broker 2 has no replica.
    state.take_replica_report(1, [report])
    state.take_replica_report(2, [])
    status, reason, _ = await ready(world)
    assert (status, reason) == ("False", "ElectionPending")
    assert state.row(row.key) == dataclasses.replace(
        row,
        leader=-1,
        isr=(),
        last_known_elr=(1,),
        # The rebuilt row skips a generation of epochs, to exceed all lost ones.
        leader_epoch=row.leader_epoch + GENERATION,
        partition_epoch=row.partition_epoch + GENERATION,
    )


async def test_a_full_slice_has_room_once_topics_are_deleted(world: ShellWorld) -> None:
    world.make_topic()
    state = world.services.state
    before = [content.row_bytes for content in state.slices]
    # Pretend that every slice is full.
    for content in state.slices:
        content.row_bytes = SLICE_BYTES_MAX
    status, reason, message = await ready(world)
    assert (status, reason) == ("False", "SliceFull")
    assert "Delete topics" in message
    for content, row_bytes in zip(state.slices, before, strict=True):
        content.row_bytes = row_bytes
    assert await served(world)


async def test_exit_of_storage_unavailable_is_to_configure_a_store(
    world: ShellWorld, tmp_path: Path
) -> None:
    world.make_topic(tiering={"enabled": True})
    assert TIERING_SYSTEM in (await ready(world))[2]
    world.edit(CLUSTER, "main", config={TIERING_SYSTEM: "true"})
    status, reason, message = await ready(world)
    assert (status, reason) == ("False", "StorageUnavailable")
    assert "set spec.remoteStorage of Cluster ns/main" in message
    world.edit(CLUSTER, "main", remoteStorage={"filesystem": {"path": str(tmp_path)}})
    # The Cluster's reconciler accepts the store. Only then may topics be tiered.
    await ClusterReconciler(world.services).reconcile(world.services.cluster_key)
    assert await served(world)


async def test_exit_of_local_retention_too_long_is_to_shorten_it(
    world: ShellWorld, tmp_path: Path
) -> None:
    world.edit(
        CLUSTER,
        "main",
        config={TIERING_SYSTEM: "true", "log.retention.ms": "60000"},
        remoteStorage={"filesystem": {"path": str(tmp_path)}},
    )
    await ClusterReconciler(world.services).reconcile(world.services.cluster_key)
    world.make_topic(tiering={"enabled": True, "localRetention": {"time": "1h"}})
    assert (await ready(world))[1] == "LocalRetentionTooLong"
    world.edit(TOPIC, "t", tiering={"enabled": True, "localRetention": {"time": "30s"}})
    assert await served(world)


async def test_exit_of_copy_lag_too_long_is_to_copy_at_once(
    world: ShellWorld, tmp_path: Path
) -> None:
    """A maximum lag of the Cluster contradicts the delay of a Topic (KIP-1241)."""
    world.edit(
        CLUSTER,
        "main",
        config={TIERING_SYSTEM: "true", "tidemark.remote.copy.max.lag.ms": "60000"},
        remoteStorage={"filesystem": {"path": str(tmp_path)}},
    )
    await ClusterReconciler(world.services).reconcile(world.services.cluster_key)
    world.make_topic(tiering={"enabled": True}, config={"remote.copy.lag.ms": "20000"})
    status, reason, message = await ready(world)
    assert (status, reason) == ("False", "CopyLagTooLong")
    assert "Set remote.copy.lag.ms to 0 in spec.config" in message
    world.edit(TOPIC, "t", config={"remote.copy.lag.ms": "0"})
    assert await served(world)


async def test_exit_of_a_missing_cluster_is_to_create_it(world: ShellWorld) -> None:
    """The Topic names a Cluster that does not exist, then one of another operator."""
    body = world.make_topic(clusterRef={"name": "other"})
    await report_foreign(world.services, TOPIC, ShellWorld.key(TOPIC, "t"), body)
    assert "Create it" in world.condition(TOPIC, "t", "Ready")[2]
    world.make(CLUSTER, "other", {})
    known = world.known(TOPIC, "t")
    await report_foreign(world.services, TOPIC, ShellWorld.key(TOPIC, "t"), known)
    status, reason, message = world.condition(TOPIC, "t", "Ready")
    assert (status, reason) == ("False", "ClusterNotControlled")
    assert "Create the object with that clusterRef" in message
    # The clusterRef is immutable: the user creates the object again.
    world.delete(TOPIC, "t")
    world.make_topic()
    assert await served(world)


async def test_a_topic_that_a_default_would_compact_has_an_explicit_policy(
    world: ShellWorld, tmp_path: Path
) -> None:
    world.edit(
        CLUSTER,
        "main",
        config={TIERING_SYSTEM: "true", "log.cleanup.policy": "compact"},
        remoteStorage={"filesystem": {"path": str(tmp_path)}},
    )
    await ClusterReconciler(world.services).reconcile(world.services.cluster_key)
    world.make_topic(tiering={"enabled": True})
    assert (await ready(world))[1] == "Compacted"
    world.edit(TOPIC, "t", config={"cleanup.policy": "delete"})
    assert await served(world)


async def test_brokers_are_started_stopped_and_distinguished(world: ShellWorld) -> None:
    brokers = BrokerReconciler(world.services, world.reflector)
    two, twin = ShellWorld.key(BROKER, "broker-2"), ShellWorld.key(BROKER, "twin")
    # Each state of the broker in turn has a reason of its own in the message.
    await brokers.reconcile(two)
    assert world.condition(BROKER, "broker-2", "Ready")[1] == "NeverRegistered"
    await world.start_broker(2)
    await brokers.reconcile(two)
    assert world.condition(BROKER, "broker-2", "Ready")[1] == "Serving"
    decide = world.services.committer.decide
    await decide(lambda draft: elections.fence(draft, [2], reason="no heartbeat"))
    await brokers.reconcile(two)
    assert world.condition(BROKER, "broker-2", "Ready")[1] == "Fenced"
    await world.start_broker(2, incarnation=50)
    await decide(lambda draft: elections.shut_down(draft, 2))
    await brokers.reconcile(two)
    assert world.condition(BROKER, "broker-2", "Ready")[1] == "ShutDown"
    await world.start_broker(2, incarnation=51)
    await brokers.reconcile(two)
    assert world.condition(BROKER, "broker-2", "Ready")[1] == "Serving"

    # A second object with the same node id is refused until the user deletes it.
    world.make_broker(1, "twin")
    await brokers.reconcile(twin)
    assert world.condition(BROKER, "twin", "Ready")[1] == "NodeIdTaken"
    world.delete(BROKER, "twin")
    await brokers.reconcile(twin)
    assert world.server.find(BROKER, "twin") is None


async def test_a_broker_is_started_for_a_cluster_without_any(world: ShellWorld) -> None:
    clusters, key = ClusterReconciler(world.services), world.services.cluster_key
    await world.services.committer.decide(
        lambda draft: elections.fence(draft, [1], reason="no heartbeat")
    )
    await clusters.reconcile(key)
    assert world.condition(CLUSTER, "main", "Ready")[1] == "NoBrokers"
    await world.start_broker(1, incarnation=9)
    await clusters.reconcile(key)
    assert world.condition(CLUSTER, "main", "Ready")[1] == "Serving"


async def test_exit_of_an_unusable_store_is_in_its_message(
    world: ShellWorld, tmp_path: Path
) -> None:
    clusters, key = ClusterReconciler(world.services), world.services.cluster_key

    async def problem() -> str:
        await clusters.reconcile(key)
        status, reason, message = world.condition(CLUSTER, "main", "RemoteStorageReady")
        assert (status, reason) == ("False", "RemoteStorageUnavailable")
        return message

    async def answers() -> bool:
        await clusters.reconcile(key)
        return world.condition(CLUSTER, "main", "RemoteStorageReady")[0] == "True"

    folder = {"filesystem": {"path": str(tmp_path / "tier")}}
    world.edit(CLUSTER, "main", config={TIERING_SYSTEM: "true"}, remoteStorage=folder)
    assert "does not exist" in await problem()
    # Each problem is fixed as its message says: create the folder, then restore the spec.
    (tmp_path / "tier").mkdir()
    assert await answers()
    world.make_topic(tiering={"enabled": True})
    assert await served(world)
    await clusters.reconcile(key)
    world.edit(CLUSTER, "main", remoteStorage=None)
    assert "Restore it" in await problem()
    world.edit(CLUSTER, "main", remoteStorage=folder)
    assert await answers()
    # Another path is refused while tiered topics exist, because their segments would be lost.
    world.edit(CLUSTER, "main", remoteStorage={"filesystem": {"path": str(tmp_path)}})
    assert "Restore the previous value" in await problem()
    world.edit(CLUSTER, "main", remoteStorage=folder)
    assert await answers()


async def test_exit_of_second_cluster_is_to_delete_one(world: ShellWorld) -> None:
    world.make(CLUSTER, "second", {})
    await ClusterReconciler(world.services).reconcile(ShellWorld.key(CLUSTER, "second"))
    status, reason, message = world.condition(CLUSTER, "second", "Ready")
    assert (status, reason) == ("False", "SecondCluster")
    assert "Delete one of the two" in message
    world.delete(CLUSTER, "second")
    assert world.server.find(CLUSTER, "second") is None


# ---------------------------------------------------------------- blocked takeovers

SLICE = "main-03"


def corrupted(shell: Shell) -> Callable[[], None]:
    kept = shell.server.get("", PARTITION_SLICE, SLICE)
    # A newer version wrote a slice in a format that this version cannot read.
    now = shell.server.replace("newer", PARTITION_SLICE, {**kept, "partitions": ["?"]})
    version = now["metadata"]["resourceVersion"]
    meta = {**kept["metadata"], "resourceVersion": version}
    return lambda: _nothing(
        shell.server.replace("user", PARTITION_SLICE, {**kept, "metadata": meta})
    )


def contended(shell: Shell) -> Callable[[], None]:
    # Another writer modifies the slice before each attempt to claim it.
    shell.api.fail(f"replace PartitionSlice {SLICE}", Conflict(409, "modified"), times=1000)
    return shell.api.revive


def refused(shell: Shell) -> Callable[[], None]:
    """Refuse the creation of slices, for a Cluster that is new."""
    for body in shell.server.of_kind(PARTITION_SLICE):
        del shell.server._objects[PARTITION_SLICE.kind, body["metadata"]["name"]]
    body = shell.server.get("", CLUSTER, "main")
    # A Cluster without a status has no slices yet: the takeover creates them.
    shell.server._objects[CLUSTER.kind, "main"] = {**body, "status": {}}
    shell.api.fail("create PartitionSlice", Invalid(422, "a policy forbids it"), times=1000)
    return shell.api.revive


def not_written(shell: Shell) -> Callable[[], None]:
    """Refuse updates of slices, as a role or a webhook does."""
    shell.api.fail("replace PartitionSlice", Forbidden(403, "cannot update"), times=1000)
    return shell.api.revive


def not_listed(shell: Shell) -> Callable[[], None]:
    shell.api.fail("list_all PartitionSlice", Forbidden(403, "cannot list"), times=1000)
    return shell.api.revive


def _nothing(_: object) -> None:
    return


@pytest.mark.parametrize(
    ("stop", "reason", "text"),
    [
        (corrupted, "SliceUnreadable", "upgrade"),
        (contended, "SlicesContended", "another writer"),
        (refused, "SliceRefused", "a policy forbids it"),
        (not_written, "SliceRefused", "cannot update. Allow it"),
        (not_listed, "AccessDenied", "cannot list. Allow it"),
    ],
    ids=["unreadable", "contended", "refused", "not-written", "not-listed"],
)
async def test_a_blocked_takeover_is_reported_until_it_is_repaired(
    stop: Callable[[Shell], Callable[[], None]], reason: str, text: str
) -> None:
    shell = Shell()
    shell.make_cluster()
    shell.make_broker(1)
    # A first controller creates the slices, then its term ends.
    async with shell.term():
        pass
    repair = stop(shell)
    await shell.try_a_term()
    status, found, message = shell.condition(CLUSTER, "main", "Stalled")
    assert (status, found) == ("True", reason)
    assert text in message
    repair()
    # Once the cause is repaired, the next takeover succeeds and clears the condition.
    async with shell.term():
        await shell.start_broker(1)
        await ClusterReconciler(shell.services).reconcile(shell.services.cluster_key)
    assert shell.condition(CLUSTER, "main", "Stalled")[0] == "False"
    assert shell.condition(CLUSTER, "main", "Ready")[:2] == ("True", "Serving")
