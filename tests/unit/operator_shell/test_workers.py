"""What a worker does with what a reconciler raises, and with objects that others have changed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.unit.operator_shell.shell_world import ShellWorld
from tidemark_operator.background import BackgroundTasks
from tidemark_operator.kube.errors import Conflict, Invalid, NotFound, Unavailable
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Key
from tidemark_operator.leadership.terms import ControllerFenced, NotLeading, TermEnded
from tidemark_operator.reconcile.workers import LastPass, Workers

T = ShellWorld.key(TOPIC, "t")


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster()
    made.make_topic()
    async with made.term():
        yield made


async def outcome(world: ShellWorld, error: BaseException | None) -> str:
    """Of one turn with the Topic."""

    async def reconcile(key: Key) -> float | None:
        if error is not None:
            raise error
        return 60.0

    workers = Workers(world.services, {TOPIC.kind: reconcile}, LastPass())
    return await workers._one(T)


async def test_whatever_fails_comes_again_and_never_ends_the_worker(world: ShellWorld) -> None:
    for error in (KeyError("a fault of ours"), Unavailable(503, "busy", 2.0), Invalid(422, "no")):
        assert await outcome(world, error) == "error"
    assert await outcome(world, None) == "done"
    assert world.services.queue._due[T] > 0


async def test_after_a_conflict_the_newest_object_is_read(world: ShellWorld) -> None:
    world.server.edit(TOPIC, "t", {"partitions": 3})
    assert world.known(TOPIC, "t")["spec"]["partitions"] == 1
    assert await outcome(world, Conflict(409, "modified")) == "retry"
    assert world.known(TOPIC, "t")["spec"]["partitions"] == 3
    assert world.services.state.topics["ns/t"].partitions == 3


async def test_an_object_that_is_gone_after_a_conflict_is_forgotten(world: ShellWorld) -> None:
    world.server.delete("user", TOPIC, "t")
    await outcome(world, Conflict(409, "modified"))
    assert world.services.objects.get(T) is None
    assert "ns/t" not in world.services.state.topics
    with pytest.raises(NotFound):
        await world.services.client.replace_status(TOPIC, T, {})


async def test_the_end_of_the_term_ends_the_worker_and_so_does_a_higher_epoch(
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


# ---------------------------------------------------------------- the store and its listener


async def test_the_echo_of_an_own_write_is_no_news(world: ShellWorld) -> None:
    written = await world.services.statuses.write(TOPIC, T, {"observedGeneration": 1})
    assert world.known(TOPIC, "t") is written
    assert not world.services.objects.put(dict(written))


async def test_a_list_finds_what_a_watch_has_missed(world: ShellWorld) -> None:
    world.server.edit(TOPIC, "t", {"partitions": 2})
    world.server.create("user", TOPIC, "ns", {**world.known(TOPIC, "t"), "metadata": {"name": "u"}})
    changed = await world.services.client.relist(TOPIC, "ns")
    assert {key.name for key in changed} == {"t", "u"}
    assert world.services.state.topics["ns/t"].partitions == 2
    assert "ns/u" in world.services.state.topics


async def test_new_defaults_of_the_cluster_reach_every_topic(world: ShellWorld) -> None:
    world.journal.clear()
    world.edit(CLUSTER, "main", config={"log.retention.ms": "1000"})
    assert world.services.state.topics["ns/t"].config["retention.ms"] == "1000"
    assert world.journal == ["published brokers"]


async def test_a_topic_keeps_the_configuration_with_which_it_was_paused(world: ShellWorld) -> None:
    world.annotate(TOPIC, "t", **{"tidemark.dev/paused": "true"})
    world.edit(TOPIC, "t", config={"retention.ms": "1"})
    assert "retention.ms" not in world.services.state.topics["ns/t"].config


# ---------------------------------------------------------------- work in the background


async def test_work_of_one_name_runs_once_at_a_time_and_its_end_is_waited_for() -> None:
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


async def test_work_that_fails_is_logged_and_may_be_begun_again(
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
