"""Kafka requests in any version, made with kio; what a version does not have is left out."""

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
    """kio's type of a time-out."""
    return i32Timedelta.parse(datetime.timedelta(milliseconds=milliseconds))


def fit(entity_type: Any, /, **values: Any) -> Any:
    """An entity from those of ``values`` that its version has."""
    names = {field.name for field in dataclasses.fields(entity_type)}
    return entity_type(**{name: value for name, value in values.items() if name in names})


def request(api_key: int, version: int, **values: Any) -> Any:
    return fit(load_request_schema(api_key, version), **values)


def request_as(request_type: Any, asked: Any) -> Any:
    """Return the request as a handler receives it: encoded and decoded again."""
    return decode(request_type, encode(asked))


def nested(api_key: int, version: int, entity_name: str, /, **values: Any) -> Any:
    """A part of a request."""
    module = load_payload_module(api_key, version, EntityType.request)
    return fit(getattr(module, entity_name), **values)


def answer_part(api_key: int, version: int, entity_name: str, /, **values: Any) -> Any:
    """A part of an answer."""
    module = load_payload_module(api_key, version, EntityType.response)
    return fit(getattr(module, entity_name), **values)


def answer_type(api_key: int, version: int) -> Any:
    """kio's class of the answer."""
    return load_response_schema(api_key, version)


def batch(*values: bytes, timestamp_ms: int = 1_700_000_000_000) -> bytes:
    """A record batch with one record for each value, a millisecond apart."""
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
    """One partition for each of ``records``, numbered from 0."""
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
    """One partition for each of ``offsets``, numbered from 0."""
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
    asked = nested(
        LIST_OFFSETS,
        version,
        "ListOffsetsPartition",
        partition_index=0,
        timestamp=timestamp,
        **part,
    )
    made = nested(LIST_OFFSETS, version, "ListOffsetsTopic", name=topic, partitions=(asked,))
    return request(
        LIST_OFFSETS,
        version,
        replica_id=replica_id,
        isolation_level=0,
        topics=(made,),
        timeout=duration(5000),
    )


def metadata(version: int, topics: tuple[tuple[str | None, uuid.UUID | None], ...] | None) -> Any:
    """For topics by (name, id), or all with None."""
    asked = None
    if topics is not None:
        asked = tuple(
            nested(METADATA, version, "MetadataRequestTopic", name=name, topic_id=topic_id)
            for name, topic_id in topics
        )
    return request(
        METADATA,
        version,
        topics=asked,
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )


def delete_records(version: int, topic: str, *offsets: int, timeout_ms: int = 5000) -> Any:
    """One partition for each of ``offsets``, numbered from 0."""
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
    asked = nested(
        OFFSET_FOR_LEADER_EPOCH,
        version,
        "OffsetForLeaderPartition",
        partition=0,
        current_leader_epoch=current,
        leader_epoch=epoch,
    )
    made = nested(
        OFFSET_FOR_LEADER_EPOCH, version, "OffsetForLeaderTopic", topic=topic, partitions=(asked,)
    )
    return request(OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=(made,))
