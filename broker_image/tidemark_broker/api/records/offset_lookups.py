"""ListOffsets (2) and OffsetForLeaderEpoch (23): offsets by time, by position, or by leader epoch.

ListOffsets, versions 1 to 11:

- 2: read_committed, throttle time
- 4: current leader epoch in the request, leader epoch in the answer (KIP-320)
- 5: the client understands OFFSET_NOT_AVAILABLE (KIP-207)
- 6: flexible
- 7: -3, the record with the largest timestamp (KIP-734)
- 8: -4, the start of the local log (KIP-405)
- 9: -5, the last offset in the tier (KIP-1005)
- 10: time-out for look-ups in the tier (KIP-1075)
- 11: -6, the first offset that is not copied yet (KIP-1023)

OffsetForLeaderEpoch, versions 2 to 4:

- 2: current leader epoch
- 3: replica id of a follower
- 4: flexible

Behaviour:

- A special offset of a newer version gets UNSUPPORTED_VERSION for its partition.
- A request as Kafka's debugging replica (-2) returns the log start and end of the queried broker
  itself, leader or not.
- A look-up by time includes the tier. Kafka answers -3 from the local log alone.
- At most 16 look-ups of a request run at a time.
"""

import asyncio
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)

from tidemark.wire.users import Operation
from tidemark_broker.admission.time_slice import in_parts
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds
from tidemark_broker.api.table import Api, Call, duplicates
from tidemark_broker.replication.partition import consumer_reads
from tidemark_broker.replication.types import OffsetResult

# ---------------------------------------------------------------- ListOffsets


#: Special value -> first version that may use it.
_SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
#: Kafka's ``remote.list.offsets.request.timeout.ms``, for requests without a time-out.
_TIMEOUT_MS = 30_000
_READ_COMMITTED = 1
#: Kafka's ``ListOffsetsRequest.DEBUGGING_REPLICA_ID``, and the values that it may query.
_DEBUGGING_REPLICA = -2
_OF_A_REPLICA = frozenset(
    {consumer_reads.LATEST, consumer_reads.EARLIEST, consumer_reads.EARLIEST_LOCAL}
)
_LOOKUPS_AT_ONCE = 16
#: Older clients do not know OFFSET_NOT_AVAILABLE.
_NOT_AVAILABLE_SINCE = 5


@dataclass(slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    """One partition, -1 without a match."""

    partition_index: int
    error_code: ErrorCode
    timestamp: int
    offset: int
    leader_epoch: int


@dataclass(slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@dataclass(slots=True, kw_only=True)
class ListOffsetsResponse(ThrottledAnswer):
    """Results in the order of the request."""

    topics: tuple[ListOffsetsTopicResponse, ...]


async def list_offsets(request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    """Return for each partition the offset of a timestamp or of a special position.

    Special positions are negative timestamps, such as -1 for the end and -2 for the start.
    """
    names = [(topic.name, part) for topic in request.topics for part in topic.partitions]
    denied = await call.denied(Operation.DESCRIBE, (topic.name for topic in request.topics))
    refused = _refusals(request, denied)
    # A lookup by time may read the disk or the tier, so their number is limited.
    gate = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
    timeout_ms = milliseconds(request.timeout) or _TIMEOUT_MS
    timeout_ms = int(call.wait_s(timeout_ms / 1000) * 1000)
    committed = request.isolation_level == _READ_COMMITTED
    debugging = request.replica_id == _DEBUGGING_REPLICA

    async def limited(topic: str, part: ListOffsetsPartition) -> OffsetResult:
        """Look up one partition, or return its error without a look-up.

        At most ``_LOOKUPS_AT_ONCE`` look-ups of the request run at a time.
        """
        error = refused(topic, part.partition_index)
        if error is not ErrorCode.none:
            return OffsetResult(error=error)
        async with gate:
            found = await _look_up(
                topic, part, call, timeout_ms, read_committed=committed, debugging=debugging
            )
            return _for_version(call.version, found)

    found: list[OffsetResult] = []
    # Tasks are created in parts, so that a large request does not create thousands at once.
    for some_names in in_parts(names):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(limited(topic, part)) for topic, part in some_names]
        found += [task.result() for task in tasks]
    return await _list_response(request, call, found)


def _refusals(request: ListOffsetsRequest, denied: Set[str]) -> Callable[[str, int], ErrorCode]:
    """Return a function that returns the error of a partition that is not looked up, else NONE.

    It rejects topics in ``denied`` and partitions that the request names twice.
    """
    twice = duplicates(
        [
            (topic.name, part.partition_index)
            for topic in request.topics
            for part in topic.partitions
        ]
    )

    # The sets are computed once for the request, the function is called for each partition.
    def refusal(topic: str, partition: int) -> ErrorCode:
        if topic in denied:
            return ErrorCode.topic_authorization_failed
        return ErrorCode.invalid_request if (topic, partition) in twice else ErrorCode.none

    return refusal


async def _list_response(
    request: ListOffsetsRequest, call: Call, found: Iterable[OffsetResult]
) -> ListOffsetsResponse:
    remaining, topics = iter(found), []
    for topic in request.topics:
        partitions = await call.time_slice.collect(
            _found_offset(part.partition_index, next(remaining)) for part in topic.partitions
        )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return ListOffsetsResponse(topics=tuple(topics))


def _for_version(version: int, result: OffsetResult) -> OffsetResult:
    if result.error is ErrorCode.offset_not_available and version < _NOT_AVAILABLE_SINCE:
        return OffsetResult(error=ErrorCode.leader_not_available)
    return result


async def _look_up(
    topic: str,
    part: ListOffsetsPartition,
    call: Call,
    timeout_ms: int,
    *,
    read_committed: bool,
    debugging: bool,
) -> OffsetResult:
    """Return the offset of one partition for the timestamp or special position of the request.

    ``debugging``: the caller is Kafka's debugging replica, which may query a follower too.
    """
    # A version above every real one rejects unknown special values.
    if part.timestamp < 0 and call.version < _SINCE.get(part.timestamp, 1 << 15):
        return OffsetResult(error=ErrorCode.unsupported_version)
    replicas = call.services.replicas
    partition = replicas.get(topic, part.partition_index)
    if partition is None:
        return OffsetResult(error=replicas.error_of(topic, part.partition_index))
    # Kafka's debugging replica reads this replica's own offsets, even of a follower.
    if debugging and part.timestamp in _OF_A_REPLICA:
        return consumer_reads.replica_offset(
            partition, part.timestamp, current_leader_epoch=part.current_leader_epoch
        )
    # The time-out covers a lookup in the tier, which may be slow or unavailable.
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await consumer_reads.list_offset(
                partition,
                part.timestamp,
                current_leader_epoch=part.current_leader_epoch,
                read_committed=read_committed,
            )
    except TimeoutError:
        return OffsetResult(error=ErrorCode.request_timed_out)


def _found_offset(index: int, result: OffsetResult) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=result.error,
        timestamp=result.timestamp_ms,
        offset=result.offset,
        leader_epoch=result.leader_epoch,
    )


LIST_OFFSETS = Api(list_offsets, versions=(1, 11))


# ---------------------------------------------------------------- OffsetForLeaderEpoch


@dataclass(slots=True, kw_only=True)
class EpochEndOffset:
    """One partition.

    ``leader_epoch`` is the largest known epoch not above the requested one, -1 for none.
    """

    error_code: ErrorCode
    partition: int
    leader_epoch: int
    end_offset: int


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderTopicResult:
    topic: str
    partitions: tuple[EpochEndOffset, ...]


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderEpochResponse(ThrottledAnswer):
    """Results in the order of the request."""

    topics: tuple[OffsetForLeaderTopicResult, ...]


async def epoch_ends(
    request: OffsetForLeaderEpochRequest, call: Call
) -> OffsetForLeaderEpochResponse:
    """Return for each partition where a leader epoch ends in this leader's log (KIP-320)."""
    denied = await call.denied(Operation.DESCRIBE, (topic.topic for topic in request.topics))
    # Kafka rejects a partition that is named twice.
    twice = duplicates(
        [(topic.topic, part.partition) for topic in request.topics for part in topic.partitions]
    )

    # Cheap checks run first; the epoch cache is only read for accepted partitions.
    def answer(topic: str, part: OffsetForLeaderPartition) -> EpochEndOffset:
        """Return the result of one partition."""
        if topic in denied:
            return _no_end(part, ErrorCode.topic_authorization_failed)
        if (topic, part.partition) in twice:
            return _no_end(part, ErrorCode.invalid_request)
        return _epoch_end(topic, part, call)

    topics = []
    for topic in request.topics:
        partitions = await call.time_slice.collect(
            answer(topic.topic, part) for part in topic.partitions
        )
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(partitions)))
    return OffsetForLeaderEpochResponse(topics=tuple(topics))


def _no_end(part: OffsetForLeaderPartition, error: ErrorCode) -> EpochEndOffset:
    return EpochEndOffset(
        error_code=error, partition=part.partition, leader_epoch=-1, end_offset=-1
    )


def _epoch_end(topic: str, part: OffsetForLeaderPartition, call: Call) -> EpochEndOffset:
    replicas = call.services.replicas
    partition = replicas.get(topic, part.partition)
    error, epoch, end_offset = ErrorCode.none, -1, -1
    # The partition itself checks leadership and the client's leader epoch.
    if partition is None:
        error = replicas.error_of(topic, part.partition)
    else:
        error, epoch, end_offset = consumer_reads.offset_for_leader_epoch(
            partition, part.current_leader_epoch, part.leader_epoch
        )
    return EpochEndOffset(
        error_code=error, partition=part.partition, leader_epoch=epoch, end_offset=end_offset
    )


EPOCH_ENDS = Api(epoch_ends, versions=(2, 4))
