"""Throttle of ``log.cleaner.io.max.bytes.per.second`` over all cleanings."""

import time
from collections.abc import Callable

from tidemark.configuration.values import INT64_MAX
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.quotas.rate import WindowedRate, Windows


class IoThrottle:
    """Byte rate limit, for any thread."""

    def __init__(self, bytes_per_s: int, now: Callable[[], float] = time.monotonic) -> None:
        self._limit = bytes_per_s
        self._rate = WindowedRate(Windows())
        self._lock = ordered_lock(LockRank.LEAF)
        self._now = now

    def moved(self, size_bytes: int) -> float:
        """Account for ``size_bytes`` read or written; return the seconds to pause."""
        if self._limit == INT64_MAX:
            return 0.0
        with self._lock:
            now_s = self._now()
            if size_bytes:
                self._rate.record(size_bytes, now_s)
            return self._rate.throttle_s(self._limit, now_s)
