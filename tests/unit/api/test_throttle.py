"""Request time on the event loop, and the throttle time that its client receives."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.user_states import quota, user_states
from tidemark_broker.api.client import Client
from tidemark_broker.api.throttle import Throttle
from tidemark_broker.quotas.client_quotas import RequestQuotas
from tidemark_broker.security.user_store import UserStore


class Clock:
    """Clock that advances only by the time that the work takes."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Connection:
    def __init__(self) -> None:
        self.rests: list[float] = []

    def rest(self, for_s: float) -> None:
        self.rests.append(for_s)


class Answer:
    throttle_time = timedelta(0)


class Throttled:
    """A client that may use one percent of the loop, and one request of its."""

    def __init__(self) -> None:
        users = UserStore()
        users.apply(user_states(quotas=(quota("ANONYMOUS", None, request=1),)))
        self.connection, self.clock = Connection(), Clock()
        self.client = Client("10.0.0.1:1", "PLAINTEXT", users, connection=self.connection)
        quotas = self.client.quotas("app")
        assert isinstance(quotas, RequestQuotas)
        self.throttle = Throttle(self.client, quotas, self.clock)


async def test_steps_count_and_waits_do_not() -> None:
    one, woken = Throttled(), asyncio.Event()

    async def work() -> Answer:
        one.clock.now_s += 0.1
        await woken.wait()
        one.clock.now_s += 0.005
        answer = Answer()
        one.throttle.set_throttle_time(answer)
        return answer

    served = asyncio.create_task(one.throttle.serve(work()))
    await asyncio.sleep(0)
    one.clock.now_s += 1000
    woken.set()
    # 10.5 % of a second in ten, where 10 % are allowed: half a second above it.
    assert (await served).throttle_time == timedelta(milliseconds=500)
    assert one.connection.rests == [pytest.approx(0.5)]


async def test_a_failed_request_is_counted_and_its_error_propagates() -> None:
    one = Throttled()

    async def work() -> None:
        one.clock.now_s += 0.105
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await one.throttle.serve(work())
    assert one.connection.rests == [pytest.approx(0.5)]


async def test_a_cancelled_request_is_notified() -> None:
    one, heard = Throttled(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append(True)
            raise

    served = asyncio.create_task(one.throttle.serve(work()))
    await asyncio.sleep(0)
    served.cancel()
    with pytest.raises(asyncio.CancelledError):
        await served
    assert heard == [True]


async def test_an_answer_without_room_for_it_is_left_alone() -> None:
    one = Throttled()

    async def work() -> object:
        one.clock.now_s += 1
        answer = object()
        one.throttle.set_throttle_time(answer)
        return answer

    await one.throttle.serve(work())
    assert one.connection.rests == [1.0]


def test_an_unauthenticated_client_uses_no_quota() -> None:
    """Else strangers would use up everybody's: what they say of themselves is not believed."""
    users = UserStore()
    users.apply(user_states(quotas=(quota("", None, request=1),)))
    sasl: Any = object()
    client = Client("10.0.0.1:1", "OPEN", users, sasl=sasl)
    assert not client.has_quotas
    client.is_now("User:ann")
    assert client.has_quotas
