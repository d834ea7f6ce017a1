"""Limits of the client listener, by Kafka's broker keys."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

_KEYS = {
    "request_bytes_max": "socket.request.max.bytes",
    "idle_ms_max": "connections.max.idle.ms",
    "connections_max": "max.connections",
    "queued_request_bytes_max": "queued.max.request.bytes",
    "requests_in_flight_max": "tidemark.connection.requests.in.flight.max",
    "unsent_bytes_max": "tidemark.connection.unsent.bytes.max",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """``queued_request_bytes_max`` bounds what all connections together hold of requests that are
    not answered yet; ``unsent_bytes_max`` is per connection: above it no request is begun."""

    request_bytes_max: int = 104_857_600
    idle_ms_max: int = 600_000
    connections_max: int = 10_000
    queued_request_bytes_max: int = 256 * 1024 * 1024
    requests_in_flight_max: int = 8
    unsent_bytes_max: int = 1024 * 1024

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
