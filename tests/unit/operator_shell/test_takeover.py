"""Takeover on a fake API server: first the epoch, then every slice, then decisions."""

import dataclasses
import uuid

import pytest

from tests.unit.operator_shell.shell_world import ShellWorld
from tidemark.annotations import ADOPT_CLUSTER_ID
from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict, NotFound
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC, Json
from tidemark_operator.leadership.terms import NotLeading
from tidemark_operator.objects.conversions import cluster_id_of
from tidemark_operator.reconcile.broker_reconciler import write_broker
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.resources.cluster import Cluster
from tidemark_operator.resources.names import CLUSTER_FINALIZER
from tidemark_operator.slices.slice_store import SlicesUnusable
from tidemark_operator.term.producer_ids import ProducerIdBlocks


def made() -> ShellWorld:
    world = ShellWorld()
    world.make_cluster()
    return world


def epochs(world: ShellWorld) -> set[int]:
    return {body["controllerEpoch"] for body in world.server.of_kind(PARTITION_SLICE)}


async def test_the_epoch_is_written_first_and_then_into_every_slice() -> None:
    world = made()
    async with world.term():
        assert epochs(world) == {1}
    # The order of the writes: first the Cluster's status, then the slices.
    claims = [call for call in world.api.calls if call.startswith(("replace ", "replace_status"))]
    assert claims[0] == "replace_status Cluster main"
    status = world.status(CLUSTER, "main")
    assert status["controller"] == {"identity": "op", "epoch": 1}
    assert status["slices"] == len(world.server.of_kind(PARTITION_SLICE))
    async with world.term():
        assert epochs(world) == {2}


async def test_epoch_of_an_unanswered_write_is_not_raised_twice() -> None:
    world = made()
    # The status write takes effect, but the connection breaks before its answer.
    world.api.fail("replace_status Cluster", after=True)
    async with world.term():
        assert world.services.state.controller_epoch == 1


async def test_a_slice_that_an_older_controller_still_writes_is_claimed_again() -> None:
    world = made()
    async with world.term():
        pass
    # The former controller wins the race for this slice three times.
    world.api.fail("replace PartitionSlice main-01", Conflict(409, "modified"), times=3)
    async with world.term():
        assert epochs(world) == {2}


def commits(world: ShellWorld) -> list[int]:
    return [body["commit"] for body in world.server.of_kind(PARTITION_SLICE)]


async def test_claim_is_not_the_last_commit_of_earlier_terms() -> None:
    """Otherwise a restored backup would be hidden by the commit number of the claim itself."""
    world = made()
    async with world.term():
        pass
    before = max(commits(world))
    async with world.term():
        assert world.services.state.found == (1, before)
        assert max(commits(world)) > before


async def test_commit_written_during_the_claim_counts_as_found() -> None:
    world = made()
    async with world.term():
        pass
    foreign_commits = iter([max(commits(world)) + 7])

    # The former controller writes once more, just before its slice is claimed.
    def write(call: str) -> None:
        if call == "replace PartitionSlice main-05" and (commit := next(foreign_commits, None)):
            body = world.server.find(PARTITION_SLICE, "main-05")
            world.server.replace("other", PARTITION_SLICE, {**(body or {}), "commit": commit})

    world.api.before = write
    before = max(commits(world))
    async with world.term():
        assert world.services.state.found == (1, before + 7)


async def test_a_lost_slice_is_recreated_once_the_status_has_its_loss() -> None:
    world = made()
    async with world.term():
        pass
    del world.server._objects["PartitionSlice", "main-05"]
    rebuilding_before = []

    # Record the status at the moment when the lost slice is created.
    def look(call: str) -> None:
        if call.startswith("create PartitionSlice"):
            rebuilding_before.append(world.status(CLUSTER, "main").get("rebuilding"))

    world.api.before = look
    async with world.term():
        assert world.server.find(PARTITION_SLICE, "main-05") is not None
        assert world.services.state.cluster.rebuilding is not None
        assert not world.services.state.unverified_rows
    (rebuilding,) = rebuilding_before
    assert rebuilding is not None
    assert rebuilding["reason"] == "SlicesMissing"
    # The lost slice may have had higher producer ids, so they continue from the clock.
    assert world.status(CLUSTER, "main")["nextProducerId"] > 1_000_000_000_000_000


async def test_producer_ids_begin_at_the_clock_and_continue_from_there() -> None:
    """A log restored from another cluster's tier contains lower ids.

    Records of new producers with such ids would be dropped as duplicates.
    """
    world = made()
    async with world.term():
        first_id = world.status(CLUSTER, "main")["nextProducerId"]
        block = await ProducerIdBlocks(world.services).allocate(1)
    assert first_id > 1_000_000_000_000_000
    assert block.producer_id_start == first_id
    async with world.term():
        # The second term continues after the block that the first one assigned.
        assert world.status(CLUSTER, "main")["nextProducerId"] == first_id + block.producer_id_len


async def test_later_takeover_does_not_restart_the_rebuilding() -> None:
    world = made()
    async with world.term():
        pass
    del world.server._objects["PartitionSlice", "main-05"]
    async with world.term():
        since = world.status(CLUSTER, "main")["rebuilding"]["since"]
    async with world.term():
        assert world.services.state.cluster.rebuilding is not None
        assert world.services.state.cluster.rebuilding.since == since


async def test_without_lease_or_cluster_there_is_no_takeover() -> None:
    world = made()
    world.leads = False
    with pytest.raises(NotLeading):
        async with world.term():
            pass
    with pytest.raises(NotFound):
        async with ShellWorld().term():
            pass
    world.leads = True
    # The takeover reads all objects: one failing list ends it.
    world.api.fail("list_all Topic", ApiServerUnavailable(503, "busy"))
    with pytest.raises(ApiServerUnavailable):
        async with world.term():
            pass


async def test_topics_and_brokers_of_other_clusters_are_ignored() -> None:
    world = made()
    world.make_topic("ours")
    world.make_topic("foreign_commits", clusterRef={"name": "other"})
    world.make_broker(1)
    spec: Json = {"clusterRef": {"name": "other"}, "nodeId": 2, "workload": "External"}
    world.make(BROKER, "broker-2", spec)
    async with world.term():
        assert set(world.services.state.topics) == {"ns/ours"}
        assert set(world.services.state.brokers) == {1}


async def test_registered_broker_wins_among_duplicates() -> None:
    world = made()
    world.make_broker(1, "zzz")
    async with world.term():
        await world.start_broker(1)
    # A second object claims the node id of the registered broker.
    world.make_broker(1, "aaa")
    async with world.term():
        assert world.services.state.brokers[1].key == "ns/zzz"


async def test_an_invalid_topic_is_skipped_and_prevents_no_leadership() -> None:
    world = made()
    world.make_topic("bad", partitions="many")
    world.make_topic("good")
    async with world.term():
        assert set(world.services.state.topics) == {"ns/good"}


async def test_fields_of_a_newer_version_do_not_block_the_takeover() -> None:
    """After a rollback of the operator, objects still have the newer version's fields."""
    world = await placed_world()
    for kind, name in ((CLUSTER, "main"), (BROKER, "broker-1"), (TOPIC, "t")):
        world.edit(kind, name, later={"than": "this"})
    async with world.term():
        state = world.services.state
        assert set(state.topics) == {"ns/t"}, "brokers receive its partitions"
        assert set(state.brokers) == {1}
        # The broker registers again under the older operator.
        back = dataclasses.replace(
            state.brokers[1], broker_epoch=2**40, incarnation_id=uuid.uuid4()
        )
        assert await write_broker(world.services, back)
        assert world.status(BROKER, "broker-1")["brokerEpoch"] == 2**40


def recreate_cluster(world: ShellWorld, **annotations: str) -> str:
    """Delete the Cluster by force and create it again; return the cluster id of its slices."""
    former = cluster_id_of(world.server._objects.pop(("Cluster", "main")))
    world.make(CLUSTER, "main", {"config": {}}, metadata={"annotations": annotations})
    return former


async def placed_world() -> ShellWorld:
    """Return a world of a Cluster with a broker and a partition."""
    world = made()
    world.make_broker(1)
    world.make_topic()
    async with world.term():
        await world.start_broker(1)
        await TopicReconciler(world.services).reconcile(world.key(TOPIC, "t"))
        assert len(list(world.services.state.all_rows())) == 1
    return world


async def test_cluster_that_cannot_be_controlled_is_not_written() -> None:
    world = await placed_world()
    recreate_cluster(world)
    world.journal.clear()
    # The message names the annotation that allows the adoption, and nothing is written.
    for _ in range(3):
        with pytest.raises(SlicesUnusable, match="an earlier Cluster"):
            async with world.term():
                pass
    assert world.journal == []


async def test_recreated_cluster_adopts_its_slices_by_annotation() -> None:
    world = await placed_world()
    former = recreate_cluster(world)
    world.annotate(CLUSTER, "main", **{ADOPT_CLUSTER_ID: former})
    async with world.term():
        state = world.services.state
        assert state.cluster.cluster_id == former
        assert len(list(state.all_rows())) == 1, "what was placed is known"
        assert epochs(world) == {2}, "above the epoch in the slices"
    status = world.status(CLUSTER, "main")
    assert status["clusterId"] == former
    assert status["slices"] == len(world.server.of_kind(PARTITION_SLICE))
    (record,) = status["accepted"]
    assert (record["annotation"], record["value"]) == (ADOPT_CLUSTER_ID, former)
    # The written status still matches the resource's schema.
    Cluster.parse(world.server.find(CLUSTER, "main") or {})
    async with world.term():
        assert world.status(CLUSTER, "main")["accepted"] == [record], "it is adopted once"


async def test_recreated_cluster_assigns_no_producer_id_twice() -> None:
    world = await placed_world()
    async with world.term():
        first = await ProducerIdBlocks(world.services).allocate(1)
    former = recreate_cluster(world)
    world.annotate(CLUSTER, "main", **{ADOPT_CLUSTER_ID: former})
    async with world.term():
        again = await ProducerIdBlocks(world.services).allocate(1)
    assert again.producer_id_start >= first.producer_id_start + first.producer_id_len


async def test_interrupted_adoption_is_continued() -> None:
    world = await placed_world()
    former = recreate_cluster(world)
    world.annotate(CLUSTER, "main", **{ADOPT_CLUSTER_ID: former})
    # The adoption is persisted before the list of Topics fails.
    world.api.fail("list_all Topic", ApiServerUnavailable(503, "busy"))
    with pytest.raises(ApiServerUnavailable):
        async with world.term():
            pass
    # The annotation has been removed since: the persisted adoption is enough.
    world.annotate(CLUSTER, "main")
    async with world.term():
        assert len(list(world.services.state.all_rows())) == 1


async def test_an_annotation_that_names_another_cluster_is_refused_with_the_right_name() -> None:
    world = await placed_world()
    former = recreate_cluster(world, **{ADOPT_CLUSTER_ID: "AAAAAAAAAAAAAAAAAAAAAA"})
    with pytest.raises(SlicesUnusable, match=f"{ADOPT_CLUSTER_ID}: {former}"):
        async with world.term():
            pass


async def test_unreadable_slice_stops_the_takeover_before_any_write() -> None:
    world = await placed_world()
    body = world.server.find(PARTITION_SLICE, "main-03")
    assert body is not None
    world.server.replace("newer", PARTITION_SLICE, {**body, "partitions": ["?"]})
    world.journal.clear()
    with pytest.raises(SlicesUnusable) as refused:
        async with world.term():
            pass
    assert refused.value.reason == "SliceUnreadable"
    assert world.journal == []


async def test_finalizer_is_written_before_any_dependent_object() -> None:
    world = made()
    async with world.term():
        pass
    body = world.server.find(CLUSTER, "main")
    assert body is not None
    assert body["metadata"]["finalizers"] == [CLUSTER_FINALIZER]
    # Slices without the finalizer would remain if the Cluster were deleted now.
    first = next(call for call in world.api.calls if call.startswith(("apply", "create")))
    assert first == "apply Cluster main"
