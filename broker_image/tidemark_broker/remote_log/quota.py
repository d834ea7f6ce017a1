"""Quotas of a broker's copies to the tier and reads from it, as a mean over recent windows
(KIP-956, Kafka's ``RLMQuotaManager``).

A copy waits until the rate is below the quota, then counts as a whole, one after another. A segment
larger than the windows permit passes too, and makes the next one wait. A read is counted when it is
done, since only then its size is known. While the quota is exhausted, reads wait as long as their
clients do, and then return nothing instead of an error.
"""

import asyncio
import time
from collections.abc import Callable

from tidemark_broker.lock_order import LockRank, ordered_async_lock
from tidemark_broker.quotas.rate import WindowedRate, Windows

#: Longest pause between two checks of the quota, as in Kafka.
_STEP_S = 1.0


class RemoteQuota:
    """One of the two quotas, owned by the loop. ``throttled`` receives the seconds of each wait."""

    def __init__(
        self,
        bytes_per_s: int,
        windows: Windows,
        throttled: Callable[[float], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the quota; ``windows`` are the number and length of the windows of its rate."""
        self._limit = bytes_per_s
        self._rate = WindowedRate(windows)
        self._now = now
        self._turn = ordered_async_lock(LockRank.COPY_QUOTA)
        self._throttled = throttled

    def record(self, size_bytes: int) -> None:
        """Account for bytes that were transferred."""
        self._rate.record(size_bytes, self._now())

    async def take(self, size_bytes: int) -> None:
        """Wait for a turn below the quota, and account for the bytes."""
        # One copy at a time is admitted, in order, so that none starves.
        async with self._turn:
            await self.wait(float("inf"))
            self.record(size_bytes)

    async def wait(self, deadline_s: float) -> None:
        """Wait until the rate is below the quota.

        ``TimeoutError`` at ``deadline_s`` (of ``now``).
        """
        while throttle_s := self._rate.throttle_s(self._limit, self._now()):
            left_s = deadline_s - self._now()
            if left_s <= 0:
                raise TimeoutError
            # Rechecked within a second, since reads of others change the rate.
            pause_s = min(throttle_s, left_s, _STEP_S)
            self._throttled(pause_s)
            await asyncio.sleep(pause_s)
