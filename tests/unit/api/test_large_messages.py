"""Limits on the large requests that are served at the same time, and recognition of large
responses."""

import asyncio
from dataclasses import dataclass

import pytest

from tidemark_broker.api.large_messages import LargeRequests, is_large


async def test_bytes_in_service_are_limited_in_first_in_first_out_order() -> None:
    large, begun, may_end = LargeRequests(400), [], asyncio.Event()

    async def request(number: int, size: int) -> None:
        async with large.turn(bytes(size), number % 2):
            begun.append(number)
            await may_end.wait()

    sizes = [90, 5000, 100, 100, 20, 90]  # a huge request counts as a quarter of the limit
    tasks = [asyncio.create_task(request(*item)) for item in enumerate(sizes)]
    await asyncio.sleep(0)
    # 90, 100 (for 5000), 100 and 100 bytes are in service. The fifth one waits.
    assert begun == [0, 1, 2, 3]
    may_end.set()
    await asyncio.gather(*tasks)
    assert begun == [0, 1, 2, 3, 4, 5]
    turns = large._turns
    assert (turns._left, turns._used, turns._waiting) == (400, {}, {})


async def test_a_large_request_delays_only_its_client() -> None:
    """120 such connections of one client once delayed another client's request by 16 s."""
    large, ended = LargeRequests(400), []

    async def request(who: str) -> None:
        async with large.turn(bytes(100), who):
            await asyncio.sleep(0)
        ended.append(who)

    tasks = [asyncio.create_task(request("bad")) for _ in range(120)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(request(who)) for who in ("good", "other", "good")]
    await asyncio.gather(*tasks)
    assert max(number for number, who in enumerate(ended) if who != "bad") < 15


async def test_a_cancelled_request_takes_no_turn() -> None:
    large = LargeRequests(400)

    async def request() -> None:
        async with large.turn(bytes(1000), "client"):
            await asyncio.sleep(60)

    tasks = [asyncio.create_task(request()) for _ in range(6)]
    await asyncio.sleep(0)
    tasks[3].cancel()  # waits for its turn
    tasks[0].cancel()  # is in service: its turn passes on
    await asyncio.sleep(0)
    tasks[2].cancel()  # has received the turn, but not started
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    turns = large._turns
    assert (turns._left, turns._used, turns._waiting) == (400, {}, {})
    async with asyncio.timeout(5), large.turn(b"x", "client"):
        pass


@dataclass
class TopicPart:
    name: str
    partitions: tuple[int, ...]


@dataclass
class TopicsResponse:
    topics: tuple[TopicPart, ...]


@dataclass
class NestedResponse:
    assignment: TopicsResponse


@dataclass
class GroupsResponse:
    groups: tuple[TopicsResponse, ...]


@pytest.mark.parametrize(
    ("topics", "partitions", "large"),
    [(0, 0, False), (1, 900, False), (1, 1100, True), (1100, 0, True), (600, 1, True)],
)
def test_a_response_is_large_by_the_number_of_its_elements(
    topics: int, partitions: int, large: bool
) -> None:
    answer = TopicsResponse(tuple(TopicPart("t", tuple(range(partitions))) for _ in range(topics)))
    assert is_large(answer) is large
    assert is_large(NestedResponse(answer)) is large
    assert is_large(GroupsResponse((answer,))) is large
    assert not is_large(None)
