"""Limits of client listeners, by Kafka's broker keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tidemark.configuration.table import BROKER
from tidemark_broker.config_entries import integer_of

_KEYS = {
    "request_bytes_max": "socket.request.max.bytes",
    "idle_ms_max": "connections.max.idle.ms",
    "connections_max": "max.connections",
    "connections_per_address_max": "max.connections.per.ip",
    "connection_rate_per_address_max": "tidemark.connection.creation.rate.per.ip",
    "queued_request_bytes_max": "queued.max.request.bytes",
    "answer_bytes_max": "tidemark.answers.bytes.max",
    "requests_in_flight_max": "tidemark.connection.requests.in.flight.max",
    "unsent_bytes_max": "tidemark.connection.unsent.bytes.max",
}


def _default(field: str) -> Any:
    return BROKER[_KEYS[field]].default_value


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Limits of all connections.

    ``queued_request_bytes_max`` bounds unanswered requests of all connections, ``answer_bytes_max``
    their answers. ``unsent_bytes_max`` is per connection: above it no request starts.
    """

    request_bytes_max: int = _default("request_bytes_max")
    idle_ms_max: int = _default("idle_ms_max")
    connections_max: int = _default("connections_max")
    connections_per_address_max: int = _default("connections_per_address_max")
    connection_rate_per_address_max: int = _default("connection_rate_per_address_max")
    queued_request_bytes_max: int = _default("queued_request_bytes_max")
    answer_bytes_max: int = _default("answer_bytes_max")
    requests_in_flight_max: int = _default("requests_in_flight_max")
    unsent_bytes_max: int = _default("unsent_bytes_max")

    @classmethod
    def of(cls, entries: Mapping[str, str]) -> Self:
        """Read the limits from Kafka's text configuration.

        Raises ``ConfigError`` that names the key.
        """
        return cls(**{field: integer_of(entries, key) for field, key in _KEYS.items()})
