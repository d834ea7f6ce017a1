"""Taking over on a fake API server: the epoch first, then every slice, before anything is
decided."""

import dataclasses
import uuid

import pytest

from tests.unit.operator_shell.shell_world import ShellWorld
from tidemark.annotations import ADOPT_CLUSTER_ID
from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict, NotFound
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC, Json
from tidemark_operator.leadership.terms import NotLeading
from tidemark_operator.objects.conversions import cluster_id_of
from tidemark_operator.reconcile.registrations import write_broker
from tidemark_operator.reconcile.topics import TopicReconciler
from tidemark_operator.resources.cluster import parse_cluster
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
    claims = [call for call in world.api.calls if call.startswith(("replace ", "replace_status"))]
    assert claims[0] == "replace_status Cluster main"
    status = world.status(CLUSTER, "main")
    assert status["controller"] == {"identity": "op", "epoch": 1}
    assert status["slices"] == len(world.server.of_kind(PARTITION_SLICE))
    async with world.term():
        assert epochs(world) == {2}


async def test_an_epoch_that_was_written_though_no_answer_came_is_not_raised_twice() -> None:
    world = made()
    world.api.fail("replace_status Cluster", after=True)
    async with world.term():
        assert world.services.state.controller_epoch == 1


async def test_a_slice_that_an_older_controller_still_writes_is_claimed_again() -> None:
    world = made()
    async with world.term():
        pass
    world.api.fail("replace PartitionSlice main-01", Conflict(409, "modified"), times=3)
    async with world.term():
        assert epochs(world) == {2}


def commits(world: ShellWorld) -> list[int]:
    return [body["commit"] for body in world.server.of_kind(PARTITION_SLICE)]


async def test_a_claim_does_not_pass_for_the_last_commit_of_those_before() -> None:
    """The claim has the number of the commit that a backup lacks and that brokers know."""
    world = made()
    async with world.term():
        pass
    before = max(commits(world))
    async with world.term():
        assert world.services.state.found == (1, before)
        assert max(commits(world)) > before


async def test_what_another_writes_during_the_claim_was_found() -> None:
    world = made()
    async with world.term():
        pass
    theirs = iter([max(commits(world)) + 7])

    def write(call: str) -> None:
        if call == "replace PartitionSlice main-05" and (commit := next(theirs, None)):
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
    told_before = []

    def look(call: str) -> None:
        if call.startswith("create PartitionSlice"):
            told_before.append(world.status(CLUSTER, "main").get("rebuilding"))

    world.api.before = look
    async with world.term():
        assert world.server.find(PARTITION_SLICE, "main-05") is not None
        assert world.services.state.cluster.rebuilding is not None
        assert not world.services.state.doubted
    (told,) = told_before
    assert told is not None
    assert told["reason"] == "SlicesMissing"
    assert world.status(CLUSTER, "main")["nextProducerId"] > 1_000_000_000_000_000


async def test_producer_ids_begin_at_the_clock_and_continue_from_there() -> None:
    """A log restored from another cluster's tier knows ids below: their holders' records would pass
    for that cluster's, and be dropped as duplicates."""
    world = made()
    async with world.term():
        began = world.status(CLUSTER, "main")["nextProducerId"]
        block = await ProducerIdBlocks(world.services).allocate(1)
    assert began > 1_000_000_000_000_000
    assert block.producer_id_start == began
    async with world.term():
        assert world.status(CLUSTER, "main")["nextProducerId"] == began + block.producer_id_len


async def test_a_later_takeover_does_not_restart_it() -> None:
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
    world.api.fail("list_all Topic", ApiServerUnavailable(503, "busy"))
    with pytest.raises(ApiServerUnavailable):
        async with world.term():
            pass


async def test_topics_and_brokers_of_other_clusters_are_not_the_states() -> None:
    world = made()
    world.make_topic("ours")
    world.make_topic("theirs", clusterRef={"name": "other"})
    world.make_broker(1)
    spec: Json = {"clusterRef": {"name": "other"}, "nodeId": 2, "workload": "External"}
    world.make(BROKER, "broker-2", spec)
    async with world.term():
        assert set(world.services.state.topics) == {"ns/ours"}
        assert set(world.services.state.brokers) == {1}


async def test_of_two_brokers_of_one_node_id_the_registered_one_counts() -> None:
    world = made()
    world.make_broker(1, "zzz")
    async with world.term():
        await world.start_broker(1)
    world.make_broker(1, "aaa")
    async with world.term():
        assert world.services.state.brokers[1].key == "ns/zzz"


async def test_an_invalid_topic_is_skipped_and_prevents_no_leadership() -> None:
    world = made()
    world.make_topic("bad", partitions="many")
    world.make_topic("good")
    async with world.term():
        assert set(world.services.state.topics) == {"ns/good"}


async def test_fields_of_a_newer_version_prevent_no_leadership_or_return() -> None:
    """After a rollback: Brokers that the newer operator has made still have them."""
    world = await placed()
    for kind, name in ((CLUSTER, "main"), (BROKER, "broker-1"), (TOPIC, "t")):
        world.edit(kind, name, later={"than": "this"})
    async with world.term():
        state = world.services.state
        assert set(state.topics) == {"ns/t"}, "brokers receive its partitions"
        assert set(state.brokers) == {1}
        back = dataclasses.replace(
            state.brokers[1], broker_epoch=2**40, incarnation_id=uuid.uuid4()
        )
        assert await write_broker(world.services, back)
        assert world.status(BROKER, "broker-1")["brokerEpoch"] == 2**40


def remade(world: ShellWorld, **annotations: str) -> str:
    """The Cluster object goes by force, without its slices, and is made again; the id that the
    slices have."""
    former = cluster_id_of(world.server._objects.pop(("Cluster", "main")))
    world.make(CLUSTER, "main", {"config": {}}, metadata={"annotations": annotations})
    return former


async def placed() -> ShellWorld:
    """A Cluster with a broker and a partition."""
    world = made()
    world.make_broker(1)
    world.make_topic()
    async with world.term():
        await world.start_broker(1)
        await TopicReconciler(world.services).reconcile(world.key(TOPIC, "t"))
        assert len(list(world.services.state.all_rows())) == 1
    return world


async def test_a_cluster_that_cannot_be_controlled_is_not_written_to() -> None:
    world = await placed()
    remade(world)
    world.journal.clear()
    for _ in range(3):
        with pytest.raises(SlicesUnusable, match="an earlier Cluster"):
            async with world.term():
                pass
    assert world.journal == []


async def test_a_cluster_made_again_adopts_its_slices_by_annotation() -> None:
    world = await placed()
    former = remade(world)
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
    parse_cluster(world.server.find(CLUSTER, "main") or {})
    async with world.term():
        assert world.status(CLUSTER, "main")["accepted"] == [record], "it is adopted once"


async def test_producer_ids_are_not_given_twice_by_a_cluster_that_was_made_again() -> None:
    world = await placed()
    async with world.term():
        first = await ProducerIdBlocks(world.services).allocate(1)
    former = remade(world)
    world.annotate(CLUSTER, "main", **{ADOPT_CLUSTER_ID: former})
    async with world.term():
        again = await ProducerIdBlocks(world.services).allocate(1)
    assert again.producer_id_start >= first.producer_id_start + first.producer_id_len


async def test_an_adoption_that_ended_halfway_is_carried_on() -> None:
    world = await placed()
    former = remade(world)
    world.annotate(CLUSTER, "main", **{ADOPT_CLUSTER_ID: former})
    world.api.fail("list_all Topic", ApiServerUnavailable(503, "busy"))
    with pytest.raises(ApiServerUnavailable):
        async with world.term():
            pass
    world.annotate(CLUSTER, "main")
    async with world.term():
        assert len(list(world.services.state.all_rows())) == 1


async def test_an_annotation_that_names_another_cluster_is_refused_with_the_right_name() -> None:
    world = await placed()
    former = remade(world, **{ADOPT_CLUSTER_ID: "AAAAAAAAAAAAAAAAAAAAAA"})
    with pytest.raises(SlicesUnusable, match=f"{ADOPT_CLUSTER_ID}: {former}"):
        async with world.term():
            pass


async def test_a_slice_that_is_not_understood_stops_the_take_over_before_any_write() -> None:
    world = await placed()
    body = world.server.find(PARTITION_SLICE, "main-03")
    assert body is not None
    world.server.replace("newer", PARTITION_SLICE, {**body, "partitions": ["?"]})
    world.journal.clear()
    with pytest.raises(SlicesUnusable) as refused:
        async with world.term():
            pass
    assert refused.value.reason == "SliceUnreadable"
    assert world.journal == []


async def test_our_finalizer_is_written_before_anything_exists_outside() -> None:
    world = made()
    async with world.term():
        pass
    body = world.server.find(CLUSTER, "main")
    assert body is not None
    assert body["metadata"]["finalizers"] == [CLUSTER_FINALIZER]
    first = next(call for call in world.api.calls if call.startswith(("apply", "create")))
    assert first == "apply Cluster main"
