"""Rate over the last time windows, and the throttle time that reduces it to a limit.

The arithmetic is that of Kafka's clients (``SampledStat``, ``Rate`` and ``QuotaUtils``), so
throttle times equal Kafka's. With fewer windows than configured, usage is spread over all but one
of them. A burst after silence therefore counts as ten seconds' worth, not as an unbounded rate.
"""

import collections
from dataclasses import dataclass


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

    @property
    def is_empty(self) -> bool:
        """True if no usage is remembered."""
        return not self._began

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
