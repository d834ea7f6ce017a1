"""Requests that clients with and without an event loop send alike.

A request groups partitions by topic, and callers have a flat mapping by partition.
"""

import datetime
from collections.abc import Iterable, Mapping

from kio.schema.delete_records.v2 import request as delete_request
from kio.schema.list_offsets.v9 import request as offsets_request
from kio.schema.metadata.v12 import request as metadata_request
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from tidemark.kafka_client.values import TopicPartition

UNCOMMITTED, COMMITTED = i8(0), i8(1)
#: Replica id of a consumer.
CONSUMER = -1
_NO_EPOCH = -1


def metadata(names: Iterable[str] | None) -> metadata_request.MetadataRequest:
    """Return a request for topics by name, None for all; it creates no topic."""
    return metadata_request.MetadataRequest(
        topics=None
        if names is None
        else tuple(
            metadata_request.MetadataRequestTopic(topic_id=None, name=TopicName(name))
            for name in names
        ),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def list_offsets(
    timestamps: Mapping[TopicPartition, int],
    *,
    committed: bool = False,
    leader_epochs: Mapping[TopicPartition, int] | None = None,
    replica_id: int = CONSUMER,
) -> offsets_request.ListOffsetsRequest:
    """Return a request for offsets by timestamp (Unix time in ms, or a special value).

    ``committed``: LATEST is the last stable offset instead of the high watermark.
    ``leader_epochs``: a leader of another epoch refuses the request (KIP-320); None accepts any.
    """
    epochs = leader_epochs or {}
    # One entry for each partition, in the order of the mapping.
    by_topic: dict[str, list[offsets_request.ListOffsetsPartition]] = {}
    for (topic, partition), timestamp in timestamps.items():
        by_topic.setdefault(topic, []).append(
            offsets_request.ListOffsetsPartition(
                partition_index=i32(partition),
                current_leader_epoch=i32(epochs.get((topic, partition), _NO_EPOCH)),
                timestamp=i64(timestamp),
            )
        )
    # The isolation level applies to all partitions.
    return offsets_request.ListOffsetsRequest(
        replica_id=BrokerId(replica_id),
        isolation_level=COMMITTED if committed else UNCOMMITTED,
        topics=tuple(
            offsets_request.ListOffsetsTopic(name=TopicName(topic), partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
    )


def delete_records(
    offsets: Mapping[TopicPartition, int], timeout_ms: int
) -> delete_request.DeleteRecordsRequest:
    """Return a request that deletes the records below these offsets (KIP-107).

    A leader waits up to ``timeout_ms`` for its followers.
    """
    # One entry for each partition, in the order of the mapping.
    by_topic: dict[str, list[delete_request.DeleteRecordsPartition]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, []).append(
            delete_request.DeleteRecordsPartition(
                partition_index=i32(partition), offset=i64(offset)
            )
        )
    # The timeout is the leader's: the caller waits longer for the response.
    return delete_request.DeleteRecordsRequest(
        topics=tuple(
            delete_request.DeleteRecordsTopic(name=TopicName(topic), partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
        timeout=i32Timedelta.parse(datetime.timedelta(milliseconds=timeout_ms)),
    )
