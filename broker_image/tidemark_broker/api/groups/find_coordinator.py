"""FindCoordinator (10): the broker that coordinates a group or a transactional id.

Versions 0 to 6:

- 1: type of the key, throttle time, message of an error
- 3: flexible
- 4: several keys (KIP-699)
- 5: the client understands TRANSACTION_ABORTABLE (KIP-890)
- 6: share groups (KIP-932)

Behaviour:

- A missing internal topic is created. Until then the client gets COORDINATOR_NOT_AVAILABLE.
- Share groups are not supported: their keys get INVALID_REQUEST.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6 import request as v6

from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidemark.wire import control
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.endpoints import reachable
from tidemark_broker.api.schema import ThrottledAnswer
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.coordinator_lookup import CoordinatorFinder
from tidemark_broker.coordinators.errors import CoordinatorError

#: From this version one request contains several keys.
_BATCHED_SINCE = 4
#: Longest part of a key in a message, since a message is a string of limited length.
_SHOWN_MAX = 300


class _Kind(NamedTuple):
    """A type of coordinator: its topic, and the resource that authorization protects."""

    topic: str
    resource: ResourceType
    denied: ErrorCode


_KINDS: Mapping[int, _Kind] = MappingProxyType(
    {
        0: _Kind(GROUP_OFFSETS_TOPIC, ResourceType.GROUP, ErrorCode.group_authorization_failed),
        1: _Kind(
            TRANSACTION_STATE_TOPIC,
            ResourceType.TRANSACTIONAL_ID,
            ErrorCode.transactional_id_authorization_failed,
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest(v6.FindCoordinatorRequest):
    """Request with one ``key`` until version 3."""

    key: str = ""


@dataclass(slots=True, kw_only=True)
class Coordinator:
    """Endpoint of one coordinator, -1 with an error."""

    key: str
    node_id: int = -1
    host: str = ""
    port: int = -1
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = ""


@dataclass(slots=True, kw_only=True)
class FindCoordinatorResponse(ThrottledAnswer):
    """Answer: ``coordinators`` from version 4, the other fields before."""

    coordinators: tuple[Coordinator, ...] = ()
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1


async def handle(request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    """Return the broker that coordinates each key, a group or a transactional id.

    A missing internal topic is created. Until then the client gets COORDINATOR_NOT_AVAILABLE.
    """
    # Computed once for all keys of the request.
    live = reachable(call.services.cluster, call.client.listener)
    finder = CoordinatorFinder(call.services.cluster, call.services.creations.request)
    batched = call.version >= _BATCHED_SINCE
    keys = request.coordinator_keys if batched else (request.key,)
    found = await call.time_slice.collect(
        _find(finder, live, call, request.key_type, key) for key in keys
    )
    if batched:
        return FindCoordinatorResponse(coordinators=tuple(found))
    (one,) = found
    # Kafka's single-key answers have the message NONE for success.
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message or "NONE",
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _find(
    finder: CoordinatorFinder,
    live: Mapping[int, control.Endpoint],
    call: Call,
    key_type: int,
    key: str,
) -> Coordinator:
    """Return the coordinator of one key, or an error.

    ``live`` contains the brokers that the client can reach, by node id. ``key_type`` is Kafka's
    ``CoordinatorType``: 0 for a group, 1 for a transactional id.
    """
    kind = _KINDS.get(key_type)
    if kind is None:
        return _refused(key, ErrorCode.invalid_request, f"unknown coordinator type {key_type}")
    # Authorized before the lookup, which would create the topic.
    if not call.client.may(Operation.DESCRIBE, kind.resource, key):
        text = f"no permission to describe {kind.resource.name} {key[:_SHOWN_MAX]}"
        return _refused(key, kind.denied, text)
    try:
        node = finder.leader_of(kind.topic, key)
    except CoordinatorError as error:
        return _refused(key, error.error_code, str(error))
    # The leader may be fenced, or have no endpoint on the client's listener.
    if node not in live:
        return _refused(
            key, ErrorCode.coordinator_not_available, "the coordinator's partition has no leader"
        )
    return Coordinator(key=key, node_id=node, host=live[node].host, port=live[node].port)


def _refused(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, error_code=error, error_message=message)


API = Api(handle, versions=(0, 6))
