"""A hung leader delays only the RecordDeletions of its own partitions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.loop_turns import many_turns
from tests.unit.operator_shell.shell_world import FakeEngine, ShellWorld
from tests.unit.operator_shell.test_record_deletion_reconciler import deleted, points
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.kube.kinds import RECORD_DELETION, TOPIC
from tidemark_operator.reconcile.record_deletion_reconciler import (
    AT_ONCE,
    LeaderQuerySlots,
    RecordDeletionReconciler,
)
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.reconcile.workers import LastPass, Workers

KEY = ShellWorld.key(RECORD_DELETION, "d")
#: A real term has more workers. The mechanism is the same.
WORKERS = 100
#: Seconds until the test is given up, however busy the machine is.
LONG_S = 60


class HangingEngine(FakeEngine):
    """Engine whose brokers in ``hung`` do not answer before :meth:`resume`."""

    def __init__(self, journal: list[str]) -> None:
        super().__init__(journal)
        self.hung: set[int] = set()
        self._resumed = asyncio.Event()

    def resume(self) -> None:
        self.hung.clear()
        self._resumed.set()

    async def _answer(self, method: str, node_id: int, request: Any) -> Any:
        if node_id in self.hung:
            await self._resumed.wait()
        return await super()._answer(method, node_id, request)


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    """World with one topic on each of two brokers."""
    made = ShellWorld()
    made.engine = HangingEngine(made.journal)
    made.engine.answers = {
        "deletion_points": points,
        "delete_records": deleted,
    }
    made.make_cluster()
    async with made.term():
        for node_id in (1, 2):
            made.make_broker(node_id)
            await made.start_broker(node_id)
        # With one partition each, the topics are placed on different brokers.
        for name in ("t", "u"):
            made.make_topic(name)
            await TopicReconciler(made.services).reconcile(made.key(TOPIC, name))
        yield made


def request_deletion(world: ShellWorld, name: str, topic: str) -> None:
    spec = {"topicRef": {"name": topic}, "partitions": [{"partition": 0, "beforeOffset": 40}]}
    world.make(RECORD_DELETION, name, spec)
    world.services.queue.add(world.key(RECORD_DELETION, name))


@pytest.fixture
async def working(world: ShellWorld) -> AsyncIterator[None]:
    services = world.services
    reconcilers = {
        RECORD_DELETION.kind: RecordDeletionReconciler(services).reconcile,
        TOPIC.kind: TopicReconciler(services).reconcile,
    }
    workers = Workers(services, reconcilers, LastPass())
    tasks = [asyncio.create_task(workers.work()) for _ in range(WORKERS)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def succeeded(world: ShellWorld) -> set[str]:
    bodies = world.server.of_kind(RECORD_DELETION)
    names = {body["metadata"]["name"] for body in bodies if body.get("status")}
    return {
        name for name in names if world.condition(RECORD_DELETION, name, "Succeeded")[0] == "True"
    }


@pytest.mark.usefixtures("working")
async def test_deletions_waiting_for_a_hung_leader_leave_workers_free(
    world: ShellWorld,
) -> None:
    engine = world.engine
    assert isinstance(engine, HangingEngine)
    (hung,) = {row.leader for row in world.services.state.all_rows() if row.name == "t"}
    engine.hung = {hung}
    # More deletions of the hung leader's topic than there are workers.
    waiting = {f"t-{number}" for number in range(WORKERS + 50)}
    for name in waiting:
        request_deletion(world, name, "t")
    request_deletion(world, "of-another", "u")
    async with asyncio.timeout(LONG_S):
        while "of-another" not in succeeded(world) or world.services.queue.depth:
            await many_turns()
    # Only the requests in flight occupy a worker, the others wait outside the queue.
    assert world.services.queue.running <= AT_ONCE
    conditions = [
        world.condition(RECORD_DELETION, name, "Succeeded")
        for name in waiting
        if world.status(RECORD_DELETION, name)
    ]
    assert len(conditions) == len(waiting) - AT_ONCE
    assert {item[:2] for item in conditions} == {("Unknown", "Resolving")}
    assert f"broker {hung} has not answered" in conditions[0][2]
    # The leader resumes, and every waiting deletion completes.
    engine.resume()
    async with asyncio.timeout(LONG_S):
        while succeeded(world) != {*waiting, "of-another"}:
            await many_turns()


async def test_a_waiting_key_is_woken_when_a_slot_is_free() -> None:
    woken: list[object] = []
    turns = LeaderQuerySlots(woken.append)
    # Use up all slots of broker 1.
    begun = [turns.slot(1, ShellWorld.key(RECORD_DELETION, str(n))) for n in range(AT_ONCE)]
    for turn in begun:
        turn.__enter__()
    with pytest.raises(EngineUnavailable, match="broker 1"), turns.slot(1, KEY):
        pass
    with turns.slot(2, KEY):
        assert not woken
    # The first free slot wakes the key that waited.
    begun[0].__exit__(None, None, None)
    assert woken == [KEY]
    with turns.slot(1, KEY):
        pass
    assert woken == [KEY], "once"
