"""Record deletions in the control protocol: what the controller asks leaders, and tells them.

Kafka's ListOffsets, OffsetForLeaderEpoch and DeleteRecords name topics, which come again, and a
leader that hears late of a new topic would answer for the former one. So both messages carry the
topic's id and the leader epoch of each partition, and a leader in another one refuses. Offsets are
-1 when unknown.
"""

import uuid

from kio.static.constants import EntityType

from tidemark.wire.entity import entity, wire

DELETION_POINTS = 10008
DELETE_TOPIC_RECORDS = 10009

_nested = EntityType.nested
_request = EntityType.request
_response = EntityType.response


@entity(_nested, DELETION_POINTS)
class PointAsked:
    """What is meant in one partition, which the receiver leads in ``leader_epoch``: the records
    before the first one of ``before_time_ms`` or later; where that is -1, those below
    ``before_offset`` (-1: below the high watermark)."""

    partition: int = wire("int32")
    leader_epoch: int = wire("int32")
    before_offset: int = wire("int64")
    before_time_ms: int = wire("int64")


@entity(_request, DELETION_POINTS)
class DeletionPointsRequest:
    """Which offsets a record deletion means (KIP-107); nothing is changed."""

    controller_epoch: int = wire("int32")
    topic_id: uuid.UUID = wire("uuid")
    partitions: tuple[PointAsked, ...]


@entity(_nested, DELETION_POINTS)
class PointMeant:
    """``offset``: records below it are meant; never beyond the high watermark unless asked so.
    ``last_epoch`` is the leader epoch of the last of them, the leader's own where there is none.
    ``size_bytes``: of the segments that lie wholly below, in the tier or else in the leader's log;
    -1 where the tier does not say.

    ``error_code``: 0, UNKNOWN_TOPIC_ID (100): not hosted here; FENCED_LEADER_EPOCH (74),
    UNKNOWN_LEADER_EPOCH (76), NOT_LEADER_OR_FOLLOWER (6), OFFSET_NOT_AVAILABLE (78),
    REQUEST_TIMED_OUT (7), KAFKA_STORAGE_ERROR (56)."""

    partition: int = wire("int32")
    error_code: int = wire("int16")
    log_start_offset: int = wire("int64")
    high_watermark: int = wire("int64")
    offset: int = wire("int64")
    last_epoch: int = wire("int32")
    size_bytes: int = wire("int64")


@entity(_response, DELETION_POINTS)
class DeletionPointsResponse:
    """``error_code`` 0 or STALE_CONTROLLER_EPOCH (11); one point per partition asked for."""

    error_code: int = wire("int16")
    points: tuple[PointMeant, ...]


@entity(_nested, DELETE_TOPIC_RECORDS)
class RecordsBelow:
    """Delete the records below ``offset``, if the receiver leads in ``leader_epoch`` and the last
    of them was written in ``last_epoch``."""

    partition: int = wire("int32")
    leader_epoch: int = wire("int32")
    offset: int = wire("int64")
    last_epoch: int = wire("int32")


@entity(_request, DELETE_TOPIC_RECORDS)
class DeleteTopicRecordsRequest:
    """Answered once the low watermarks are there, or after ``timeout_ms``. Idempotent."""

    controller_epoch: int = wire("int32")
    topic_id: uuid.UUID = wire("uuid")
    timeout_ms: int = wire("int32")
    partitions: tuple[RecordsBelow, ...]


@entity(_nested, DELETE_TOPIC_RECORDS)
class RecordsDeleted:
    """``error_code`` as DeleteRecords has it, or as :class:`PointMeant` has; here
    OFFSET_NOT_AVAILABLE (78) says that the high watermark has not reached the offset yet, and
    OFFSET_OUT_OF_RANGE (1) that the records which were meant are not in this log:
    ``lost_from_offset`` is where it parts from the one that had them, -1 where that is not
    known. REQUEST_TIMED_OUT (7): it is deleted here, and not yet by all replicas."""

    partition: int = wire("int32")
    error_code: int = wire("int16")
    low_watermark: int = wire("int64")
    lost_from_offset: int = wire("int64")


@entity(_response, DELETE_TOPIC_RECORDS)
class DeleteTopicRecordsResponse:
    """``error_code`` 0 or STALE_CONTROLLER_EPOCH (11); one result per partition."""

    error_code: int = wire("int16")
    results: tuple[RecordsDeleted, ...]
