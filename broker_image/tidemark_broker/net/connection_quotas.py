"""Who may open a further connection: each address so many at once, and so many in a while.

It is asked before a handshake, which is what a connection costs most. A connection that is refused
does not count: whoever was refused gets in once it comes less often, however often it tried.
"""

import time
from collections import Counter
from collections.abc import Callable

from tidemark.lru import Lru
from tidemark_broker.quotas.rate import WindowedRate, Windows

#: So many addresses are remembered that have opened connections lately.
ADDRESSES_MAX = 10_000


class Newcomers:
    """Of all listeners for clients. ``per_address_max``: ``max.connections.per.ip``;
    ``rate_per_address_max``: new ones a second, over all windows."""

    def __init__(
        self,
        *,
        per_address_max: int,
        rate_per_address_max: int,
        windows: Windows | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_address_max = per_address_max
        self._rate_max = rate_per_address_max
        self._windows = windows or Windows()
        self._now = now
        self._open: Counter[str] = Counter()
        self._rates: Lru[str, WindowedRate] = Lru(ADDRESSES_MAX)

    def refusal(self, address: str) -> str | None:
        """Why no further connection of that address is taken; None: it is, and counts. To be told
        of its end by :meth:`left`."""
        if self._open[address] >= self._per_address_max:
            return f"it has {self._per_address_max} connections already"
        rate, now_s = self._rate(address), self._now()
        if rate.per_second(now_s) >= self._rate_max:
            return f"it opens more than {self._rate_max} connections a second"
        rate.record(1, now_s)
        self._open[address] += 1
        return None

    def left(self, address: str) -> None:
        """One of its connections is gone."""
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]

    def _rate(self, address: str) -> WindowedRate:
        rate = self._rates.get(address)
        if rate is None:
            rate = WindowedRate(self._windows)
            self._rates.put(address, rate)
            self._rates.evict()
        return rate
