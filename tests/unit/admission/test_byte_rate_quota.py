"""KIP-956: below the quota copies take turns, and reads wait as long as their clients."""

import asyncio
import itertools

import pytest

from tidemark_broker.admission.rate import ByteRateQuota, Windows

WINDOWS = Windows(count=3, size_s=0.02)


class CountedThrottle:
    """Quota with the total of its throttle times."""

    def __init__(self) -> None:
        self.throttled_s = 0.0
        self.quota = ByteRateQuota(1000, WINDOWS, self.add)

    def add(self, seconds: float) -> None:
        self.throttled_s += seconds


async def test_a_copy_above_the_quota_passes_and_the_next_one_waits() -> None:
    waits = CountedThrottle()
    await waits.quota.take(100)  # the windows of 0.04 s allow 40
    assert waits.throttled_s == 0
    await waits.quota.take(1)
    assert waits.throttled_s >= 0.04


async def test_waiting_copies_pass_one_at_a_time() -> None:
    waits, passed = CountedThrottle(), []

    async def copy(number: int) -> None:
        await waits.quota.take(60)
        passed.append((number, asyncio.get_running_loop().time()))

    await asyncio.gather(*(copy(number) for number in range(4)))
    assert [number for number, _ in passed] == [0, 1, 2, 3]
    # If all were released together the rate would be a multiple of the quota.
    gaps = [later - sooner for (_, sooner), (_, later) in itertools.pairwise(passed)]
    assert min(gaps) > 0.015  # 60 bytes are 60 ms of the quota, forgotten with their window


async def test_a_cancelled_wait_leaves_the_quota_to_the_next() -> None:
    waits = CountedThrottle()
    await waits.quota.take(100)
    waiting = asyncio.create_task(waits.quota.take(1))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(waits.quota.take(1), 5)


async def test_a_read_waits_until_its_deadline() -> None:
    now_s = 0.0
    quota = ByteRateQuota(10, Windows(), lambda _: None, now=lambda: now_s)
    await quota.wait(0.0)
    quota.record(1000)
    with pytest.raises(TimeoutError):
        await quota.wait(0.0)
