"""Answers to many members of a group at once: other tasks run in between."""

import asyncio

from tidemark_broker.groups.group_coordinator import AT_ONCE, Answers


async def test_many_answers_are_sent_in_turns_and_in_order() -> None:
    loop, answers = asyncio.get_running_loop(), Answers()
    waiting = [loop.create_future() for _ in range(3 * AT_ONCE + 1)]
    # This client has disconnected.
    cancelled = waiting[5]
    cancelled.cancel()
    for number, item in enumerate(waiting):
        answers.into(item)(number)
    assert not waiting[0].done()
    answered = []
    while not waiting[-1].done():
        await asyncio.sleep(0)
        answered.append(sum(item.done() for item in waiting))
    assert answered[-1] == len(waiting)
    steps = [later - before for before, later in zip([0, *answered], answered, strict=False)]
    # The cancelled request counts as done from the first turn on.
    assert max(steps) <= AT_ONCE + 1
    assert [item.result() for item in waiting if item is not cancelled] == [
        number for number in range(len(waiting)) if number != 5
    ]


async def test_each_request_is_answered() -> None:
    loop, answers = asyncio.get_running_loop(), Answers()
    for value in ("a", "b"):
        waiting: asyncio.Future[str] = loop.create_future()
        answers.into(waiting)(value)
        async with asyncio.timeout(5):
            assert await waiting == value
