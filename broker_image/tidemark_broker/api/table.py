"""What an Api is to the dispatcher: a key, a range of versions, two messages and a handler.

Each module of this package declares its own :class:`Api` beside its handler; the answer to
ApiVersions is derived from the table of them, so what is advertised cannot differ from what is
served.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from tidemark_broker.api import schema
from tidemark_broker.api.services import Services

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler is given beside the request; ``peer`` is the client's address."""

    services: Services
    version: int
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(Generic[Q, A]):
    """``version_min`` to ``version_max`` are served; ``advertised_min`` is what ApiVersions says
    (Produce is advertised from 0: librdkafka before 2.11 does not compress otherwise). ``request``
    and ``answer`` have the fields of all these versions (see :mod:`tidemark_broker.api.schema`); a
    ``handler`` gives None where the protocol has no answer."""

    key: int
    name: str
    version_min: int
    version_max: int
    request: type[Q]
    answer: type[A]
    handler: Callable[[Q, Call], Awaitable[A | None]]
    advertised_min: int | None = None

    def request_type(self, version: int) -> type[Q]:
        """The entity to read the request as."""
        message: Any = self.request
        return schema.request_type(message, self.key, version)  # type: ignore[no-any-return]

    def answer_type(self, version: int) -> Any:
        """The entity to write the answer as."""
        message: Any = self.answer
        return schema.answer_type(message, self.key, version)


@dataclass(frozen=True, slots=True)
class PrivateApi(Generic[Q, A]):
    """An Api between our own brokers, in version 0 only; never advertised. One entity in, one out."""

    key: int
    name: str
    request: type[Q]
    answer: type[A]
    handler: Callable[[Q], Awaitable[A]]


def by_key(apis: Iterable[Api[Any, Any]]) -> Mapping[int, Api[Any, Any]]:
    """The table; a key that stands twice is a mistake."""
    table: dict[int, Api[Any, Any]] = {}
    for api in apis:
        if api.key in table:
            raise ValueError(f"two Apis have key {api.key}")
        table[api.key] = api
    return MappingProxyType(table)
