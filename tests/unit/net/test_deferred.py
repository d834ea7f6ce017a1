"""Results that are delivered later without a task: one end, errors, and cancellation."""

import asyncio

import pytest

from tidemark_broker.tasks import Deferred


async def test_an_error_of_the_receiver_is_passed_to_the_other_receiver() -> None:
    later: Deferred[int] = Deferred(pytest.fail)
    errors: list[BaseException] = []

    def receive(number: int) -> None:
        raise ValueError(f"cannot write {number}")

    later.then(receive, errors.append)
    later.deliver(7)
    assert [str(error) for error in errors] == ["cannot write 7"]
    # The work has ended, so there is nothing to give up.
    later.cancel()


async def test_a_cancelled_wait_gives_up_the_work_once() -> None:
    given_up: list[str] = []
    later: Deferred[int] = Deferred(lambda: given_up.append("work"))

    async def wait() -> int:
        return await later

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    later.cancel()
    assert given_up == ["work"]


async def test_a_task_delivers_its_result_or_its_error() -> None:
    async def work(number: int) -> int:
        if number < 0:
            raise ValueError(f"{number} is negative")
        return number

    async def of(number: int) -> int:
        later: Deferred[int] = Deferred()
        later.deliver_from(work(number))
        return await later

    assert await of(3) == 3
    with pytest.raises(ValueError, match="-1 is negative"):
        await of(-1)


async def test_a_cancelled_task_delivers_nothing() -> None:
    later: Deferred[None] = Deferred()
    later.then(pytest.fail, pytest.fail)
    task = later.deliver_from(asyncio.sleep(30))
    later.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
