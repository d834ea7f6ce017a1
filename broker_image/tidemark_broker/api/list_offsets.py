"""ListOffsets (2): the offset of a time, or one of the special ones.

What each special value means is the partition's affair; which version may ask for it is decided
here: -3 from 7, -4 from 8, -5 from 9, otherwise UNSUPPORTED_VERSION.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest

from tidemark_broker.api.schema import ZERO, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.replication.partition import reads
from tidemark_broker.replication.types import OffsetResult

#: special value -> first version that may ask for it
_SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9}
#: Kafka's ``remote.list.offsets.request.timeout.ms``, where the request brings no time-out.
_TIMEOUT_MS = 30_000
_LOOKUPS_AT_ONCE = 16


@dataclass(slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    """-1 where nothing matches."""

    partition_index: int
    error_code: ErrorCode
    timestamp: int
    offset: int
    leader_epoch: int


@dataclass(slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    """One topic."""

    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@dataclass(slots=True, kw_only=True)
class ListOffsetsResponse:
    """In the order of the request."""

    topics: tuple[ListOffsetsTopicResponse, ...]
    throttle_time: timedelta = ZERO


async def handle(request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    """Look up all partitions, a few at a time."""
    gate = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
    timeout_ms = milliseconds(request.timeout) or _TIMEOUT_MS

    async def limited(topic: str, part: ListOffsetsPartition) -> OffsetResult:
        async with gate:
            return await _look_up(topic, part, call, timeout_ms)

    async with asyncio.TaskGroup() as group:
        found = [
            [group.create_task(limited(topic.name, part)) for part in topic.partitions]
            for topic in request.topics
        ]
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _partition(part.partition_index, task.result())
                    for part, task in zip(topic.partitions, tasks, strict=True)
                ),
            )
            for topic, tasks in zip(request.topics, found, strict=True)
        ),
    )


async def _look_up(
    topic: str, part: ListOffsetsPartition, call: Call, timeout_ms: int
) -> OffsetResult:
    if part.timestamp < 0 and call.version < _SINCE.get(part.timestamp, 1 << 15):
        return OffsetResult(error=ErrorCode.unsupported_version)
    replicas = call.services.replicas
    partition = replicas.get(topic, part.partition_index)
    if partition is None:
        return OffsetResult(error=replicas.error_of(topic, part.partition_index))
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await reads.list_offset(
                partition, part.timestamp, current_leader_epoch=part.current_leader_epoch
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
    version_max=10,
    request=ListOffsetsRequest,
    answer=ListOffsetsResponse,
    handler=handle,
)
