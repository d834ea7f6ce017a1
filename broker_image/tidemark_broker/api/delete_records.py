"""DeleteRecords (21): KIP-107, with Kafka's checks in Kafka's order.

Each leader raises its log start at once; the whole request then waits until the low watermark of
every partition that took part has reached what was asked (two fetch rounds of the followers), or
the partition failed, or time is up. On time-out the pending ones answer REQUEST_TIMED_OUT with the
low watermark as it was when the request came.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.errors import ErrorCode

from tidemark.logfiles.names import INTERNAL_TOPICS
from tidemark_broker.api.schema import ZERO, milliseconds
from tidemark_broker.api.services import Services
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.turns import named_twice
from tidemark_broker.purgatory import Change
from tidemark_broker.replication.partition import log_start
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.security.acls import Operation


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartitionResult:
    """``low_watermark``: the smallest log start of the live replicas, -1 with an error."""

    partition_index: int
    low_watermark: int
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class DeleteRecordsTopicResult:
    """One topic."""

    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@dataclass(slots=True, kw_only=True)
class DeleteRecordsResponse:
    """In the order of the request."""

    topics: tuple[DeleteRecordsTopicResult, ...]
    throttle_time: timedelta = ZERO


@dataclass(slots=True)
class _Status:
    """One partition on its way. ``pending`` ones hold REQUEST_TIMED_OUT until they get there."""

    topic: str
    partition: int
    error: ErrorCode
    target: int = -1
    low_watermark: int = -1
    pending: bool = False


async def handle(request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    """Delete, wait, answer."""
    services = call.services
    denied = await call.denied(Operation.DELETE, (topic.name for topic in request.topics))
    statuses = await call.turns.all_of(_statuses(request, denied, services))
    pending = [status for status in statuses if status.pending]
    if pending:
        await services.purgatory.wait(
            [
                (Change.LOW_WATERMARK, TopicPartition(status.topic, status.partition))
                for status in pending
            ],
            lambda: _all_settled(pending, services),
            call.wait_s(milliseconds(request.timeout) / 1000),
            who=call.client.who,
        )
    return await _answer(request, call, statuses)


def _statuses(
    request: DeleteRecordsRequest, denied: Set[str], services: Services
) -> Iterator[_Status]:
    twice = named_twice(
        [
            (topic.name, part.partition_index)
            for topic in request.topics
            for part in topic.partitions
        ]
    )
    for topic in request.topics:
        for part in topic.partitions:
            name, index = topic.name, part.partition_index
            if name in denied:
                yield _Status(name, index, ErrorCode.topic_authorization_failed)
            elif (name, index) in twice:
                yield _Status(name, index, ErrorCode.invalid_request)
            else:
                yield _begin(name, index, part.offset, services)


def _begin(topic: str, index: int, offset: int, services: Services) -> _Status:
    view = services.cluster.topics.get(topic)
    if view is None or index not in view.partitions:
        return _Status(topic, index, ErrorCode.unknown_topic_or_partition)
    if topic in INTERNAL_TOPICS:
        return _Status(topic, index, ErrorCode.invalid_topic_exception)
    partition = services.replicas.get(topic, index)
    if partition is None:
        return _Status(topic, index, services.replicas.error_of(topic, index))
    result = log_start.delete_records(partition, offset)
    if result.error is not ErrorCode.none:
        return _Status(topic, index, result.error)
    status = _Status(topic, index, ErrorCode.none, result.offset, result.low_watermark)
    if result.low_watermark < result.offset:
        status.error = ErrorCode.request_timed_out
        status.pending = True
    return status


def _all_settled(pending: Sequence[_Status], services: Services) -> bool:
    for status in pending:
        if status.pending:
            _check(status, services)
    return not any(status.pending for status in pending)


def _check(status: _Status, services: Services) -> None:
    partition = services.replicas.get(status.topic, status.partition)
    if partition is None:
        error = services.replicas.error_of(status.topic, status.partition)
    else:
        error = partition.check_leader()
    if partition is None or error is not ErrorCode.none:
        status.error, status.low_watermark, status.pending = error, -1, False
        return
    low_watermark = log_start.low_watermark(partition)
    if low_watermark >= status.target:
        status.error, status.low_watermark, status.pending = error, low_watermark, False


async def _answer(
    request: DeleteRecordsRequest, call: Call, statuses: Sequence[_Status]
) -> DeleteRecordsResponse:
    remaining, topics = iter(statuses), []
    for topic in request.topics:
        results = await call.turns.all_of(_result(next(remaining)) for _ in topic.partitions)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=tuple(results)))
    return DeleteRecordsResponse(topics=tuple(topics))


def _result(status: _Status) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=status.partition,
        low_watermark=status.low_watermark,
        error_code=status.error,
    )


API = Api(
    key=21,
    name="DeleteRecords",
    version_min=0,
    version_max=2,
    request=DeleteRecordsRequest,
    answer=DeleteRecordsResponse,
    handler=handle,
)
