"""One Topic on a fake API server: decide, commit, write the status, tell the brokers, in that
order."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tidemark_operator.kube.errors import Conflict, Unavailable
from tidemark_operator.kube.kinds import CLUSTER, TOPIC
from tidemark_operator.reconcile.topics import TopicReconciler
from tidemark_operator.resources.names import TOPIC_FINALIZER

T = ShellWorld.key(TOPIC, "t")


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster(UNDER_REPLICATED)
    made.make_broker(1)
    async with made.term():
        await made.start_broker(1)
        yield made


async def test_nothing_is_told_before_it_is_stored(world: ShellWorld) -> None:
    world.make_topic()
    await TopicReconciler(world.services).reconcile(T)
    slice_name = world.journal[1].rpartition(" ")[2]
    assert world.journal == [
        "apply Topic t",
        f"replace PartitionSlice {slice_name}",
        "slice landed",
        "brokers told",
        "replace_status Topic t",
        "published ns/t",
    ]
    assert world.status(TOPIC, "t")["partitionsPlaced"] == 1
    assert world.server.find(TOPIC, "t")["metadata"]["finalizers"] == [TOPIC_FINALIZER]


async def test_a_topic_that_stands_as_it_should_costs_nothing(world: ShellWorld) -> None:
    world.make_topic()
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    world.journal.clear()
    await reconciler.reconcile(T)
    assert world.journal == []


async def test_a_status_that_cannot_be_written_tells_no_broker(world: ShellWorld) -> None:
    world.make_topic()
    reconciler = TopicReconciler(world.services)
    world.api.fail("replace_status Topic", Conflict(409, "modified"))
    with pytest.raises(Conflict):
        await reconciler.reconcile(T)
    assert not any(entry.startswith("published") for entry in world.journal)
    await reconciler.reconcile(T)
    assert world.journal[-1] == "published ns/t"


async def test_a_change_of_configuration_is_told_once(world: ShellWorld) -> None:
    world.make_topic()
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    world.journal.clear()
    world.edit(TOPIC, "t", config={"retention.ms": "1000"})
    await reconciler.reconcile(T)
    await reconciler.reconcile(T)
    assert world.journal.count("published ns/t") == 1
    assert world.status(TOPIC, "t")["observedGeneration"] == 2


async def test_what_is_observed_is_what_was_decided(world: ShellWorld) -> None:
    """Also when the spec is edited, and its reconciling paused, before the status is written: by it
    others see what has been carried out (invariant 22)."""
    world.make_topic()
    reconciler = TopicReconciler(world.services)

    def edited(call: str) -> None:
        if call.startswith("replace PartitionSlice"):
            world.api.before = lambda _: None
            world.annotate(TOPIC, "t", **{"tidemark.dev/paused": "true"})
            world.edit(TOPIC, "t", config={"retention.ms": "1000"})

    world.api.before = edited
    await reconciler.reconcile(T)
    assert world.known(TOPIC, "t")["metadata"]["generation"] == 2
    assert world.status(TOPIC, "t")["observedGeneration"] == 1
    await reconciler.reconcile(T)
    _, reason, message = world.condition(TOPIC, "t", "Reconciling")
    assert reason == "Paused"
    assert "generation 2 of the spec waits" in message


async def test_a_topic_of_another_cluster_is_told_so_and_left_alone(world: ShellWorld) -> None:
    world.make_topic(clusterRef={"name": "other"})
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("False", "ClusterNotFound")
    world.make(CLUSTER, "other", {})
    await reconciler.reconcile(T)
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("False", "ClusterNotControlled")
    assert world.journal == ["replace_status Topic t"] * 2


async def test_a_paused_topic_is_given_no_finalizer_and_no_partitions(world: ShellWorld) -> None:
    world.make_topic()
    world.annotate(TOPIC, "t", **{"tidemark.dev/paused": "true"})
    await TopicReconciler(world.services).reconcile(T)
    assert not world.services.state.rows_of(world.services.state.topics["ns/t"].id)
    assert not world.server.find(TOPIC, "t")["metadata"].get("finalizers")


async def test_a_deleted_topic_is_released_only_after_its_brokers_have_confirmed(
    world: ShellWorld,
) -> None:
    world.make_topic()
    reconciler, services = TopicReconciler(world.services), world.services
    await reconciler.reconcile(T)
    topic_id = services.state.topics["ns/t"].id
    world.delete(TOPIC, "t")
    await reconciler.reconcile(T)
    await reconciler.reconcile(T)
    assert world.server.find(TOPIC, "t") is not None
    services.deletions._confirmed[topic_id] = {1: services.state.brokers[1].directory_id}
    await reconciler.reconcile(T)
    assert world.server.find(TOPIC, "t") is None
    assert services.objects.get(T) is None
    assert "ns/t" not in services.state.topics


async def test_an_orphan_is_recorded_before_its_topic_goes(world: ShellWorld) -> None:
    world.make_topic(deletionPolicy="Orphan")
    reconciler = TopicReconciler(world.services)
    await reconciler.reconcile(T)
    world.delete(TOPIC, "t")
    world.api.fail("json_patch Topic")
    with pytest.raises(Unavailable):
        await reconciler.reconcile(T)
    assert world.server.find(TOPIC, "t") is not None
    (left,) = world.status(CLUSTER, "main")["leftBehind"]
    assert left["topicName"] == "t"
    await reconciler.reconcile(T)
    assert world.server.find(TOPIC, "t") is None
    assert len(world.status(CLUSTER, "main")["leftBehind"]) == 1


async def test_an_object_that_is_gone_is_nothing_to_do(world: ShellWorld) -> None:
    assert await TopicReconciler(world.services).reconcile(T) is None
    assert world.journal == []
