"""The end of a Cluster on a fake API server: it waits for its dependents and leaves no object."""

import itertools

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tidemark_operator.kube.errors import ApiServerUnavailable
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.shared_steps import LEAVING_CHECK_S
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.term import takeover
from tidemark_operator.term.cluster_teardown import tear_down

MAIN = ShellWorld.key(CLUSTER, "main")


async def controlled() -> ShellWorld:
    world = ShellWorld()
    world.make_cluster()
    async with world.term():
        pass
    return world


async def torn_down(world: ShellWorld) -> bool:
    return await tear_down(world.api, NAMESPACE, "main")  # type: ignore[arg-type]


def nothing_is_left(world: ShellWorld) -> bool:
    return not world.server.of_kind(CLUSTER) and not world.server.of_kind(PARTITION_SLICE)


async def test_a_cluster_that_is_deleted_leaves_nothing() -> None:
    world = await controlled()
    assert not await torn_down(world), "it is not being deleted"
    world.server.delete("user", CLUSTER, "main")
    assert world.server.find(CLUSTER, "main"), "the finalizer holds it"
    assert await torn_down(world)
    assert nothing_is_left(world)


async def test_the_cluster_is_deleted_last() -> None:
    world = await controlled()
    world.server.delete("user", CLUSTER, "main")
    world.journal.clear()
    await torn_down(world)
    # If the Cluster went first, an interrupted teardown would leave slices without an owner.
    slices = [n for n, call in enumerate(world.journal) if "PartitionSlice" in call]
    assert max(slices) < world.journal.index("apply Cluster main")


async def test_teardown_waits_for_topics_and_brokers_and_names_them() -> None:
    world = await controlled()
    world.make_broker(1)
    # Seven topics: two more than the message names.
    for number in range(7):
        world.make_topic(f"t{number}")
    async with world.term():
        world.delete(CLUSTER, "main")
        reconciler = ClusterReconciler(world.services)
        assert await reconciler.reconcile(MAIN) == LEAVING_CHECK_S
        status, reason, message = world.condition(CLUSTER, "main", "Ready")
        assert (status, reason) == ("False", "Deleting")
        assert "7 Topics (t0, t1, t2, t3, t4 and 2 more) and 1 Broker (broker-1)" in message
        assert world.condition(CLUSTER, "main", "Reconciling")[0] == "True"
    assert not await torn_down(world)
    assert len(world.server.of_kind(PARTITION_SLICE)) == 64


async def test_the_last_deletion_wakes_the_cluster_and_ends_the_term() -> None:
    world = await controlled()
    world.make_topic()
    async with world.term():
        topics, clusters = TopicReconciler(world.services), ClusterReconciler(world.services)
        await topics.reconcile(world.key(TOPIC, "t"))
        world.delete(CLUSTER, "main")
        assert await clusters.reconcile(MAIN) is not None
        # Drop the wake-ups so far, to observe the one of the last deletion.
        while world.services.queue.depth:
            world.services.queue.done(await world.services.queue.get())
        world.delete(TOPIC, "t")
        await topics.reconcile(world.key(TOPIC, "t"))
        assert world.server.find(TOPIC, "t") is None
        assert await world.services.queue.get() == MAIN
        with pytest.raises(TermEnded, match="no dependent object is left"):
            await clusters.reconcile(MAIN)
    assert await torn_down(world)
    assert nothing_is_left(world)


async def test_broker_created_after_the_deletion_blocks_the_teardown() -> None:
    world = await controlled()
    world.server.delete("user", CLUSTER, "main")
    world.make_broker(1)
    assert not await torn_down(world)
    world.server.delete("user", BROKER, "broker-1")
    assert await torn_down(world)


async def test_topics_of_another_cluster_do_not_block_the_teardown() -> None:
    world = await controlled()
    world.make_topic("theirs", clusterRef={"name": "other"})
    world.server.delete("user", CLUSTER, "main")
    assert await torn_down(world)


async def test_slices_of_an_earlier_cluster_of_the_name_stay() -> None:
    world = await controlled()
    # The earlier Cluster was removed without its finalizer, which leaves its slices.
    world.server._objects.pop(("Cluster", "main"))
    world.make_cluster()
    body = world.server.find(CLUSTER, "main")
    assert body is not None
    meta = {**body["metadata"], "finalizers": ["example.com/other"]}
    world.server.replace("user", CLUSTER, {**body, "metadata": meta})
    world.server.delete("user", CLUSTER, "main")
    assert await torn_down(world)
    assert len(world.server.of_kind(PARTITION_SLICE)) == 64


@pytest.mark.parametrize("after", [False, True], ids=["call-lost", "answer-lost"])
async def test_the_next_operator_continues_an_interrupted_teardown(
    after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four slices instead of 64 keep the number of kill points small.
    monkeypatch.setattr(takeover, "SLICES_DEFAULT", 4)
    for number in itertools.count():
        world = await controlled()
        world.server.delete("user", CLUSTER, "main")
        world.api.calls.clear()
        # Kill at each call in turn, before it has its effect or after it.
        world.api.fail_at(number, ApiServerUnavailable(0, "killed"), after=after)
        killed = False
        try:
            await torn_down(world)
        except ApiServerUnavailable:
            killed = True
        world.api.revive()
        if not killed:
            assert number > 4 * 3, "every call was the last one once"
            return
        if world.server.find(CLUSTER, "main") is not None:
            assert await torn_down(world), f"killed at call {number}"
        assert nothing_is_left(world), f"killed at call {number}"
