"""CreatePartitions (37): raise ``spec.partitions`` of ``Topic`` objects.

Versions 0 to 3:

- 1: the same
- 2: flexible
- 3: the client understands THROTTLING_QUOTA_EXCEEDED (KIP-599)

Behaviour:

- ALTER on the topic is required.
- A topic is answered once its new partitions have leaders.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.errors import ErrorCode

from tidemark.wire.topics import Assignment, ChangeKind, TopicChange, TopicChangeResult
from tidemark.wire.users import Operation
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds
from tidemark_broker.api.table import QUOTA_EXCEEDED, Api, Call
from tidemark_broker.api.topic_change_requests import (
    AUTHORIZATION_FAILED,
    error_of,
    forward,
    is_led,
    wait_until_known,
)

#: From this version a client understands THROTTLING_QUOTA_EXCEEDED.
_KNOWS_QUOTA = 3


@dataclass(slots=True, kw_only=True)
class CreatePartitionsTopicResult:
    name: str
    error_code: ErrorCode
    error_message: str | None = None


@dataclass(slots=True, kw_only=True)
class CreatePartitionsResponse(ThrottledAnswer):
    """Results, with each topic once."""

    results: tuple[CreatePartitionsTopicResult, ...]


async def handle(request: CreatePartitionsRequest, call: Call) -> CreatePartitionsResponse:
    """Raise the number of partitions of topics, and answer once the new ones have leaders."""
    # First reject topics without permission, topics above the client's quota, and duplicates. A
    # topic that is named twice gets one error, as in Kafka.
    requested = Counter[str](topic.name for topic in request.topics)
    denied = await call.denied(Operation.ALTER, requested)
    answers: dict[str, CreatePartitionsTopicResult] = {
        name: _error(name, ErrorCode.topic_authorization_failed, AUTHORIZATION_FAILED)
        for name in denied
    }
    for name, times in requested.items():
        if times > 1:
            answers[name] = _error(name, ErrorCode.invalid_request, "Duplicate topic name.")
    # Validation changes nothing, so it uses no quota.
    if not request.validate_only:
        for topic in request.topics:
            if topic.name not in answers and not _may_grow(topic, call):
                answers[topic.name] = _error(
                    topic.name, ErrorCode.throttling_quota_exceeded, QUOTA_EXCEEDED
                )
    # Then the operator changes the accepted topics. Their results are appended to the errors.
    growing = [topic for topic in request.topics if topic.name not in answers]
    wait_s = milliseconds(request.timeout) / 1000
    results = await _grown(growing, call, wait_s, validate_only=request.validate_only)
    # ``all_of`` lets other requests run while a long list is built.
    grown = await call.time_slice.collect(
        CreatePartitionsTopicResult(
            name=name,
            error_code=error_of(result.error_code),
            error_message=result.error_message,
        )
        for name, result in results.items()
    )
    return CreatePartitionsResponse(results=(*answers.values(), *grown))


def _may_grow(topic: CreatePartitionsTopic, call: Call) -> bool:
    # The quota counts added partitions, not the new total (KIP-599).
    view = call.services.cluster.topics.get(topic.name)
    added = 0 if view is None else topic.count - len(view.partitions)
    return call.may_mutate(added, refused_since=_KNOWS_QUOTA)


def _error(name: str, code: ErrorCode, message: str) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=code, error_message=message)


async def _grown(
    topics: Sequence[CreatePartitionsTopic], call: Call, wait_s: float, *, validate_only: bool
) -> Mapping[str, TopicChangeResult]:
    """Have the operator add the partitions, and return its result for each topic by name.

    Waits at most ``wait_s`` seconds. A topic whose new partitions have no leaders by then gets
    REQUEST_TIMED_OUT, although they are being created.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    # One call for all topics, so that the operator can apply them together.
    changes = await call.time_slice.collect(_change(topic) for topic in topics)
    outcomes = await forward(call, changes, wait_s=wait_s, validate_only=validate_only)
    results: dict[str, TopicChangeResult] = {
        topic.name: result for topic, result in zip(topics, outcomes, strict=True)
    }
    # Partitions without leaders would fail the client's next Produce, so the answer waits for them.
    if not validate_only:
        made = [name for name, result in results.items() if not result.error_code]
        views = call.services.cluster.topics
        late = await wait_until_known(
            call,
            made,
            lambda name: is_led(views.get(name), results[name].partitions, call),
            until_s - loop.time(),
        )
        results.update(dict.fromkeys(late, _LATE))
    return results


_LATE = TopicChangeResult(
    error_code=int(ErrorCode.request_timed_out),
    error_message="the partitions are being created and do not have leaders yet",
    topic_id=None,
)


def _change(topic: CreatePartitionsTopic) -> TopicChange:
    return TopicChange(
        kind=ChangeKind.GROW,
        name=topic.name,
        topic_id=None,
        partitions=topic.count,
        assignments=tuple(
            Assignment(partition=number, replicas=assignment.broker_ids)
            for number, assignment in enumerate(topic.assignments or ())
        ),
    )


API = Api(handle, versions=(0, 3))
