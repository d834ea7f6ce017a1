"""OffsetForLeaderEpoch (23): end offset of a leader epoch, by which clients detect a truncation
(KIP-320).
"""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call, duplicates
from tidemark_broker.replication.partition import consumer_reads
from tidemark_broker.security.acls import Operation


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
class OffsetForLeaderEpochResponse:
    """Results in the order of the request."""

    topics: tuple[OffsetForLeaderTopicResult, ...]
    throttle_time: timedelta = ZERO


async def handle(request: OffsetForLeaderEpochRequest, call: Call) -> OffsetForLeaderEpochResponse:
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
            return _refused(part, ErrorCode.topic_authorization_failed)
        if (topic, part.partition) in twice:
            return _refused(part, ErrorCode.invalid_request)
        return _partition(topic, part, call)

    topics = []
    for topic in request.topics:
        partitions = await call.time_slice.collect(
            answer(topic.topic, part) for part in topic.partitions
        )
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(partitions)))
    return OffsetForLeaderEpochResponse(topics=tuple(topics))


def _refused(part: OffsetForLeaderPartition, error: ErrorCode) -> EpochEndOffset:
    return EpochEndOffset(
        error_code=error, partition=part.partition, leader_epoch=-1, end_offset=-1
    )


def _partition(topic: str, part: OffsetForLeaderPartition, call: Call) -> EpochEndOffset:
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


API = Api(
    key=23,
    name="OffsetForLeaderEpoch",
    version_min=2,
    version_max=4,
    request=OffsetForLeaderEpochRequest,
    answer=OffsetForLeaderEpochResponse,
    handler=handle,
)
