"""Many queries in one request, each with its own answer."""

import asyncio
from collections.abc import Mapping

import pytest

from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.kafka.cluster import Batches


async def test_requests_that_arrive_meanwhile_are_batched_by_weight() -> None:
    sent: list[list[str]] = []

    async def send(batch: Mapping[str, int]) -> Mapping[str, str]:
        sent.append(list(batch))
        await asyncio.sleep(0)
        return {key: key.upper() for key in batch}

    batches: Batches[str, int, str] = Batches(send, at_most=10, weigh=lambda weight: weight)
    weights = {"a": 6, "b": 4, "c": 1, "d": 99, "e": 1}
    answers = await asyncio.gather(*(batches.ask(key, weights[key]) for key in weights))
    assert answers == ["A", "B", "C", "D", "E"]
    # A query above the limit is sent alone.
    assert sent == [["a", "b"], ["c"], ["d"], ["e"]]
    await batches.close()


async def test_a_failed_batch_fails_for_its_requests_only() -> None:
    fails = True

    async def send(batch: Mapping[str, None]) -> Mapping[str, int]:
        if fails:
            raise EngineUnavailable("no engine is available")
        return {key: 1 for key in batch if key != "left out"}

    batches: Batches[str, None, int] = Batches(send, at_most=10)
    requests = [batches.ask("a", None), batches.ask("b", None)]
    found = await asyncio.gather(*requests, return_exceptions=True)
    assert [str(item) for item in found] == ["no engine is available"] * 2
    fails = False
    assert await batches.ask("a", None) == 1
    with pytest.raises(EngineUnavailable, match="no answer for left out"):
        await batches.ask("left out", None)
    await batches.close()
