"""What an Api is to the dispatcher: a key, a range of versions, two messages and a handler.

Each module of this package declares its own :class:`Api` beside its handler; the answer to
ApiVersions is derived from the table of them, so what is advertised cannot differ from what is
served.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from tidemark.tls.identity import Identity
from tidemark_broker.api import schema
from tidemark_broker.api.client import Client
from tidemark_broker.api.large_messages import MUCH_BYTES, POLL_BYTES, POLL_MAX_S, WAIT_MAX_S
from tidemark_broker.api.services import Services
from tidemark_broker.api.time_slices import InOrder, Turns
from tidemark_broker.quotas.client_quotas import RequestQuotas
from tidemark_broker.response_memory import AnswerMemory
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.security.authorizer import NOBODY

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(slots=True)
class Call:
    """What a handler is given beside the request; ``memory`` is that of the answer: whoever makes a
    large one asks it how large that may be; ``quotas``: what limits the client, None: nothing;
    ``turns``: who goes through many entries lets others have theirs; ``order``: to be told once all
    is begun whose order counts; ``is_large``: see :mod:`tidemark_broker.api.large_messages`;
    ``frame_bytes``: of the request; ``client_id``: as the client calls itself in it."""

    services: Services
    version: int
    client: Client
    memory: AnswerMemory
    quotas: RequestQuotas | None = None
    turns: Turns = field(default_factory=Turns)
    order: InOrder | None = None
    is_large: bool = False
    frame_bytes: int = 0
    client_id: str = ""

    def wait_s(self, wished_s: float) -> float:
        """How long it may wait for something to happen: others wait for a large one's turn, and for
        the memory of many bytes."""
        is_much = self.is_large or self.frame_bytes > MUCH_BYTES
        return min(wished_s, WAIT_MAX_S) if is_much else wished_s

    def poll_s(self, wished_s: float) -> float:
        """How long it may wait for records to come, which may be for ever."""
        is_much = self.is_large or self.frame_bytes > POLL_BYTES
        return min(wished_s, POLL_MAX_S) if is_much else wished_s

    def has_room(self, answer_bytes: int) -> bool:
        """Is there memory for an answer that will weigh so much in all? A small one always has."""
        return self.memory.grant(answer_bytes) >= answer_bytes

    async def denied(self, operation: Operation, topics: Iterable[str]) -> Set[str]:
        """Those topics that the client may not use so; they are not looked at where it may do
        everything."""
        permissions = self.client.permissions
        if permissions is None:
            return NOBODY
        denied = set()
        for topic in set(topics):
            if not permissions.allows(operation, ResourceType.TOPIC, topic):
                denied.add(topic)
            if self.turns.over:
                await self.turns.give()
        return denied


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(Generic[Q, A]):
    """``version_min`` to ``version_max`` are served; ``advertised_min`` is what ApiVersions says
    (Produce is advertised from 0: librdkafka before 2.11 does not compress otherwise). ``request``
    and ``answer`` have the fields of all these versions (see :mod:`tidemark_broker.api.schema`); a
    ``handler`` gives None where the protocol has no answer. ``in_order``: several requests of a
    connection may be under way at once, and are begun in their order. ``open_ended``:
    the answer may have many more elements than the request; ``waits``: such a handler waits for
    something to happen all the same. ``by_client_id``: the handler asks how
    the client calls itself."""

    key: int
    name: str
    version_min: int
    version_max: int
    request: type[Q]
    answer: type[A]
    handler: Callable[[Q, Call], Awaitable[A | None]]
    in_order: bool = False
    open_ended: bool = False
    waits: bool = False
    by_client_id: bool = False
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
    """An Api between our own brokers, in version 0 only; never advertised. One entity in, one
    out; the handler is told who asks, and given the answer's memory."""

    key: int
    name: str
    request: type[Q]
    answer: type[A]
    handler: Callable[[Q, Identity, AnswerMemory], Awaitable[A]]


def by_key(apis: Iterable[Api[Any, Any]]) -> Mapping[int, Api[Any, Any]]:
    """The table; a key that stands twice is a mistake."""
    table: dict[int, Api[Any, Any]] = {}
    for api in apis:
        if api.key in table:
            raise ValueError(f"two Apis have key {api.key}")
        table[api.key] = api
    return MappingProxyType(table)
