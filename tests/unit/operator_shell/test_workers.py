"""A worker's reaction to exceptions of a reconciler and to objects that other writers have
changed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.unit.operator_shell.shell_world import ShellWorld
from tidemark_operator.background import BackgroundTasks
from tidemark_operator.kube.errors import (
    ApiServerUnavailable,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
)
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC, Key
from tidemark_operator.leadership.terms import ControllerFenced, NotLeading, TermEnded
from tidemark_operator.reconcile import workers as workers_module
from tidemark_operator.reconcile.broker_reconciler import BrokerReconciler
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.reconcile.workers import LastPass, Workers
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.slices.committer import DecisionFailed

T = ShellWorld.key(TOPIC, "t")


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster()
    made.make_topic()
    async with made.term():
        yield made


async def outcome(world: ShellWorld, error: BaseException | None) -> str:
    """Return the result of one turn with the Topic."""

    async def reconcile(key: Key) -> float | None:
        if error is not None:
            raise error
        return 60.0

    workers = Workers(world.services, {TOPIC.kind: reconcile}, LastPass())
    return await workers._one(T)


async def test_failed_key_is_retried_and_the_worker_continues(world: ShellWorld) -> None:
    for error in (
        KeyError("a fault of ours"),
        ApiServerUnavailable(503, "busy", 2.0),
        Invalid(422, "no"),
    ):
        assert await outcome(world, error) == "error"
    assert await outcome(world, None) == "done"
    assert world.services.queue._due[T] > 0


@pytest.mark.parametrize(
    ("error", "tries", "reason"),
    [
        (Invalid(422, "replicas: too many"), 3, "WriteRefused"),
        (Forbidden(403, "topics/status is forbidden"), 3, "AccessDenied"),
        (Conflict(409, "modified"), 8, "Contended"),
        (InvalidResource("spec.partitions is no number"), 3, "ObjectUnreadable"),
        (DecisionFailed("slice 3 cannot be written"), 3, "DecisionNotStored"),
        (KeyError("a fault of ours"), 3, "InternalError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_repeated_failure_is_reported_once_and_withdrawn(
    world: ShellWorld, error: Exception, tries: int, reason: str
) -> None:
    workers, failing = Workers(world.services, {}, LastPass()), [error]

    async def reconcile(key: Key) -> float | None:
        for item in failing:
            raise item
        return await TopicReconciler(world.services).reconcile(key)

    # A transient error is not worth a condition, so the first failures are silent.
    workers._reconcilers = {TOPIC.kind: reconcile}
    for _ in range(tries - 1):
        await workers._one(T)
    assert world.events.reasons == []
    for _ in range(2):
        await workers._one(T)
    assert world.events.reasons == [reason]
    status, found, message = world.condition(TOPIC, "t", "Stalled")
    assert (status, found) == ("True", reason)
    assert str(error) in message
    # The cause disappears, which clears the condition.
    failing.clear()
    await workers._one(T)
    assert world.condition(TOPIC, "t", "Stalled")[:2] == ("False", "Progressing")
    # The same problem later is reported again.
    failing.append(error)
    for _ in range(tries):
        await workers._one(T)
    # The topic itself waits for a broker, which is reported when the topic is reconciled.
    assert world.events.reasons == [reason, "BrokersMissing", reason]


async def test_a_server_that_does_not_answer_receives_no_report(world: ShellWorld) -> None:
    world.journal.clear()
    for _ in range(9):
        await outcome(world, ApiServerUnavailable(503, "busy", 2.0))
    assert world.journal == []


async def test_a_problem_without_a_condition_becomes_an_event(world: ShellWorld) -> None:
    # The condition itself cannot be written, so only an Event is left.
    world.api.fail("replace_status Topic", Forbidden(403, "no"), times=9)
    workers = Workers(
        world.services, {TOPIC.kind: TopicReconciler(world.services).reconcile}, LastPass()
    )
    for _ in range(5):
        assert await workers._one(T) == "error"
    assert world.events.reasons == ["AccessDenied"]


async def test_condition_that_could_not_be_written_is_written_after_the_next_failure(
    world: ShellWorld,
) -> None:
    # The first attempt to write the condition meets a conflict.
    world.api.fail("replace_status Topic", Conflict(409, "modified"))

    async def reconcile(_: Key) -> float | None:
        raise KeyError("a fault of ours")

    workers = Workers(world.services, {TOPIC.kind: reconcile}, LastPass())
    for _ in range(4):
        await workers._one(T)
    assert world.condition(TOPIC, "t", "Stalled")[:2] == ("True", "InternalError")
    assert world.events.reasons == ["InternalError"]


async def test_an_object_that_this_version_cannot_read_is_marked(world: ShellWorld) -> None:
    """The object may belong to a later version, so the message does not name another owner."""
    reconcilers: dict[str, Callable[[Key], Awaitable[float | None]]] = {
        TOPIC.kind: TopicReconciler(world.services).reconcile,
        BROKER.kind: BrokerReconciler(world.services, world.reflector).reconcile,
        CLUSTER.kind: ClusterReconciler(world.services).reconcile,
    }
    workers = Workers(world.services, reconcilers, LastPass())
    base = {"clusterRef": {"name": "main"}}
    # Each object has a value that this version's schema does not allow.
    world.make(TOPIC, "u", base | {"partitions": "many", "replicationFactor": 1})
    world.make(BROKER, "b", base | {"nodeId": 7, "workload": "Cloud"})
    world.edit(CLUSTER, "main", config={"num.partitions": ["none"]})
    keys = [(TOPIC, "u"), (BROKER, "b"), (CLUSTER, "main")]
    for kind, name in keys:
        for _ in range(3):
            assert await workers._one(world.key(kind, name)) == "error"
        assert world.condition(kind, name, "Stalled")[:2] == ("True", "ObjectUnreadable")
    # The users correct all three objects.
    world.edit(CLUSTER, "main", config={})
    world.edit(TOPIC, "u", partitions=1)
    world.edit(BROKER, "b", workload="External")
    for kind, name in keys:
        for _ in range(2):
            assert await workers._one(world.key(kind, name)) == "done"
        assert world.condition(kind, name, "Stalled")[0] == "False"


async def test_consecutive_changes_of_an_object_are_not_delayed(
    world: ShellWorld,
) -> None:
    """Each attempt meets a new resourceVersion, so that the conflicts are no failure."""
    queue = world.services.queue
    # The server's object changes before each attempt.
    for number in range(7):
        world.server.edit(TOPIC, "t", {"partitions": number + 2})
        assert await outcome(world, Conflict(409, "modified")) == "retry"
    assert queue.failures(T) == 7
    assert 0 < queue._due[T] - asyncio.get_running_loop().time() <= workers_module.CHANGED_S
    # The next conflict comes without a change: now the back-off applies.
    queue._due.clear()
    await outcome(world, Conflict(409, "modified"))
    assert queue._due[T] - asyncio.get_running_loop().time() > 10, "nothing has changed"


async def test_change_delivered_before_the_reread_counts_as_change(world: ShellWorld) -> None:
    """Two changes in a row must not wait half a minute because the watch was quicker."""
    workers = Workers(world.services, {}, LastPass())

    async def reconcile(key: Key) -> float | None:
        # The watch delivers the change while the reconciler still works on the old object.
        world.edit(TOPIC, "t", partitions=world.known(TOPIC, "t")["spec"]["partitions"] + 1)
        raise Conflict(409, "modified")

    workers._reconcilers = {TOPIC.kind: reconcile}
    for _ in range(7):
        assert await workers._one(T) == "retry"
        due_s = world.services.queue._due.pop(T) - asyncio.get_running_loop().time()
        assert due_s <= workers_module.CHANGED_S


async def test_after_a_conflict_the_newest_object_is_read(world: ShellWorld) -> None:
    # The watch has not delivered this change yet.
    world.server.edit(TOPIC, "t", {"partitions": 3})
    assert world.known(TOPIC, "t")["spec"]["partitions"] == 1
    assert await outcome(world, Conflict(409, "modified")) == "retry"
    assert world.known(TOPIC, "t")["spec"]["partitions"] == 3
    assert world.services.state.topics["ns/t"].partitions == 3


async def test_an_object_deleted_after_a_conflict_is_forgotten(world: ShellWorld) -> None:
    world.server.delete("user", TOPIC, "t")
    await outcome(world, Conflict(409, "modified"))
    assert world.services.objects.get(T) is None
    assert "ns/t" not in world.services.state.topics
    with pytest.raises(NotFound):
        await world.services.client.replace_status(TOPIC, T, {})


async def test_end_of_the_term_or_a_higher_epoch_ends_the_worker(
    world: ShellWorld,
) -> None:
    with pytest.raises(NotLeading):
        await outcome(world, NotLeading("lost"))
    with pytest.raises(ControllerFenced):
        await outcome(world, Invalid(422, "STALE_CONTROLLER_EPOCH: 2 is higher"))


async def test_a_worker_serves_the_queue(world: ShellWorld) -> None:
    seen: list[Key] = []

    async def reconcile(key: Key) -> float | None:
        seen.append(key)
        # The second key ends the term, so that the worker returns.
        if len(seen) == 2:
            raise TermEnded("enough")
        return None

    reconcilers: dict[str, Callable[[Key], Awaitable[float | None]]] = {
        TOPIC.kind: reconcile,
        CLUSTER.kind: reconcile,
    }
    with pytest.raises(TermEnded):
        await Workers(world.services, reconcilers, LastPass()).work()
    assert set(seen) == {T, world.services.cluster_key}


# ---------------------------------------------------------------- object cache


async def test_watch_event_of_an_own_write_is_no_change(world: ShellWorld) -> None:
    written = await world.services.statuses.write(TOPIC, T, {"observedGeneration": 1})
    assert world.known(TOPIC, "t") == written
    assert not world.services.objects.put(dict(written))


async def test_list_reports_changes_that_the_watch_missed(world: ShellWorld) -> None:
    world.server.edit(TOPIC, "t", {"partitions": 2})
    world.server.create("user", TOPIC, "ns", {**world.known(TOPIC, "t"), "metadata": {"name": "u"}})
    changed = await world.services.client.relist(TOPIC, "ns")
    assert {key.name for key in changed} == {"t", "u"}
    assert world.services.state.topics["ns/t"].partitions == 2
    assert "ns/u" in world.services.state.topics
    # The watch missed both changes, so it counts as silent until it delivers them.
    silent = world.services.client._echoes.silent()
    assert silent is not None
    assert silent[0] == TOPIC.kind, "its watch has yet to bring them"
    assert await world.services.client.relist(BROKER, "ns") == []


async def test_new_defaults_of_the_cluster_reach_every_topic(world: ShellWorld) -> None:
    world.journal.clear()
    world.edit(CLUSTER, "main", config={"log.retention.ms": "1000"})
    assert world.services.state.topics["ns/t"].config["retention.ms"] == "1000"
    assert world.journal == ["published brokers"]


async def test_paused_topic_keeps_its_configuration(world: ShellWorld) -> None:
    world.annotate(TOPIC, "t", **{"tidemark.dev/paused": "true"})
    world.edit(TOPIC, "t", config={"retention.ms": "1"})
    assert "retention.ms" not in world.services.state.topics["ns/t"].config


# ---------------------------------------------------------------- background tasks


async def test_named_background_task_runs_once_and_close_awaits_it() -> None:
    tasks, begun = BackgroundTasks(), asyncio.Event()
    ended: list[str] = []

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            ended.append("ended")

    assert tasks.spawn("a", work())
    assert not tasks.spawn("a", work())
    await begun.wait()
    await tasks.close()
    assert ended == ["ended"]


async def test_failed_background_task_is_logged_and_can_be_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = BackgroundTasks()

    async def fails() -> None:
        raise KeyError("a fault of ours")

    tasks.spawn("a", fails())
    await asyncio.sleep(0.01)
    assert "a failed" in caplog.text
    assert tasks.spawn("a", fails())
    await asyncio.sleep(0.01)
