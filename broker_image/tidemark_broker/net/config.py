"""Limits of the client listener, by Kafka's broker keys."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from tidemark.configuration.table import BROKER

_KEYS = {
    "request_bytes_max": "socket.request.max.bytes",
    "idle_ms_max": "connections.max.idle.ms",
    "connections_max": "max.connections",
    "queued_request_bytes_max": "queued.max.request.bytes",
    "requests_in_flight_max": "tidemark.connection.requests.in.flight.max",
    "unsent_bytes_max": "tidemark.connection.unsent.bytes.max",
}


def _default(field: str) -> Any:
    return BROKER[_KEYS[field]].default_value


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """``queued_request_bytes_max`` bounds what all connections together hold of requests that are
    not answered yet; ``unsent_bytes_max`` is per connection: above it no request is begun."""

    request_bytes_max: int = _default("request_bytes_max")
    idle_ms_max: int = _default("idle_ms_max")
    connections_max: int = _default("connections_max")
    queued_request_bytes_max: int = _default("queued_request_bytes_max")
    requests_in_flight_max: int = _default("requests_in_flight_max")
    unsent_bytes_max: int = _default("unsent_bytes_max")

    @classmethod
    def of(cls, entries: Mapping[str, str]) -> Self:
        """From Kafka's text configuration; raises ValueError that names the key."""
        values = {}
        for field in fields(cls):
            key = _KEYS[field.name]
            if key in entries:
                values[field.name] = positive(key, entries[key])
        return cls(**values)


def positive(key: str, text: str) -> int:
    """A whole number above zero; raises ValueError that names the key."""
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{key}={text!r} is not a whole number") from None
    if value < 1:
        raise ValueError(f"{key}={text} must be at least 1")
    return value
