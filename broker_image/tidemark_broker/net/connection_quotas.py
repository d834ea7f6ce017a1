"""Limits of new connections: concurrent ones and a rate, per address.

Checked before the TLS handshake, which is the largest cost of a connection. A rejected connection
does not count, so a client is accepted as soon as it connects less often.
"""

import time
from collections.abc import Callable

from tidemark_broker.admission.fair_share import UsageByClient
from tidemark_broker.admission.rate import WindowedRates, Windows

#: Number of recent addresses whose rates are remembered.
ADDRESSES_MAX = 10_000


class ConnectionQuotas:
    """Limits over all client listeners.

    ``per_address_max`` is ``max.connections.per.ip``. ``rate_per_address_max`` is new connections
    per second, averaged over all windows.
    """

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
        self._now = now
        self._open = UsageByClient()
        self._rates = WindowedRates[str](windows or Windows(), ADDRESSES_MAX)

    def refusal(self, address: str) -> str | None:
        """Return why a new connection of that address is rejected, or None if it is accepted.

        An accepted connection is counted. Its end must be reported to :meth:`remove`.
        """
        # The rate is not counted for a connection that is rejected for this limit.
        if self._open[address] >= self._per_address_max:
            return f"the address already has {self._per_address_max} connections, the limit"
        rate, now_s = self._rates.of(address), self._now()
        if rate.per_second(now_s) >= self._rate_max:
            return f"the address opens more than {self._rate_max} connections a second"
        rate.record(1, now_s)
        self._open.add(address, 1)
        return None

    def remove(self, address: str) -> None:
        """Uncount a closed connection."""
        if address in self._open:
            self._open.add(address, -1)
