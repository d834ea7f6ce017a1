"""Time of requests on the event loop, and the throttle time in their responses."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.user_states import quota, user_states
from tidemark_broker.admission.client_quotas import RequestQuotas
from tidemark_broker.api.client import Client
from tidemark_broker.security.user_store import UserStore


class WorkClock:
    """Clock that advances only by the time that the work takes."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class ThrottledResponse:
    throttle_time = timedelta(0)


class ThrottledRequest:
    """Client that may use one percent of the loop, and one of its requests."""

    def __init__(self) -> None:
        users = UserStore()
        # request_percentage=1: ten milliseconds per second.
        users.apply(user_states(quotas=(quota("ANONYMOUS", None, request=1),)))
        self.clock = WorkClock()
        quotas = Client("10.0.0.1:1", "PLAINTEXT", users).quotas("app")
        assert isinstance(quotas, RequestQuotas)
        quotas._now = self.clock
        self.quotas = quotas


async def test_processing_counts_and_waiting_does_not() -> None:
    one, woken = ThrottledRequest(), asyncio.Event()

    async def work() -> ThrottledResponse:
        one.clock.now_s += 0.1
        await woken.wait()
        one.clock.now_s += 0.005
        answer = ThrottledResponse()
        one.quotas.set_throttle_time(answer)
        return answer

    served = asyncio.create_task(one.quotas.timed(work()))
    await asyncio.sleep(0)
    # Time in which other requests run.
    one.clock.now_s += 1000
    woken.set()
    # 10.5 % of a second in ten, where 10 % are allowed: half a second above it.
    assert (await served).throttle_time == timedelta(milliseconds=500)
    assert one.quotas.throttle_s == pytest.approx(0.5)


async def test_a_failed_request_is_counted_and_its_error_propagates() -> None:
    one = ThrottledRequest()

    async def work() -> None:
        one.clock.now_s += 0.105
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await one.quotas.timed(work())
    assert one.quotas.throttle_s == pytest.approx(0.5)


async def test_a_cancelled_request_is_notified() -> None:
    one, cancelled = ThrottledRequest(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    served = asyncio.create_task(one.quotas.timed(work()))
    await asyncio.sleep(0)
    # The client has disconnected.
    served.cancel()
    with pytest.raises(asyncio.CancelledError):
        await served
    assert cancelled == [True]


async def test_a_response_without_throttle_time_is_not_changed() -> None:
    one = ThrottledRequest()

    async def work() -> object:
        one.clock.now_s += 1
        answer = object()
        one.quotas.set_throttle_time(answer)
        return answer

    await one.quotas.timed(work())
    assert one.quotas.throttle_s == 1.0


def test_an_unauthenticated_client_uses_no_quota() -> None:
    """Otherwise strangers could use up the quota of others. Their names are not verified yet."""
    users = UserStore()
    users.apply(user_states(quotas=(quota("", None, request=1),)))
    sasl: Any = object()
    client = Client("10.0.0.1:1", "OPEN", users, sasl=sasl)
    assert not client.has_quotas
    client.is_now("User:ann")
    assert client.has_quotas
