"""LateAnswers answers of the API server and Kafka, as on a busy machine.

The mover and a Topic's reconciler must not undo each other's settings and records, so that no
throttle remains without a record.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.killable_operator import Fate, hurry, operator
from tests.integration.kafka_engine.test_moves import is_unthrottled, replicas
from tests.integration.kafka_engine.waiting import until
from tidemark.kafka_client.admin import Admin
from tidemark_operator.kube.kinds import TOPIC

LATE_S = 0.8


class LateAnswers(Fate):
    """No process dies; writes take effect late or are answered late, at random."""

    def __init__(self, name: str, chance: random.Random) -> None:
        super().__init__(name, 0, takes_effect=True)
        self._chance = chance

    async def call(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        before_s, after_s = (self._chance.random() * LATE_S for _ in range(2))
        await asyncio.sleep(before_s)
        answer = await make()
        await asyncio.sleep(after_s)
        return answer


@pytest.mark.slow
@pytest.mark.long
async def test_late_answers_leave_no_throttle(
    world: KafkaWorld, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    await world.create_topic(name, 2, 1)
    async with operator(world, monkeypatch, LateAnswers(name, random.Random(5))):
        await world.ready(name)
        # Several changes in a row, while answers to earlier ones are still on their way.
        for factor in (3, 1, 2, 1, 3):
            await world.patch(TOPIC, name, replicationFactor=factor)
            await until(
                lambda: replicas(admin, name),
                lambda found: found == [factor] * 2,  # noqa: B023
            )
        await until(lambda: is_unthrottled(world, admin, name), lambda found: found)
        # LateAnswers answers must not set a throttle again.
        await asyncio.sleep(2)
        assert await is_unthrottled(world, admin, name)
