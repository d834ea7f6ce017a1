"""Record deletions in the control protocol, between the controller and leaders.

Kafka's ListOffsets, OffsetForLeaderEpoch and DeleteRecords address topics by name. A name can be
reused, and a leader that receives the new topic late would answer for the former one. Both messages
here therefore have the topic's id and the leader epoch of each partition, and a leader with another
epoch refuses. Offsets are -1 when unknown.
"""

import uuid

from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i64

from tidemark.wire.entity import entity, wire

DELETION_POINTS = 10008
DELETE_TOPIC_RECORDS = 10009

#: ``before_offset`` of everything that is committed at the time of the query.
HIGH_WATERMARK = -1
#: ``before_time_ms`` of a query by offset.
NO_TIME = -1

_nested = EntityType.nested
_request = EntityType.request
_response = EntityType.response


@entity(_nested, DELETION_POINTS)
class DeletionPointQuery:
    """Question about one partition, which the receiver leads in ``leader_epoch``.

    It selects the records before the first one of ``before_time_ms`` or later. If that is
    :data:`NO_TIME`, it selects those below ``before_offset``.
    """

    partition: int = wire("int32")
    leader_epoch: int = wire("int32")
    before_offset: int = wire("int64", default=i64(HIGH_WATERMARK))
    before_time_ms: int = wire("int64", default=i64(NO_TIME))


@entity(_request, DELETION_POINTS)
class DeletionPointsRequest:
    """Question for the offsets that a record deletion selects (KIP-107); nothing is changed."""

    controller_epoch: int = wire("int32")
    topic_id: uuid.UUID = wire("uuid")
    partitions: tuple[DeletionPointQuery, ...]


@entity(_nested, DELETION_POINTS)
class DeletionPoint:
    """Answer for one partition.

    ``offset``: the records below it are selected; never above the high watermark unless requested.
    ``last_epoch``: leader epoch of the last of them, the leader's own if there is none.
    ``size_bytes``: of the segments wholly below, in the tier or else in the leader's log; -1 if the
    tier does not answer.

    ``error_code``: 0, UNKNOWN_TOPIC_ID (100): not hosted here; FENCED_LEADER_EPOCH (74),
    UNKNOWN_LEADER_EPOCH (76), NOT_LEADER_OR_FOLLOWER (6), OFFSET_NOT_AVAILABLE (78),
    REQUEST_TIMED_OUT (7), KAFKA_STORAGE_ERROR (56).
    """

    partition: int = wire("int32")
    error_code: int = wire("int16", default=i16(0))
    log_start_offset: int = wire("int64", default=i64(-1))
    high_watermark: int = wire("int64", default=i64(-1))
    offset: int = wire("int64", default=i64(-1))
    last_epoch: int = wire("int32", default=i32(-1))
    size_bytes: int = wire("int64", default=i64(-1))


@entity(_response, DELETION_POINTS)
class DeletionPointsResponse:
    """One point for each partition. ``error_code``: 0 or STALE_CONTROLLER_EPOCH (11)."""

    error_code: int = wire("int16")
    points: tuple[DeletionPoint, ...]


@entity(_nested, DELETE_TOPIC_RECORDS)
class PartitionDeletion:
    """Deletion of the records below ``offset``.

    The receiver executes it if it leads in ``leader_epoch``, and the last of the records was
    written in ``last_epoch``.
    """

    partition: int = wire("int32")
    leader_epoch: int = wire("int32")
    offset: int = wire("int64")
    last_epoch: int = wire("int32")


@entity(_request, DELETE_TOPIC_RECORDS)
class DeleteTopicRecordsRequest:
    """Deletion of records of one topic.

    Answered once all replicas have the low watermarks, or after ``timeout_ms``. Idempotent.
    """

    controller_epoch: int = wire("int32")
    topic_id: uuid.UUID = wire("uuid")
    timeout_ms: int = wire("int32")
    partitions: tuple[PartitionDeletion, ...]


@entity(_nested, DELETE_TOPIC_RECORDS)
class PartitionDeletionResult:
    """Result of one partition.

    ``error_code`` as in DeleteRecords, or as in :class:`DeletionPoint`. OFFSET_NOT_AVAILABLE
    (78): the high watermark has not reached the offset yet. OFFSET_OUT_OF_RANGE (1): this log does
    not have the selected records; ``lost_from_offset`` is where it diverges from the log that had
    them, -1 if unknown. REQUEST_TIMED_OUT (7): deleted here, and not yet by all replicas.
    """

    partition: int = wire("int32")
    error_code: int = wire("int16", default=i16(0))
    low_watermark: int = wire("int64", default=i64(-1))
    lost_from_offset: int = wire("int64", default=i64(-1))


@entity(_response, DELETE_TOPIC_RECORDS)
class DeleteTopicRecordsResponse:
    """One result for each partition. ``error_code``: 0 or STALE_CONTROLLER_EPOCH (11)."""

    error_code: int = wire("int16")
    results: tuple[PartitionDeletionResult, ...]
