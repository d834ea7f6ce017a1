"""How much a broker may copy to the tier, and read from it, in the mean of the last windows
(KIP-956, Kafka's ``RLMQuotaManager``).

A copy waits until the rate is below the quota and is then counted as a whole, one after another: a
segment larger than what the windows allow passes too, and makes the next one wait. A read is
counted once it is done, since only then its size is known; while the quota is used up reads wait
for as long as their clients do, and are answered with nothing then, not with an error.
"""

import asyncio
import time
from collections.abc import Callable

from tidemark_broker.lock_order import LockRank, ordered_async_lock
from tidemark_broker.quotas.rate import WindowedRate, Windows

#: The quota is looked at again after so long at most, as in Kafka.
_STEP_S = 1.0


class RemoteQuota:
    """One of the two. Belongs to the broker's loop. ``throttled`` is told of the seconds for which
    somebody had to wait."""

    def __init__(
        self,
        bytes_per_s: int,
        windows: Windows,
        throttled: Callable[[float], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = bytes_per_s
        self._rate = WindowedRate(windows)
        self._now = now
        self._turn = ordered_async_lock(LockRank.COPY_QUOTA)
        self._throttled = throttled

    def record(self, size_bytes: int) -> None:
        """So many bytes were moved."""
        self._rate.record(size_bytes, self._now())

    async def take(self, size_bytes: int) -> None:
        """Wait for a turn below the quota, and count it."""
        async with self._turn:
            await self.wait(float("inf"))
            self.record(size_bytes)

    async def wait(self, deadline_s: float) -> None:
        """Until the rate is below the quota; ``TimeoutError`` if it is not by then (of ``now``)."""
        while rest_s := self._rate.rest_s(self._limit, self._now()):
            left_s = deadline_s - self._now()
            if left_s <= 0:
                raise TimeoutError
            pause_s = min(rest_s, left_s, _STEP_S)
            self._throttled(pause_s)
            await asyncio.sleep(pause_s)
