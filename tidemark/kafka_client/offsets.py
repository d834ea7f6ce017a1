"""Offsets over Kafka's protocol, requested from a partition's leader.

ListOffsets returns start and end of a log in each tier; DeleteRecords moves its start (KIP-107).
"""

import datetime
from collections.abc import Mapping

from kio.schema.delete_records.v2 import request as delete_request
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.list_offsets.v9 import request as offsets_request
from kio.schema.list_offsets.v9.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from tidemark.kafka_client.admin import outcome
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.values import Offset, RequestFailure, TopicPartition

_UNCOMMITTED = i8(0)


async def list_offsets(
    client: KafkaClient, node_id: int, timestamps: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Offset | RequestFailure]:
    """Return offsets by timestamp from the partitions' leader (ListOffsets).

    ``timestamps``: Unix time in ms, or a special value of :mod:`values`. LATEST is the high
    watermark. ``node_id``: the broker that leads all the partitions. Raises ``KafkaError``.
    """
    # The request groups partitions by topic.
    by_topic: dict[str, list[offsets_request.ListOffsetsPartition]] = {}
    for (topic, partition), timestamp in timestamps.items():
        by_topic.setdefault(topic, []).append(
            offsets_request.ListOffsetsPartition(
                partition_index=i32(partition), timestamp=i64(timestamp)
            )
        )
    # Uncommitted reads: the high watermark itself, not the last stable offset.
    request = offsets_request.ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=_UNCOMMITTED,
        topics=tuple(
            offsets_request.ListOffsetsTopic(name=TopicName(name), partitions=tuple(parts))
            for name, parts in by_topic.items()
        ),
    )
    answer = await client.node(node_id, request, ListOffsetsResponse)
    return {
        (str(topic.name), int(partition.partition_index)): outcome(partition.error_code, None)
        or Offset(int(partition.offset), int(partition.timestamp), int(partition.leader_epoch))
        for topic in answer.topics
        for partition in topic.partitions
    }


async def delete_records(
    client: KafkaClient, node_id: int, offsets: Mapping[TopicPartition, int], timeout_ms: int
) -> dict[TopicPartition, tuple[int, RequestFailure | None]]:
    """Delete records below an offset of each partition, at its leader (DeleteRecords, KIP-107).

    Returns by partition the low watermark (-1: unknown), and the failure or None. The leader waits
    up to ``timeout_ms`` until followers have advanced their log start. Raises ``KafkaError``.
    """
    # The request groups partitions by topic.
    by_topic: dict[str, list[delete_request.DeleteRecordsPartition]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, []).append(
            delete_request.DeleteRecordsPartition(
                partition_index=i32(partition), offset=i64(offset)
            )
        )
    request = delete_request.DeleteRecordsRequest(
        topics=tuple(
            delete_request.DeleteRecordsTopic(name=TopicName(name), partitions=tuple(parts))
            for name, parts in by_topic.items()
        ),
        timeout=i32Timedelta.parse(datetime.timedelta(milliseconds=timeout_ms)),
    )
    # The answer may take the whole time-out of the broker, plus the time of the request itself.
    answer = await client.node(node_id, request, DeleteRecordsResponse, timeout_ms / 1000 + 15.0)
    return {
        (str(topic.name), int(partition.partition_index)): (
            int(partition.low_watermark),
            outcome(partition.error_code, None),
        )
        for topic in answer.topics
        for partition in topic.partitions
    }
