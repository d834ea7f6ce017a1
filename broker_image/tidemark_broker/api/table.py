"""Definition of an Api for the dispatcher: key, range of versions, messages and handler.

Each module of this package declares its :class:`Api` beside its handler. The answer to ApiVersions
is derived from their table, so advertised and supported versions cannot differ.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

from kio.schema.errors import ErrorCode

from tidemark.tls.identity import TlsIdentity
from tidemark.wire.repeats import Repeat
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.admission.arrival_order import Place
from tidemark_broker.admission.client_quotas import RequestQuotas
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.admission.time_slice import TimeSlice
from tidemark_broker.api import schema
from tidemark_broker.api.client import Client
from tidemark_broker.api.large_messages import MUCH_BYTES, POLL_BYTES, POLL_MAX_S, WAIT_MAX_S
from tidemark_broker.api.services import HandlerServices
from tidemark_broker.security.authorizer import NOBODY
from tidemark_broker.tasks import Deferred

Q = TypeVar("Q")
A = TypeVar("A")
K = TypeVar("K", bound=Hashable)

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._\-]{1,249}")
QUOTA_EXCEEDED = "The throttling quota has been exceeded."


@dataclass(slots=True)
class Call:
    """Context of a request for its handler.

    - ``memory``: memory of the answer; a handler of a large answer requests its size there
    - ``quotas``: quotas of the client, None without limit
    - ``time_slice``: a handler that iterates over many entries lets other requests run with it
    - ``place``: place in the order of the connection, left once all work whose order counts has
      started
    - ``is_large``: see :mod:`tidemark_broker.api.large_messages`
    - ``frame_bytes``: size of the request
    - ``client_id``: the client's name for itself
    - ``correlation_id``: that of the request, for a handler that encodes the response frame
    """

    services: HandlerServices
    version: int
    client: Client
    memory: ResponseMemory
    quotas: RequestQuotas | None = None
    place: Place | None = None
    is_large: bool = False
    frame_bytes: int = 0
    client_id: str = ""
    correlation_id: int = 0
    _time_slice: TimeSlice | None = None

    @property
    def time_slice(self) -> TimeSlice:
        """Slice of the request, from its first use on. A small Produce uses none."""
        if self._time_slice is None:
            self._time_slice = TimeSlice()
        return self._time_slice

    def wait_s(self, wished_s: float) -> float:
        """Return how many seconds the request may wait for an event: ``wished_s`` or less.

        Large requests wait less, because other large requests wait for their memory.
        """
        # Memory that a large request holds during a wait is missing for others.
        is_much = self.is_large or self.frame_bytes > MUCH_BYTES
        return min(wished_s, WAIT_MAX_S) if is_much else wished_s

    def poll_s(self, wished_s: float) -> float:
        """Return how many seconds the request may wait for records, which may never arrive."""
        is_much = self.is_large or self.frame_bytes > POLL_BYTES
        return min(wished_s, POLL_MAX_S) if is_much else wished_s

    def has_room(self, answer_bytes: int) -> bool:
        """Return whether an answer of that total size fits in memory. A small one always does."""
        return self.memory.grant(answer_bytes) >= answer_bytes

    def may_mutate(self, partitions: int, *, refused_since: int) -> bool:
        """See :meth:`RequestQuotas.may_mutate`. Versions from ``refused_since`` know the error."""
        return self.quotas is None or self.quotas.may_mutate(
            partitions, is_strict=self.version >= refused_since
        )

    async def denied(self, operation: Operation, topics: Iterable[str]) -> Set[str]:
        """Return those of the topics for which the client lacks the permission.

        Topics are not iterated if the client may do everything.
        """
        permissions = self.client.permissions
        # The common case without ACLs must not iterate over thousands of topics.
        if permissions is None:
            return NOBODY
        denied = set()
        # A request may name a topic many times.
        for topic in set(topics):
            if not permissions.allows(operation, ResourceType.TOPIC, topic):
                denied.add(topic)
            if self.time_slice.is_over:
                await self.time_slice.renew()
        return denied


class RepeatHandler(NamedTuple):
    """Handler of requests that repeat an earlier one of their connection in all but one field.

    - ``accepts``: return whether a request may be repeated
    - ``with_field``: return a request with another value of the field
    - ``begin``: return the response frame for a correlation id, what delivers it later, or
      None if the request must be handled like any other
    """

    accepts: Callable[[Any], bool]
    with_field: Callable[[Any, bytes], Any]
    begin: Callable[[Repeat[Any, Any], bytes, Call, int], bytes | Deferred[bytes] | None]


@dataclass(frozen=True, slots=True)
class Api(Generic[Q, A]):
    """One Kafka Api. Its key and name are those of the request in Kafka's message definitions.

    - ``handler`` returns None if the protocol has no answer
    - ``begin``: handler of a small request that returns its answer or the frame of it at once,
      what delivers it later, or the function that waits for it. What it does at once counts for no
      client (``requesting_client``)
    - ``repeats``: the same for a request that the connection repeats
    - ``request`` and ``answer``, from the handler's annotations, have the fields of all versions,
      see :mod:`tidemark_broker.api.schema`
    - ``versions``: first and last version that is served
    - ``advertised_min`` replaces the first version in ApiVersions (Produce is advertised from 0,
      because librdkafka before 2.11 does not compress otherwise)
    - ``in_order``: several requests of a connection may be in progress, and start in their order
    - ``open_ended``: the answer may have many more elements than the request
    - ``waits``: an open-ended handler that also waits for events
    - ``by_client_id``: the handler needs the client id
    """

    handler: Callable[[Q, Call], Awaitable[A | None]]
    _: KW_ONLY
    versions: tuple[int, int]
    begin: (
        Callable[[Q, Call], A | bytes | Deferred[A] | Callable[[], Awaitable[A | None]] | None]
        | None
    ) = None
    repeats: RepeatHandler | None = None
    in_order: bool = False
    open_ended: bool = False
    waits: bool = False
    by_client_id: bool = False
    advertised_min: int | None = None
    request: type[Q] = field(init=False)
    answer: type[A] = field(init=False)
    key: int = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Read the messages from the handler, and the key and the name from the request."""
        request = _read_messages(self)
        object.__setattr__(self, "name", request.__name__.removesuffix("Request"))

    @property
    def served(self) -> range:
        first, last = self.versions
        return range(first, last + 1)

    def request_type(self, version: int) -> type[Q]:
        """Return the class as which the request is read."""
        message: Any = self.request
        return schema.request_type(message, self.key, version)  # type: ignore[no-any-return]

    def answer_type(self, version: int) -> Any:
        """Return the entity as which the answer is written."""
        message: Any = self.answer
        return schema.answer_type(message, self.key, version)


@dataclass(frozen=True, slots=True)
class PrivateApi(Generic[Q, A]):
    """An internal Api between brokers, in version 0 only, never advertised.

    The handler receives the request, the peer's identity and the answer's memory. Its annotations
    name the messages, as in :class:`Api`. ``begin``, if it exists, serves a small request in the
    turn of the loop that receives it. It returns the answer, or what delivers it later.
    """

    name: str
    handler: Callable[[Q, TlsIdentity, ResponseMemory], Awaitable[A]]
    begin: Callable[[Q, TlsIdentity, ResponseMemory], A | Deferred[A]] | None = None
    request: type[Q] = field(init=False)
    answer: type[A] = field(init=False)
    key: int = field(init=False)

    def __post_init__(self) -> None:
        """Read the messages from the handler, and the key from the request."""
        _read_messages(self)


def _read_messages(api: Api[Any, Any] | PrivateApi[Any, Any]) -> Any:
    """Set the messages that the handler's annotations name, and the key; return the request."""
    annotations = get_type_hints(api.handler)
    request = next(iter(annotations.values()))
    object.__setattr__(api, "request", request)
    # The annotation of an answer may be optional.
    object.__setattr__(api, "answer", schema.entity_in(annotations["return"]))
    object.__setattr__(api, "key", int(request.__api_key__))
    return request


def by_key(apis: Iterable[Api[Any, Any]]) -> Mapping[int, Api[Any, Any]]:
    """Return the table. Raises ``ValueError`` for a duplicate key."""
    table: dict[int, Api[Any, Any]] = {}
    for api in apis:
        if api.key in table:
            raise ValueError(f"two Apis have key {api.key}")
        table[api.key] = api
    return MappingProxyType(table)


def duplicates(keys: Sequence[K]) -> Set[K]:
    """Return the partitions that a request names several times.

    Kafka answers INVALID_REQUEST for them.
    """
    # Nearly no request repeats a partition, so this path is kept short.
    if len(set(keys)) == len(keys):
        return frozenset()
    return {key for key, times in Counter(keys).items() if times > 1}


def missing_topic(name: str) -> ErrorCode:
    """Return the error for a missing topic: unknown, or not a legal name."""
    legal = _LEGAL_NAME.fullmatch(name) and name not in (".", "..")
    return ErrorCode.unknown_topic_or_partition if legal else ErrorCode.invalid_topic_exception
