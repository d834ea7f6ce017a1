"""Kafka requests in any version, made with kio. Fields that a version
does not have are left out."""

import dataclasses
import datetime
import uuid
from typing import Any

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta

from tidemark.records.builder import Record, build_batch
from tidemark.wire.framing import decode, encode

PRODUCE, FETCH, LIST_OFFSETS, METADATA, DELETE_RECORDS = 0, 1, 2, 3, 21
OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CLUSTER, API_VERSIONS = 23, 60, 18
BATCH_OVERHEAD = 61


def duration(milliseconds: int) -> Any:
    """Return kio's type of a timeout."""
    return i32Timedelta.parse(datetime.timedelta(milliseconds=milliseconds))


def fit(entity_type: Any, /, **values: Any) -> Any:
    """Return an entity of the given type from those ``values`` that it has."""
    names = {field.name for field in dataclasses.fields(entity_type)}
    return entity_type(**{name: value for name, value in values.items() if name in names})


def request(api_key: int, version: int, **values: Any) -> Any:
    return fit(load_request_schema(api_key, version), **values)


def request_as(request_type: Any, body: Any) -> Any:
    """Return the request as a handler receives it: encoded and decoded again."""
    # Handlers receive the broker's own entity types, which kio's do not satisfy.
    return decode(request_type, encode(body))


def nested(api_key: int, version: int, entity_name: str, /, **values: Any) -> Any:
    """Return a part of a request."""
    module = load_payload_module(api_key, version, EntityType.request)
    return fit(getattr(module, entity_name), **values)


def answer_part(api_key: int, version: int, entity_name: str, /, **values: Any) -> Any:
    """Return a part of a response."""
    module = load_payload_module(api_key, version, EntityType.response)
    return fit(getattr(module, entity_name), **values)


def answer_type(api_key: int, version: int) -> Any:
    """Return kio's class of the response."""
    return load_response_schema(api_key, version)


def batch(*values: bytes, timestamp_ms: int = 1_700_000_000_000) -> bytes:
    """Return a record batch with one record for each value, one millisecond apart."""
    return build_batch(
        [
            Record(key=None, value=value, headers=(), timestamp_ms=timestamp_ms + number)
            for number, value in enumerate(values)
        ]
    )


def produce(
    version: int,
    topic: str,
    *records: Any,
    acks: int = -1,
    topic_id: uuid.UUID | None = None,
    **values: Any,
) -> Any:
    """Return a Produce request with one partition for each of ``records``, numbered from 0."""
    # ``records`` may be invalid bytes, which the tests of rejections send.
    data = tuple(
        nested(PRODUCE, version, "PartitionProduceData", index=number, records=one)
        for number, one in enumerate(records)
    )
    made = nested(
        PRODUCE, version, "TopicProduceData", name=topic, topic_id=topic_id, partition_data=data
    )
    defaults = {"transactional_id": None, "acks": acks, "timeout": duration(5000)} | values
    return request(PRODUCE, version, topic_data=(made,), **defaults)


def fetch(
    version: int,
    topic: str,
    *offsets: int,
    topic_id: uuid.UUID | None = None,
    wait_ms: int = 0,
    partition_max_bytes: int = 1 << 20,
    part: dict[str, Any] | None = None,
    **values: Any,
) -> Any:
    """Return a Fetch request with one partition for each of ``offsets``, numbered from 0."""
    # ``part`` has fields of later versions, such as the epochs. ``fit`` drops those that this
    # version lacks.
    parts = tuple(
        nested(
            FETCH,
            version,
            "FetchPartition",
            partition=number,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            **(part or {}),
        )
        for number, offset in enumerate(offsets)
    )
    made = nested(FETCH, version, "FetchTopic", topic=topic, topic_id=topic_id, partitions=parts)
    defaults = {"max_wait": duration(wait_ms), "min_bytes": 1, "max_bytes": 1 << 26}
    return request(FETCH, version, topics=(made,), forgotten_topics_data=(), **(defaults | values))


def list_offsets(
    version: int, topic: str, timestamp: int, *, replica_id: int = -1, **part: Any
) -> Any:
    """Return a ListOffsets request for partition 0 of a topic."""
    partition_request = nested(
        LIST_OFFSETS,
        version,
        "ListOffsetsPartition",
        partition_index=0,
        timestamp=timestamp,
        **part,
    )
    made = nested(
        LIST_OFFSETS, version, "ListOffsetsTopic", name=topic, partitions=(partition_request,)
    )
    # isolation_level 0 is read_uncommitted, so the high watermark bounds the answer.
    return request(
        LIST_OFFSETS,
        version,
        replica_id=replica_id,
        isolation_level=0,
        topics=(made,),
        timeout=duration(5000),
    )


def metadata(version: int, topics: tuple[tuple[str | None, uuid.UUID | None], ...] | None) -> Any:
    """Return a Metadata request for topics by (name, id), or for all topics with None."""
    named = None
    # An empty list means no topics since version 1, and null means all.
    if topics is not None:
        named = tuple(
            nested(METADATA, version, "MetadataRequestTopic", name=name, topic_id=topic_id)
            for name, topic_id in topics
        )
    return request(
        METADATA,
        version,
        topics=named,
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )


def delete_records(version: int, topic: str, *offsets: int, timeout_ms: int = 5000) -> Any:
    """Return a DeleteRecords request with one partition for each of
    ``offsets``, numbered from 0."""
    parts = tuple(
        nested(
            DELETE_RECORDS, version, "DeleteRecordsPartition", partition_index=number, offset=offset
        )
        for number, offset in enumerate(offsets)
    )
    made = nested(DELETE_RECORDS, version, "DeleteRecordsTopic", name=topic, partitions=parts)
    return request(DELETE_RECORDS, version, topics=(made,), timeout=duration(timeout_ms))


def offset_for_leader_epoch(version: int, topic: str, current: int, epoch: int) -> Any:
    """Return an OffsetForLeaderEpoch request for partition 0 of a topic."""
    partition_request = nested(
        OFFSET_FOR_LEADER_EPOCH,
        version,
        "OffsetForLeaderPartition",
        partition=0,
        current_leader_epoch=current,
        leader_epoch=epoch,
    )
    made = nested(
        OFFSET_FOR_LEADER_EPOCH,
        version,
        "OffsetForLeaderTopic",
        topic=topic,
        partitions=(partition_request,),
    )
    return request(OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=(made,))
