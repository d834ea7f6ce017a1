"""Rate over the last time windows, and the throttle time that reduces it to a quota.

The arithmetic is that of Kafka's clients (``SampledStat``, ``Rate`` and ``QuotaUtils``), so
throttle times equal Kafka's. With fewer windows than configured, usage is spread over all but one
of them. A burst after silence therefore counts as ten seconds' worth, not as an unbounded rate.
"""

import asyncio
import collections
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemark.lru import Lru
from tidemark_broker.lock_order import LockRank, ordered_async_lock, ordered_lock

K = TypeVar("K", bound=Hashable)

#: Longest pause between two checks of a byte rate, as in Kafka's ``RLMQuotaManager``.
_STEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Windows:
    """Kafka's ``quota.window.num`` and ``quota.window.size.seconds``."""

    count: int = 11
    size_s: float = 1.0

    @property
    def full_s(self) -> float:
        """Minimum time over which a rate is computed."""
        return (self.count - 1) * self.size_s


class WindowedRate:
    """Rate of one client. Times in seconds of a monotonic clock."""

    __slots__ = ("_began", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        #: Start of a window and usage in it, oldest first.
        self._began: collections.deque[tuple[float, float]] = collections.deque()

    def record(self, amount: float, now_s: float) -> None:
        """Add usage to the current window."""
        self._forget(now_s)
        # Windows start with the first use, not at fixed times, as in SampledStat.
        if self._began and now_s - self._began[-1][0] < self._windows.size_s:
            start_s, used = self._began.pop()
            self._began.append((start_s, used + amount))
        else:
            self._began.append((now_s, amount))

    def per_second(self, now_s: float) -> float:
        """Return the current rate."""
        self._forget(now_s)
        return sum(used for _, used in self._began) / self._elapsed_s(now_s)

    def throttle_s(self, limit: float, now_s: float) -> float:
        """Return how long nothing may be used until the rate is ``limit``; 0 below it."""
        rate = self.per_second(now_s)
        return 0.0 if rate <= limit else (rate - limit) / limit * self._elapsed_s(now_s)

    def _forget(self, now_s: float) -> None:
        oldest_s = now_s - self._windows.count * self._windows.size_s
        while self._began and self._began[0][0] <= oldest_s:
            self._began.popleft()

    def _elapsed_s(self, now_s: float) -> float:
        size_s = self._windows.size_s
        elapsed_s = now_s - self._began[0][0] if self._began else 0.0
        # Missing windows count as elapsed, which dampens bursts after silence.
        missing = self._windows.count - 1 - int(elapsed_s / size_s)
        return elapsed_s + max(0, missing) * size_s


class WindowedRates(Generic[K]):
    """Rates of many clients. At most ``keys_max`` are remembered.

    The least recently active one is forgotten first, which only forgives its past.
    """

    def __init__(self, windows: Windows, keys_max: int) -> None:
        self._windows = windows
        self._rates: Lru[K, WindowedRate] = Lru(keys_max)

    def __len__(self) -> int:
        return len(self._rates)

    def of(self, key: K) -> WindowedRate:
        """Return the rate of a client, which is empty at first."""
        rate = self._rates.get(key)
        if rate is None:
            rate = WindowedRate(self._windows)
            self._rates.put(key, rate)
            self._rates.evict()
        return rate


class ByteRateQuota:
    """Byte rate of all transfers of one kind. ``record`` may be called by any thread.

    ``throttled`` receives the seconds of each wait. ``now`` returns monotonic seconds.
    """

    def __init__(
        self,
        bytes_per_s: int,
        windows: Windows | None = None,
        throttled: Callable[[float], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = bytes_per_s
        self._rate = WindowedRate(windows or Windows())
        self._lock = ordered_lock(LockRank.LEAF)
        self._order = ordered_async_lock(LockRank.COPY_QUOTA)
        self._throttled = throttled
        self._now = now

    def record(self, size_bytes: int) -> float:
        """Count transferred bytes. Return the seconds to pause, 0 below the quota."""
        with self._lock:
            now_s = self._now()
            if size_bytes:
                self._rate.record(size_bytes, now_s)
            return self._rate.throttle_s(self._limit, now_s)

    async def take(self, size_bytes: int) -> None:
        """Wait until the rate is below the quota, and count the bytes as a whole.

        A transfer larger than the windows permit passes too, and makes the next one wait.
        """
        # One transfer at a time is admitted, in order, so that none starves.
        async with self._order:
            await self.wait(float("inf"))
            self.record(size_bytes)

    async def wait(self, deadline_s: float) -> None:
        """Wait until the rate is below the quota.

        ``TimeoutError`` at ``deadline_s`` (of ``now``).
        """
        while throttle_s := self.record(0):
            left_s = deadline_s - self._now()
            if left_s <= 0:
                raise TimeoutError
            # Rechecked within a second, since other transfers change the rate.
            pause_s = min(throttle_s, left_s, _STEP_S)
            self._throttled(pause_s)
            await asyncio.sleep(pause_s)
