"""``log.cleaner.io.max.bytes.per.second``: what all cleanings together read and write."""

import threading
import time
from collections.abc import Callable

from tidemark.configuration.values import INT64_MAX
from tidemark_broker.quotas.rate import WindowedRate, Windows

#: How long one sleeps at most before it looks whether it is to stop.
_SLEEP_S = 0.5


class IoThrottle:
    """Any thread."""

    def __init__(
        self,
        bytes_per_s: int,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit = bytes_per_s
        self._rate = WindowedRate(Windows())
        self._lock = threading.Lock()
        self._now = now
        self._sleep = sleep

    def moved(self, size_bytes: int) -> None:
        """So many bytes were read or written; blocks while that is too much."""
        if self._limit == INT64_MAX:
            return
        with self._lock:
            now_s = self._now()
            self._rate.record(size_bytes, now_s)
            rest_s = self._rate.rest_s(self._limit, now_s)
        if rest_s:
            self._sleep(min(rest_s, _SLEEP_S))
