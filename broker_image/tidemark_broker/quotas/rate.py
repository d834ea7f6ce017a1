"""How fast something goes over the last windows of time, and for how long it has to rest to come
down to a limit.

The arithmetic is Kafka's (``SampledStat``, ``Rate`` and ``QuotaUtils`` of its clients), so a client
is told to wait for as long as Kafka would tell it. What is measured with fewer full windows than
there are is taken as spread over all but one of them: what comes at once after a silence is a burst
of ten seconds' worth, not a rate without bounds.
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
        """The time over which a rate is at least taken."""
        return (self.count - 1) * self.size_s


class WindowedRate:
    """Of one who is measured. Times are seconds of one clock that does not go back."""

    __slots__ = ("_began", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        #: (start of a window, what was recorded in it), the oldest first
        self._began: collections.deque[tuple[float, float]] = collections.deque()

    def record(self, amount: float, now_s: float) -> None:
        """So much more was used."""
        self._forget(now_s)
        if self._began and now_s - self._began[-1][0] < self._windows.size_s:
            start_s, used = self._began.pop()
            self._began.append((start_s, used + amount))
        else:
            self._began.append((now_s, amount))

    def per_second(self, now_s: float) -> float:
        """The present rate."""
        self._forget(now_s)
        return sum(used for _, used in self._began) / self._elapsed_s(now_s)

    def rest_s(self, limit: float, now_s: float) -> float:
        """For how long nothing may be used, for the rate to be ``limit``; 0 below it."""
        rate = self.per_second(now_s)
        return 0.0 if rate <= limit else (rate - limit) / limit * self._elapsed_s(now_s)

    @property
    def is_empty(self) -> bool:
        """Was nothing recorded, of all that is remembered?"""
        return not self._began

    def _forget(self, now_s: float) -> None:
        oldest_s = now_s - self._windows.count * self._windows.size_s
        while self._began and self._began[0][0] <= oldest_s:
            self._began.popleft()

    def _elapsed_s(self, now_s: float) -> float:
        size_s = self._windows.size_s
        elapsed_s = now_s - self._began[0][0] if self._began else 0.0
        missing = self._windows.count - 1 - int(elapsed_s / size_s)
        return elapsed_s + max(0, missing) * size_s
