"""OffsetForLeaderEpoch (23): where an epoch ends, by which clients notice a truncation (KIP-320)."""

from typing import Any

from kio.schema.errors import ErrorCode

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.replication.partition import reads


async def handle(request: Any, call: Call) -> Any:
    """Answer from the leader's epoch cache."""
    topic_of = call.shapes.of("OffsetForLeaderTopicResult")
    return call.shapes.answer(
        throttle_time=ZERO,
        topics=tuple(
            topic_of(
                topic=topic.topic,
                partitions=tuple(
                    _partition(topic.topic, asked, call) for asked in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _partition(topic: str, asked: Any, call: Call) -> Any:
    replicas = call.services.replicas
    partition = replicas.get(topic, asked.partition)
    error, epoch, end_offset = ErrorCode.none, -1, -1
    if partition is None:
        error = replicas.error_of(topic, asked.partition)
    else:
        error, epoch, end_offset = reads.offset_for_leader_epoch(
            partition, asked.current_leader_epoch, asked.leader_epoch
        )
    return call.shapes.of("EpochEndOffset")(
        error_code=error, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
    )


API = Api(key=23, name="OffsetForLeaderEpoch", version_min=2, version_max=4, handler=handle)
