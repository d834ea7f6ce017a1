"""Limits of connections, by Kafka's broker keys, and quotas of new ones per address.

New connections are checked before the TLS handshake, which is the largest cost of a connection. A
rejected connection does not count, so a client is accepted as soon as it connects less often.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from tidemark_broker.admission.fair_share import UsageByClient
from tidemark_broker.admission.rate import WindowedRates, Windows
from tidemark_broker.config_entries import key_field, values_of

#: Number of recent addresses whose rates are remembered.
ADDRESSES_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of all connections.

    ``queued_request_bytes_max`` bounds unanswered requests of all connections, ``answer_bytes_max``
    their responses. ``unsent_bytes_max`` is per connection: above it no request starts.
    """

    request_bytes_max: int = key_field("socket.request.max.bytes")
    send_buffer_bytes: int = key_field("socket.send.buffer.bytes")
    idle_ms_max: int = key_field("connections.max.idle.ms")
    connections_max: int = key_field("max.connections")
    connections_per_address_max: int = key_field("max.connections.per.ip")
    connection_rate_per_address_max: int = key_field("tidemark.connection.creation.rate.per.ip")
    queued_request_bytes_max: int = key_field("queued.max.request.bytes")
    answer_bytes_max: int = key_field("tidemark.answers.bytes.max")
    requests_in_flight_max: int = key_field("tidemark.connection.requests.in.flight.max")
    unsent_bytes_max: int = key_field("tidemark.connection.unsent.bytes.max")

    @classmethod
    def of(cls, entries: Mapping[str, str]) -> Self:
        """Read the limits from Kafka's text configuration.

        Raises ``ConfigError`` that names the key.
        """
        return cls(**values_of(cls, entries))


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
