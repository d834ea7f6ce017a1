"""Late answers of the API server and Kafka, as on a busy machine.

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


class Late(Fate):
    """No process dies; writes take effect at once or late, and are answered late."""

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
async def test_no_throttle_stays_where_answers_come_late(
    world: KafkaWorld, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    await world.create_topic(name, 2, 1)
    async with operator(world, monkeypatch, Late(name, random.Random(5))):
        await world.ready(name)
        for factor in (3, 1, 2, 1, 3):
            await world.patch(TOPIC, name, replicationFactor=factor)
            await until(
                lambda: replicas(admin, name),
                lambda found: found == [factor] * 2,  # noqa: B023
            )
        await until(lambda: is_unthrottled(world, admin, name), lambda found: found)
        await asyncio.sleep(2)
        assert await is_unthrottled(world, admin, name)
