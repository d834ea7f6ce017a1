"""Kafka's own requests as the controller sends them over a command connection. Pure.

Versions are fixed here: ListOffsets 8, OffsetForLeaderEpoch 4 and DeleteRecords 2, each for one
topic.
"""

import datetime as dt
from collections.abc import Mapping

from kio.schema.delete_records.v2 import request as delete_request
from kio.schema.delete_records.v2 import response as delete_response
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v8 import request as list_request
from kio.schema.list_offsets.v8 import response as list_response
from kio.schema.offset_for_leader_epoch.v4 import request as epoch_request
from kio.schema.offset_for_leader_epoch.v4 import response as epoch_response
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from tidemark.logfiles.leader_epochs import EpochEnd
from tidemark_operator.controller.deletion_values import ListedOffset
from tidemark_operator.engines.base import DeletionAnswer

_CONSUMER = -1


def list_offsets(topic: str, timestamps: Mapping[int, int]) -> list_request.ListOffsetsRequest:
    """Offsets of a topic's partitions at Kafka's timestamps (milliseconds, or -1, -2, …)."""
    partitions = tuple(
        list_request.ListOffsetsPartition(partition_index=i32(index), timestamp=i64(timestamp))
        for index, timestamp in sorted(timestamps.items())
    )
    named = list_request.ListOffsetsTopic(name=TopicName(topic), partitions=partitions)
    return list_request.ListOffsetsRequest(
        replica_id=BrokerId(_CONSUMER), isolation_level=i8(0), topics=(named,)
    )


def offsets_of(response: list_response.ListOffsetsResponse) -> dict[int, ListedOffset]:
    """By partition."""
    return {
        int(answer.partition_index): ListedOffset(
            error_code=int(answer.error_code), offset=int(answer.offset)
        )
        for topic in response.topics
        for answer in topic.partitions
    }


def epoch_ends(topic: str, epochs: Mapping[int, int]) -> epoch_request.OffsetForLeaderEpochRequest:
    """Where leader epochs of a topic's partitions end."""
    partitions = tuple(
        epoch_request.OffsetForLeaderPartition(partition=i32(index), leader_epoch=i32(epoch))
        for index, epoch in sorted(epochs.items())
    )
    named = epoch_request.OffsetForLeaderTopic(topic=TopicName(topic), partitions=partitions)
    return epoch_request.OffsetForLeaderEpochRequest(
        replica_id=BrokerId(_CONSUMER), topics=(named,)
    )


def ends_of(response: epoch_response.OffsetForLeaderEpochResponse) -> dict[int, EpochEnd]:
    """By partition; those that answered an error are left out."""
    return {
        int(answer.partition): EpochEnd(int(answer.leader_epoch), int(answer.end_offset))
        for topic in response.topics
        for answer in topic.partitions
        if answer.error_code is ErrorCode.none
    }


def delete_records(
    topic: str, offsets: Mapping[int, int], timeout_ms: int
) -> delete_request.DeleteRecordsRequest:
    """Delete a topic's records below the offsets."""
    partitions = tuple(
        delete_request.DeleteRecordsPartition(partition_index=i32(index), offset=i64(offset))
        for index, offset in sorted(offsets.items())
    )
    named = delete_request.DeleteRecordsTopic(name=TopicName(topic), partitions=partitions)
    timeout = i32Timedelta.parse(dt.timedelta(milliseconds=timeout_ms))
    return delete_request.DeleteRecordsRequest(topics=(named,), timeout=timeout)


def deletions_of(response: delete_response.DeleteRecordsResponse) -> dict[int, DeletionAnswer]:
    """By partition."""
    return {
        int(answer.partition_index): DeletionAnswer(
            error=answer.error_code, low_watermark=int(answer.low_watermark)
        )
        for topic in response.topics
        for answer in topic.partitions
    }
