"""Offsets over Kafka's protocol, requested from a partition's leader.

ListOffsets returns start and end of a log in each tier; DeleteRecords moves its start (KIP-107).
"""

from collections.abc import Mapping

from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.list_offsets.v9.response import ListOffsetsResponse

from tidemark.kafka_client import requests
from tidemark.kafka_client.admin import outcome
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.values import Offset, RequestFailure, TopicPartition


async def list_offsets(
    client: KafkaClient,
    node_id: int,
    timestamps: Mapping[TopicPartition, int],
    *,
    committed: bool = False,
) -> dict[TopicPartition, Offset | RequestFailure]:
    """Return offsets by timestamp from the partitions' leader (ListOffsets).

    ``timestamps``: Unix time in ms, or a special value of :mod:`values`. LATEST is the high
    watermark, or with ``committed`` the last stable offset. ``node_id``: the broker that leads all
    the partitions. Raises ``KafkaError``.
    """
    request = requests.list_offsets(timestamps, committed=committed)
    answer = await client.request_node(node_id, request, ListOffsetsResponse)
    # A failure concerns one partition; the answers of the others are valid.
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
    request = requests.delete_records(offsets, timeout_ms)
    # The answer may take the whole time-out of the broker, plus the time of the request itself.
    answer = await client.request_node(
        node_id, request, DeleteRecordsResponse, timeout_ms / 1000 + 15.0
    )
    return {
        (str(topic.name), int(partition.partition_index)): (
            int(partition.low_watermark),
            outcome(partition.error_code, None),
        )
        for topic in answer.topics
        for partition in topic.partitions
    }
