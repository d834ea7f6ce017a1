"""The operator is killed at every call that changes something in Kubernetes or in Kafka, in each
flow. The next operator completes the change with the same result (invariant 20).

``make kafka-kills`` tries every call twice: before it takes effect, and before its answer comes. Of
a flow the quick test takes one way for each call.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable

import pytest

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.killable_operator import Fate, hurry, operator
from tests.integration.kafka_engine.record_production import SMALL, offset, produce
from tests.integration.kafka_engine.test_moves import is_unthrottled, replicas
from tests.integration.kafka_engine.test_topics import own, partitions
from tests.integration.operator.cluster_world import condition_of
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.values import EARLIEST
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.kinds import RECORD_DELETION, TOPIC, Json

pytestmark = pytest.mark.full

EVERY = bool(os.environ.get("KAFKA_KILLS"))
CALLS_MAX = 30
GOAL_S = 40.0


class KilledFlow:
    """Initial state, change and end condition of one topic."""

    def __init__(self, world: KafkaWorld, admin: Admin, bootstrap: tuple[str, ...]) -> None:
        self.world, self.admin, self.bootstrap = world, admin, bootstrap

    async def topic(self, name: str) -> Json:
        return (await self.world.get(TOPIC, name)).get("status") or {}  # type: ignore[no-any-return]

    async def is_ready(self, name: str) -> bool:
        body = await self.world.get(TOPIC, name)
        ready = condition_of(body.get("status") or {}, "Ready")
        generation = body["metadata"]["generation"]
        return (ready.get("status"), ready.get("observedGeneration")) == ("True", generation)

    async def before(self, name: str) -> None:
        await self.world.create_topic(name, 1, 2, config={"flush.ms": "5"})

    async def ask(self, name: str) -> None:
        raise NotImplementedError

    async def done(self, name: str) -> bool:
        raise NotImplementedError


class Created(KilledFlow):
    async def before(self, name: str) -> None: ...

    async def ask(self, name: str) -> None:
        await self.world.create_topic(
            name, 2, 2, config={"flush.ms": "5"}, tiering={"enabled": True}
        )

    async def done(self, name: str) -> bool:
        return await self.is_ready(name) and (await self.topic(name))["tiering"]["epoch"] == 0


class Changed(KilledFlow):
    async def ask(self, name: str) -> None:
        config = {"flush.ms": None, "retention.ms": "7200000"}
        await self.world.patch(TOPIC, name, config=config, partitions=3)

    async def done(self, name: str) -> bool:
        return (
            await own(self.admin, name) == {"retention.ms": "7200000"}
            and await partitions(self.admin, name) == 3
            and await self.is_ready(name)
        )


class Disabled(KilledFlow):
    async def before(self, name: str) -> None:
        await self.world.create_topic(name, 1, 2, config=SMALL, tiering={"enabled": True})

    async def ask(self, name: str) -> None:
        tiering = {"enabled": False, "disablePolicy": "Delete"}
        await self.world.patch(TOPIC, name, tiering=tiering)

    async def done(self, name: str) -> bool:
        tiering = (await self.topic(name))["tiering"]
        return (tiering["state"], tiering["epoch"]) == ("Disabled", 1)


class Resized(KilledFlow):
    async def ask(self, name: str) -> None:
        await self.world.patch(TOPIC, name, replicationFactor=3)

    async def done(self, name: str) -> bool:
        return await replicas(self.admin, name) == [3] and await is_unthrottled(
            self.world, self.admin, name
        )


class RecordDeletionFlow(KilledFlow):
    async def before(self, name: str) -> None:
        await super().before(name)

    async def ask(self, name: str) -> None:
        await produce(self.bootstrap, name, 0, b"1", b"2")
        await self.world.create_deletion(name, name, all={"beforeOffset": -1})

    async def done(self, name: str) -> bool:
        status = (await self.world.get(RECORD_DELETION, name)).get("status") or {}
        succeeded = condition_of(status, "Succeeded").get("status")
        return succeeded == "True" and await offset(self.admin, name, 0, EARLIEST) == 2


class Deleted(KilledFlow):
    async def ask(self, name: str) -> None:
        await self.world.delete(TOPIC, name)

    async def done(self, name: str) -> bool:
        try:
            await self.topic(name)
        except NotFound:
            return await partitions(self.admin, name) == 0
        return False


async def reached(goal: Callable[[], Awaitable[bool]], fate: Fate) -> bool:
    """Return whether the goal is reached before the operator dies."""
    async with asyncio.timeout(GOAL_S):
        while not fate.dead.is_set():
            if await goal():
                return True
            await asyncio.sleep(0.05)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        Created,
        Changed,
        Deleted,
        *(
            pytest.param(item, marks=pytest.mark.long)
            for item in (Disabled, Resized, RecordDeletionFlow)
        ),
    ],
)
async def test_next_operator_completes_the_change(
    world: KafkaWorld,
    admin: Admin,
    bootstrap: tuple[str, ...],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[KilledFlow],
) -> None:
    hurry(monkeypatch)
    flow = kind(world, admin, bootstrap)
    died: list[str] = []
    # Call by call, before it takes effect and before its answer.
    for number, takes_effect in itertools.product(range(1, CALLS_MAX), (False, True)):
        # The quick test alternates between the two.
        if not EVERY and takes_effect != bool(number % 2):
            continue
        topic = f"{name}-{number}-{int(takes_effect)}"
        await flow.before(topic)
        # Flows other than creation start with a Ready topic.
        if kind is not Created:
            none = Fate(topic, 0, takes_effect=False)
            async with operator(world, monkeypatch, none):
                assert await reached(lambda: flow.is_ready(topic), none)  # noqa: B023
        await flow.ask(topic)
        fate = Fate(topic, number, takes_effect=takes_effect)
        # The operator lives until the chosen call, or completes the change before it.
        async with operator(world, monkeypatch, fate):
            if await reached(lambda: flow.done(topic), fate):  # noqa: B023
                break
        died.append(fate.calls[number - 1])
        # Another operator finds what the dead one left.
        after = Fate(topic, 0, takes_effect=False)
        async with operator(world, monkeypatch, after):
            assert await reached(lambda: flow.done(topic), after), died  # noqa: B023
    else:
        raise AssertionError(f"it is never done without dying: {died}")
    # Some calls were killed, otherwise this test verified nothing.
    assert len(died) >= 2, "nothing was tried"
    print(f"{kind.__name__}: {len(died)} deaths, the last at {died[-1]}")
