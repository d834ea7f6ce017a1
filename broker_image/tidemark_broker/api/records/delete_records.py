"""DeleteRecords (21): raise the log start of partitions (KIP-107).

Versions 0 to 2:

- 1: the same
- 2: flexible

Behaviour:

- Checks are Kafka's, in Kafka's order. A partition that is named twice gets INVALID_REQUEST.
- Each leader raises its log start at once. The request then waits for every live replica of the
  partition (:mod:`~tidemark_broker.replication.hosting.deletions`).
- On a time-out the pending partitions get REQUEST_TIMED_OUT, with the low watermark from when the
  request arrived.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.errors import ErrorCode

from tidemark.logfiles.names import INTERNAL_TOPICS
from tidemark.wire.users import Operation
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds
from tidemark_broker.api.services import HandlerServices
from tidemark_broker.api.table import Api, Call, duplicates
from tidemark_broker.replication.hosting import deletions
from tidemark_broker.replication.hosting.deletions import Deletion
from tidemark_broker.replication.partition import log_start
from tidemark_broker.replication.types import TopicPartition


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartitionResult:
    """Result of one partition.

    ``low_watermark`` is the smallest log start of the live replicas, -1 with an error.
    """

    partition_index: int
    low_watermark: int
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class DeleteRecordsTopicResult:
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@dataclass(slots=True, kw_only=True)
class DeleteRecordsResponse(ThrottledAnswer):
    """Results in the order of the request."""

    topics: tuple[DeleteRecordsTopicResult, ...]


async def handle(request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    """Raise the log starts, wait for the followers, answer."""
    services = call.services
    # All partitions start before the wait, so that their followers advance at the same time.
    denied = await call.denied(Operation.DELETE, (topic.name for topic in request.topics))
    statuses = await call.time_slice.collect(_statuses(request, denied, services))
    timeout_s = call.wait_s(milliseconds(request.timeout) / 1000)
    await deletions.wait_until_settled(
        statuses, services.replicas, services.purgatory, timeout_s, who=call.client.identity
    )
    return await _answer(request, call, statuses)


def _statuses(
    request: DeleteRecordsRequest, denied: Set[str], services: HandlerServices
) -> Iterator[Deletion]:
    """Yield one deletion for each partition in the order of the request, started or rejected.

    ``denied`` contains the topics for which the client lacks DELETE.
    """
    # Kafka's clients never repeat a partition. Both entries fail, because their order is undefined.
    twice = duplicates(
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
                yield Deletion(TopicPartition(name, index), ErrorCode.topic_authorization_failed)
            elif (name, index) in twice:
                yield Deletion(TopicPartition(name, index), ErrorCode.invalid_request)
            else:
                yield _begin(name, index, part.offset, services)


def _begin(topic: str, index: int, offset: int, services: HandlerServices) -> Deletion:
    # Checks in Kafka's order: existence, internal topic, then whether this broker is the leader.
    tp, view = TopicPartition(topic, index), services.cluster.topics.get(topic)
    if view is None or index not in view.partitions:
        return Deletion(tp, ErrorCode.unknown_topic_or_partition)
    if topic in INTERNAL_TOPICS:
        return Deletion(tp, ErrorCode.invalid_topic_exception)
    partition = services.replicas.get(topic, index)
    if partition is None:
        return Deletion(tp, services.replicas.error_of(topic, index))
    return deletions.begun(partition, log_start.delete_records(partition, offset))


async def _answer(
    request: DeleteRecordsRequest, call: Call, statuses: Sequence[Deletion]
) -> DeleteRecordsResponse:
    # Statuses are in the order of the request, so one iterator matches them to their partitions.
    remaining, topics = iter(statuses), []
    for topic in request.topics:
        results = await call.time_slice.collect(_result(next(remaining)) for _ in topic.partitions)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=tuple(results)))
    return DeleteRecordsResponse(topics=tuple(topics))


def _result(status: Deletion) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=status.tp.partition,
        low_watermark=status.low_watermark,
        error_code=status.error,
    )


API = Api(handle, versions=(0, 2))
