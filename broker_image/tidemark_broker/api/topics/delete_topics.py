"""DeleteTopics (20): delete ``Topic`` objects, by name or by id.

Versions 1 to 6:

- 3: the client understands TOPIC_DELETION_DISABLED
- 4: flexible
- 5: message of an error, and THROTTLING_QUOTA_EXCEEDED (KIP-599)
- 6: topics by id (KIP-516)

Version 2 has the fields of version 1.

Behaviour:

- DELETE on the topic or on the cluster is required. The name of a topic is withheld from a client
  that may not DESCRIBE it.
- A topic is answered once this broker no longer has it.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

from kio.schema.delete_topics.v6 import request as v6
from kio.schema.errors import ErrorCode

from tidemark.wire.topics import ChangeKind, TopicChange, TopicChangeResult
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds
from tidemark_broker.api.table import QUOTA_EXCEEDED, Api, Call
from tidemark_broker.api.topic_change_requests import (
    AUTHORIZATION_FAILED,
    error_of,
    forward,
    wait_until_known,
)

#: Clients of older versions do not understand TOPIC_DELETION_DISABLED.
_DISABLED_SINCE = 3
#: From this version a client understands THROTTLING_QUOTA_EXCEEDED.
_KNOWS_QUOTA = 5
NOT_HOSTED = "This server does not host this topic-partition."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest(v6.DeleteTopicsRequest):
    """Request in which names are a separate list before version 6."""

    topic_names: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class DeletableTopicResult:
    """Result of one topic.

    ``name`` is None for an unknown id, or one that the client may not describe.
    """

    name: str | None
    topic_id: uuid.UUID | None
    error_code: ErrorCode
    error_message: str | None = None


@dataclass(slots=True, kw_only=True)
class DeleteTopicsResponse(ThrottledAnswer):
    """Results, with each topic once."""

    responses: tuple[DeletableTopicResult, ...]


#: A topic as the request identifies it: by name, or by id.
_Requested = tuple[str | None, uuid.UUID | None]


async def handle(request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    """Delete topics by name or id, and answer once this broker no longer has them."""
    # Ids are resolved first: authorization and duplicates are decided by name. ``all_of`` and
    # ``give`` let other requests run while a long list is processed.
    requested = Counter[_Requested](_requested(request))
    answers: dict[_Requested, DeletableTopicResult] = {}
    found = await call.time_slice.collect(_name(identity, call) for identity in requested)
    names = dict(zip(requested, found, strict=True))
    undeletable = await _undeletable({name for name in names.values() if name}, call)
    named_by_id = {name for (by_name, _), name in names.items() if by_name is None and name}
    # Errors are collected for each topic, so that one rejected topic does not stop the others.
    for identity, times in requested.items():
        refused = _refusal(identity, times, names[identity], undeletable, named_by_id, call)
        refused = refused or _over_quota(identity, names[identity], call)
        if refused is not None:
            answers[identity] = refused
        await call.time_slice.renew_if_over()
    await call.time_slice.renew_if_over()
    # Topics without an error are deleted together and share the rest of the time-out.
    left = {identity: name for identity, name in names.items() if identity not in answers}
    wait_s = milliseconds(request.timeout) / 1000
    answers |= await _deleted(left, call, wait_s)
    return DeleteTopicsResponse(responses=tuple(answers.values()))


def _requested(request: DeleteTopicsRequest) -> list[_Requested]:
    return [(name, None) for name in request.topic_names] + [
        (topic.name, topic.topic_id) for topic in request.topics
    ]


def _name(requested: _Requested, call: Call) -> str | None:
    name, topic_id = requested
    if name is not None or topic_id is None:
        return name
    view = call.services.cluster.by_id(topic_id)
    return None if view is None else view.name


async def _undeletable(names: Set[str], call: Call) -> Set[str]:
    # DELETE on the cluster permits any topic, and saves a check for each name.
    if call.client.may(Operation.DELETE, ResourceType.CLUSTER):
        return frozenset()
    return await call.denied(Operation.DELETE, names)


def _refusal(
    requested: _Requested,
    times: int,
    name: str | None,
    undeletable: Set[str],
    named_by_id: Set[str],
    call: Call,
) -> DeletableTopicResult | None:
    """Return the error result of a topic that is rejected, None if it may be deleted.

    ``times`` is how often the request contains the entry, ``name`` the topic's name (None for an
    unknown id). ``undeletable`` contains names without DELETE permission, ``named_by_id`` names
    whose ids are in the request, too.
    """
    by_name, topic_id = requested
    message: str | None
    shown = by_name
    # Checks in Kafka's order (ControllerApis.deleteTopics).
    if by_name is not None and topic_id is not None:
        code, message = (
            ErrorCode.invalid_request,
            "You may not specify both topic name and topic id.",
        )
    elif by_name is None and topic_id is None:
        code, message = ErrorCode.invalid_request, "Neither topic name nor id were specified."
    elif times > 1:
        kind = "id" if by_name is None else "name"
        code, message = ErrorCode.invalid_request, f"Duplicate topic {kind}."
    # The id belongs to no topic that this broker knows.
    elif name is None:
        code, message = ErrorCode.unknown_topic_id, "This server does not host this topic ID."
    elif name in undeletable:
        code, message = ErrorCode.topic_authorization_failed, AUTHORIZATION_FAILED
        # A client that may not describe the topic must not learn its name from its id.
        if call.client.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            shown = name
            if name not in call.services.cluster.topics:
                code, message = ErrorCode.unknown_topic_or_partition, NOT_HOSTED
    elif by_name is not None and name in named_by_id:
        code, message = (
            ErrorCode.invalid_request,
            "The provided topic name maps to an ID that was already supplied.",
        )
    else:
        return None
    return DeletableTopicResult(
        name=shown, topic_id=topic_id, error_code=code, error_message=message
    )


def _over_quota(requested: _Requested, name: str | None, call: Call) -> DeletableTopicResult | None:
    view = None if name is None else call.services.cluster.topics.get(name)
    if call.may_mutate(len(view.partitions) if view else 0, refused_since=_KNOWS_QUOTA):
        return None
    return DeletableTopicResult(
        name=requested[0],
        topic_id=requested[1],
        error_code=ErrorCode.throttling_quota_exceeded,
        error_message=QUOTA_EXCEEDED,
    )


async def _deleted(
    requested: Mapping[_Requested, str | None], call: Call, wait_s: float
) -> Mapping[_Requested, DeletableTopicResult]:
    """Have the operator delete the topics, and return the Kafka result of each.

    ``requested`` maps each entry of the request to the topic's name. Waits at most ``wait_s``
    seconds. A topic that this broker still has by then gets REQUEST_TIMED_OUT, although it is being
    deleted.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    # First the operator deletes the ``Topic`` objects.
    changes = await call.time_slice.collect(
        TopicChange(kind=ChangeKind.DELETE, name=name, topic_id=topic_id)
        for name, topic_id in requested
    )
    outcomes = await forward(call, changes, wait_s=wait_s)
    results = dict(zip(requested, outcomes, strict=True))
    # Success means that the operator accepted the deletion. The brokers delete the topic
    # afterwards.
    going = await call.time_slice.collect(
        result.topic_id
        for result in outcomes
        if result.topic_id is not None and not result.error_code
    )
    cluster = call.services.cluster
    late = await wait_until_known(
        call, going, lambda topic_id: cluster.by_id(topic_id) is None, until_s - loop.time()
    )
    answers = await call.time_slice.collect(
        _answer(name, results[identity], call, is_late=results[identity].topic_id in late)
        for identity, name in requested.items()
    )
    return dict(zip(requested, answers, strict=True))


def _answer(
    name: str | None, result: TopicChangeResult, call: Call, *, is_late: bool
) -> DeletableTopicResult:
    code, message = error_of(result.error_code), result.error_message
    if is_late:
        code, message = ErrorCode.request_timed_out, "the topic is being deleted"
    # Clients before version 3 would not understand the code.
    elif code is ErrorCode.topic_deletion_disabled and call.version < _DISABLED_SINCE:
        code = ErrorCode.invalid_request
    return DeletableTopicResult(
        name=name, topic_id=result.topic_id, error_code=code, error_message=message
    )


API = Api(handle, versions=(1, 6))
