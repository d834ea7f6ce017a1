"""What an Api is to the dispatcher: a key, a range of versions and a handler.

Each module of this package declares its own :class:`Api` beside its handler; the answer to
ApiVersions is derived from the table of them, so what is advertised cannot differ from what is
served.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from tidemark_broker.api.ports import Services
from tidemark_broker.api.schema import Shapes, request_type_of, shapes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a handler is given beside the request."""

    services: Services
    shapes: Shapes
    version: int
    client_id: str
    peer: str


Handler = Callable[[Any, Call], Awaitable[Any]]


def _kafka_shapes(api_key: int, version: int) -> Shapes:
    return shapes_of(api_key, version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """``version_min`` to ``version_max`` are served; ``advertised_min`` is what ApiVersions says
    (Produce is advertised from 0: librdkafka before 2.11 does not compress otherwise)."""

    key: int
    name: str
    version_min: int
    version_max: int
    handler: Handler
    advertised_min: int | None = None
    shapes: Callable[[int, int], Shapes] = _kafka_shapes

    def request_type(self, version: int) -> Any:
        """The entity to read the request as."""
        return request_type_of(self.key, version)


class PrivateHandler(Protocol):
    """An Api of our own: one entity in, one out."""

    async def __call__(self, request: Any) -> Any:
        """The answer's entity."""


@dataclass(frozen=True, slots=True)
class PrivateApi:
    """An Api between our own brokers, in version 0 only; never advertised."""

    key: int
    name: str
    request_type: Any
    handler: PrivateHandler


def by_key(apis: Iterable[Api]) -> Mapping[int, Api]:
    """The table; a key that stands twice is a mistake."""
    table: dict[int, Api] = {}
    for api in apis:
        if api.key in table:
            raise ValueError(f"two Apis have key {api.key}")
        table[api.key] = api
    return MappingProxyType(table)
