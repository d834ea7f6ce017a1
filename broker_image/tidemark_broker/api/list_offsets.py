"""ListOffsets (2): the offset for a timestamp, or a special offset.

The partition defines the special values. The version that may use them is checked here: -3 from 7,
-4 from 8, -5 from 9, -6 from 11, otherwise UNSUPPORTED_VERSION. A request as Kafka's debugging
replica returns the log start and end of the queried broker itself, leader or not.
"""

import asyncio
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest

from tidemark_broker.admission.time_slice import in_parts
from tidemark_broker.api.schema import ZERO, milliseconds
from tidemark_broker.api.table import Api, Call, duplicates
from tidemark_broker.replication.partition import consumer_reads
from tidemark_broker.replication.types import OffsetResult
from tidemark_broker.security.acls import Operation

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
class ListOffsetsResponse:
    """Results in the order of the request."""

    topics: tuple[ListOffsetsTopicResponse, ...]
    throttle_time: timedelta = ZERO


async def handle(request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
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
    return await _answer(request, call, found)


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


async def _answer(
    request: ListOffsetsRequest, call: Call, found: Iterable[OffsetResult]
) -> ListOffsetsResponse:
    remaining, topics = iter(found), []
    for topic in request.topics:
        partitions = await call.time_slice.collect(
            _partition(part.partition_index, next(remaining)) for part in topic.partitions
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


def _partition(index: int, result: OffsetResult) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=result.error,
        timestamp=result.timestamp_ms,
        offset=result.offset,
        leader_epoch=result.leader_epoch,
    )


API = Api(
    key=2,
    name="ListOffsets",
    version_min=1,
    version_max=11,
    request=ListOffsetsRequest,
    answer=ListOffsetsResponse,
    handler=handle,
)
