"""Grace period of a Topic's deletion: the topic is served until it ends, and can be kept."""

import dataclasses
import datetime
import uuid
from collections.abc import AsyncIterator

import pytest

from tests.unit.controller.controller_world import local_bytes
from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tidemark.annotations import ADOPT_TOPIC_ID, DELETION_PROTECTION
from tidemark_operator.controller.status.deletion_grace import recheck_s
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC
from tidemark_operator.reconcile.broker_reconciler import BrokerReconciler
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.resources.scalars import ms_of_time
from tidemark_operator.topic_changes.alteration import check_deletion
from tidemark_operator.topic_changes.refusal import ChangeRefusal

T = ShellWorld.key(TOPIC, "t")
HOUR_MS = 3_600_000


class Clock:
    """The operator's clock, which tests set."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("tidemark_operator.reconcile.topic_reconciler.wall_ms", made)
    monkeypatch.setattr("tidemark_operator.reconcile.shared_steps.wall_ms", made)
    return made


@pytest.fixture
async def world(clock: Clock) -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster(UNDER_REPLICATED)
    made.make_broker(1)
    async with made.term():
        await made.start_broker(1)
        await BrokerReconciler(made.services, made.reflector).reconcile(
            ShellWorld.key(BROKER, "broker-1")
        )
        made.make_topic(deletionGracePeriod="24h")
        await TopicReconciler(made.services).reconcile(T)
        made.acknowledge(1)
        yield made


def delete(world: ShellWorld, clock: Clock) -> int:
    """Delete the Topic; return the time of the deletion, at which the clock starts."""
    world.delete(TOPIC, "t")
    body = world.server.find(TOPIC, "t")
    assert body is not None
    text = str(body["metadata"]["deletionTimestamp"])
    clock.now_ms = ms_of_time(datetime.datetime.fromisoformat(text))
    return clock.now_ms


async def test_topic_is_served_until_the_grace_period_ends(world: ShellWorld, clock: Clock) -> None:
    topics = TopicReconciler(world.services)
    deleted_ms = delete(world, clock)
    later_s = await topics.reconcile(T)
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("True", "DeletionPending")
    assert world.condition(TOPIC, "t", "Reconciling")[:2] == ("True", "DeletionPending")
    # The clock may be set, so the end is not waited for in one piece.
    assert later_s == 60
    # The topic still follows its spec, and nothing of it is deleted.
    world.edit(TOPIC, "t", partitions=2)
    for _ in range(2):
        await topics.reconcile(T)
    assert world.status(TOPIC, "t")["partitionsPlaced"] == 2
    assert not world.services.state.tombstones
    clock.now_ms = deleted_ms + 24 * HOUR_MS - 1
    assert await topics.reconcile(T) == 1
    assert not world.services.state.tombstones
    # At the end the start is recorded first, and the deletion follows.
    clock.now_ms = deleted_ms + 24 * HOUR_MS
    await topics.reconcile(T)
    assert world.status(TOPIC, "t")["deletion"]["started"] is True
    assert not world.services.state.tombstones
    await topics.reconcile(T)
    assert world.services.state.tombstones


async def test_deletion_that_has_started_continues_if_the_clock_is_set_back(
    world: ShellWorld, clock: Clock
) -> None:
    deleted_ms = delete(world, clock)
    clock.now_ms = deleted_ms + 24 * HOUR_MS
    await TopicReconciler(world.services).reconcile(T)
    clock.now_ms = deleted_ms
    # Also under the next controller, which knows only what is stored.
    async with world.term():
        await TopicReconciler(world.services).reconcile(T)
        assert world.services.state.tombstones


async def test_one_event_says_how_much_is_deleted_and_how_to_keep_it(
    world: ShellWorld, clock: Clock
) -> None:
    topics = TopicReconciler(world.services)
    topic = world.services.state.topics["ns/t"]
    report = local_bytes((topic.id, 0), 5 << 20)
    world.services.state.reports[topic.id, 0] = report
    delete(world, clock)
    for _ in range(3):
        await topics.reconcile(T)
    (event,) = [e for e in world.events.emitted if e.reason == "DeletionPending"]
    assert "1 partition, at most 0 records, about 4 MiB in the leaders' logs" in event.message
    keep = (
        "kubectl --namespace ns patch topics.tidemark.dev t --type merge --patch "
        '\'{"spec":{"deletionPolicy":"Orphan"}}\''
    )
    assert keep in event.message
    topic_id = world.status(TOPIC, "t")["topicId"]
    assert event.message.endswith(f"{ADOPT_TOPIC_ID}: {topic_id}")
    # Another end is news.
    world.edit(TOPIC, "t", deletionGracePeriod="48h")
    await topics.reconcile(T)
    assert world.events.reasons.count("DeletionPending") == 2


async def test_next_operator_announces_what_its_predecessor_may_not_have(
    world: ShellWorld, clock: Clock
) -> None:
    """The first operator dies between the write of the status and that of the Event."""
    delete(world, clock)
    await TopicReconciler(world.services).reconcile(T)
    world.events.emitted.clear()
    async with world.term():
        topics = TopicReconciler(world.services)
        for _ in range(2):
            await topics.reconcile(T)
        assert world.events.reasons.count("DeletionPending") == 1


async def test_client_that_deletes_a_leaving_topic_learns_when_it_is_deleted(
    world: ShellWorld, clock: Clock
) -> None:
    body = {"metadata": {"managedFields": []}}
    with pytest.raises(ChangeRefusal, match="Delete the Topic object"):
        check_deletion(world.services.state.topics["ns/t"], body)
    delete(world, clock)
    await TopicReconciler(world.services).reconcile(T)
    with pytest.raises(ChangeRefusal, match=r"already being deleted: .* set deletionGracePeriod"):
        check_deletion(world.services.state.topics["ns/t"], body)


@pytest.mark.parametrize(("partitions", "due_ms"), [(1, 5), (0, None)])
async def test_topic_that_may_have_been_created_has_its_grace_period(
    world: ShellWorld, partitions: int, due_ms: int | None
) -> None:
    """Apache Kafka may have created it although the answer with its id was lost."""
    leaving = dataclasses.replace(
        world.services.state.topics["ns/t"],
        key="ns/u",
        name="u",
        uid=uuid.UUID(int=77),
        topic_id=None,
        partitions_placed=partitions,
        deletion_grace="24h",
        deletion_due_ms=5,
    )
    world.services.state.put_topic(leaving)
    assert world.services.state.topics["ns/u"].deletion_due_ms == due_ms


async def test_topic_is_kept_and_adopted_as_the_event_says(world: ShellWorld, clock: Clock) -> None:
    topics = TopicReconciler(world.services)
    delete(world, clock)
    await topics.reconcile(T)
    topic_id = world.status(TOPIC, "t")["topicId"]
    world.edit(TOPIC, "t", deletionPolicy="Orphan")
    await topics.reconcile(T)
    assert world.server.find(TOPIC, "t") is None
    (left,) = world.status(CLUSTER, "main")["leftBehind"]
    assert left["topicId"] == topic_id
    world.make_topic(deletionGracePeriod="24h")
    world.annotate(TOPIC, "t", **{ADOPT_TOPIC_ID: topic_id})
    for _ in range(3):
        await topics.reconcile(T)
    assert world.status(TOPIC, "t")["topicId"] == topic_id
    assert len(list(world.services.state.all_rows())) == 1
    # The new object is not being deleted.
    assert "deletion" not in world.status(TOPIC, "t")


@pytest.mark.parametrize("period", ["0s", None])
async def test_topic_is_deleted_at_once_without_a_grace_period(
    world: ShellWorld, clock: Clock, period: str | None
) -> None:
    topics = TopicReconciler(world.services)
    delete(world, clock)
    await topics.reconcile(T)
    world.edit(TOPIC, "t", deletionGracePeriod=period)
    await topics.reconcile(T)
    assert world.services.state.tombstones


async def test_protection_holds_a_deletion_whose_grace_period_is_over(
    world: ShellWorld, clock: Clock
) -> None:
    topics = TopicReconciler(world.services)
    deleted_ms = delete(world, clock)
    await topics.reconcile(T)
    world.annotate(TOPIC, "t", **{DELETION_PROTECTION: "true"})
    clock.now_ms = deleted_ms + 48 * HOUR_MS
    await topics.reconcile(T)
    assert world.condition(TOPIC, "t", "Stalled")[:2] == ("True", "DeletionProtected")
    assert "deletion" not in world.status(TOPIC, "t")
    assert not world.services.state.tombstones


async def test_deleted_cluster_names_the_topic_and_the_end_of_its_grace_period(
    world: ShellWorld, clock: Clock
) -> None:
    delete(world, clock)
    await TopicReconciler(world.services).reconcile(T)
    due = world.status(TOPIC, "t")["deletion"]["due"]
    world.delete(CLUSTER, "main")
    await ClusterReconciler(world.services).reconcile(world.services.cluster_key)
    ready = world.condition(CLUSTER, "main", "Ready")
    assert ready[:2] == ("False", "Deleting")
    assert f"(t, grace period until {due})" in ready[2]
    # The Topic is still served.
    assert world.condition(TOPIC, "t", "Ready")[0] == "True"


async def test_paused_topic_is_not_looked_at_when_its_grace_period_ends(
    world: ShellWorld, clock: Clock
) -> None:
    world.annotate(TOPIC, "t", **{"tidemark.dev/paused": "true"})
    deleted_ms = delete(world, clock)
    topic = world.services.state.topics["ns/t"]
    assert recheck_s(topic, None, now_ms=deleted_ms + 48 * HOUR_MS) is None


@pytest.mark.parametrize("restarted", [False, True])
async def test_grace_period_does_not_hold_back_a_deletion_that_has_started(
    world: ShellWorld, clock: Clock, restarted: bool
) -> None:
    delete(world, clock)
    world.edit(TOPIC, "t", deletionGracePeriod="0s")
    await TopicReconciler(world.services).reconcile(T)
    assert world.services.state.tombstones
    # The brokers delete already, so a period that is set now has nothing to keep.
    world.edit(TOPIC, "t", deletionGracePeriod="24h")
    if restarted:
        async with world.term():
            await TopicReconciler(world.services).reconcile(T)
            assert world.condition(TOPIC, "t", "Ready")[:2] == ("False", "Deleting")
        return
    await TopicReconciler(world.services).reconcile(T)
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("False", "Deleting")
    assert "deletion" not in world.status(TOPIC, "t")


def set_status(world: ShellWorld, **status: object) -> None:
    """Replace the Topic's status, as a restored backup does."""
    body = world.server.find(TOPIC, "t")
    assert body is not None
    world.services.objects.put(
        world.server.replace_status("user", TOPIC, {**body, "status": status})
    )


async def test_topic_with_partitions_has_its_grace_period_although_its_status_is_lost(
    world: ShellWorld, clock: Clock
) -> None:
    delete(world, clock)
    set_status(world)
    topics = TopicReconciler(world.services)
    for _ in range(2):
        await topics.reconcile(T)
    assert not world.services.state.tombstones
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("True", "DeletionPending")
    assert world.status(TOPIC, "t")["topicId"]


async def test_topic_that_never_existed_is_deleted_at_once(world: ShellWorld, clock: Clock) -> None:
    world.make_topic("u", topicName="t", deletionGracePeriod="24h")
    topics, key = TopicReconciler(world.services), ShellWorld.key(TOPIC, "u")
    await topics.reconcile(key)
    assert world.condition(TOPIC, "u", "Stalled")[1] == "NameTaken"
    world.delete(TOPIC, "u")
    await topics.reconcile(key)
    assert world.server.find(TOPIC, "u") is None


async def test_restored_status_of_a_started_deletion_does_not_end_a_grace_period(
    world: ShellWorld, clock: Clock
) -> None:
    topics = TopicReconciler(world.services)
    status = world.status(TOPIC, "t")
    set_status(world, **status, deletion={"due": "2020-01-01T00:00:00Z", "started": True})
    await topics.reconcile(T)
    assert "deletion" not in world.status(TOPIC, "t")
    delete(world, clock)
    await topics.reconcile(T)
    assert not world.services.state.tombstones


async def test_released_topic_that_another_finalizer_holds_stays_listed_as_left_behind(
    world: ShellWorld, clock: Clock
) -> None:
    topics = TopicReconciler(world.services)
    body = world.server.find(TOPIC, "t")
    assert body is not None
    finalizers = [*body["metadata"]["finalizers"], "example.com/audit"]
    held = {**body, "metadata": {**body["metadata"], "finalizers": finalizers}}
    world.services.objects.put(world.server.replace("user", TOPIC, held))
    delete(world, clock)
    world.edit(TOPIC, "t", deletionPolicy="Orphan")
    await topics.reconcile(T)
    # The manifest is applied again while the released object still exists.
    world.edit(TOPIC, "t", deletionPolicy="Delete")
    await topics.reconcile(T)
    await ClusterReconciler(world.services).reconcile(world.services.cluster_key)
    assert world.status(CLUSTER, "main")["leftBehind"]
