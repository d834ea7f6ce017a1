"""Changes that are applied twice, or whose answer is lost, count as done.

A change is applied twice if a broker forwards a request to a controller that dies before it
answers, and forwards it again to the next one. Only the second answer arrives.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.killable_operator import CHANGES, Fate, hurry, operator
from tests.integration.kafka_engine.test_killed_at_every_call import (
    Changed,
    Created,
    Deleted,
    Disabled,
    KilledFlow,
    RecordDeletionFlow,
    Resized,
    reached,
)
from tests.integration.operator.cluster_world import condition_of
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.errors import Unreachable
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.kinds import TOPIC

pytestmark = pytest.mark.full


class Twice(Fate):
    """No process dies; ``calls`` are those that were applied twice."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 0, takes_effect=True)

    async def call(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        if name in CHANGES:
            self.calls.append(name)
            await make()
        return await make()


class LostAnswer(Twice):
    """The first answer of each kind is lost."""

    async def call(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        answer = await make()
        if name in CHANGES and name not in self.calls:
            self.calls.append(name)
            raise Unreachable("the answer was lost")
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("how", [Twice, LostAnswer])
@pytest.mark.parametrize("kind", [Created, Changed, Deleted, Resized, Disabled, RecordDeletionFlow])
async def test_repeated_and_unanswered_changes_complete(
    world: KafkaWorld,
    admin: Admin,
    bootstrap: tuple[str, ...],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[KilledFlow],
    how: type[Twice],
) -> None:
    hurry(monkeypatch)
    flow, fate = kind(world, admin, bootstrap), how(name)
    stalled: list[str] = []

    async def done() -> bool:
        try:
            status = (await world.get(TOPIC, name)).get("status") or {}
        except NotFound:
            status = {}
        # A condition that requests intervention would be wrong.
        condition = condition_of(status, "Stalled")
        if condition.get("status") == "True":
            stalled.append(f"{condition['reason']}: {condition['message']}")
        return await flow.done(name)

    await flow.before(name)
    async with operator(world, monkeypatch, fate):
        if kind is not Created:
            assert await reached(lambda: flow.is_ready(name), fate)
        await flow.ask(name)
        assert await reached(done, fate)
    # The test is void if nothing was repeated.
    assert fate.calls
    assert not stalled
