"""Wire format of follower fetches: a separate API from Kafka's Fetch.

Kafka's Fetch has no fields for a tier, and its followers send ListOffsets and OffsetForLeaderEpoch
when they are out of range. This API has everything in one request. The follower sends its durable
log start. The leader returns its offsets, a DivergingEpoch and the end of the tier with the
records. It is served on the client listener and never advertised.

Fetches are incremental (KIP-227): each has a session's id and epoch, and names only changed
partitions.
"""

import uuid

from kio.static.constants import EntityType
from kio.static.primitive import i32, i64

from tidemark.wire.entity import entity, wire
from tidemark_broker.replication.types import FINAL_EPOCH, NO_SESSION

REPLICA_FETCH = 10010


@entity(EntityType.nested, REPLICA_FETCH)
class ReplicaFetchPartition:
    """One partition of a fetch.

    ``log_start_offset`` is the follower's, as checkpointed. ``last_fetched_epoch`` is the latest
    epoch of its log (-1: none). ``tiered_epoch`` is the one it has stored.
    """

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    current_leader_epoch: int = wire("int32")
    fetch_offset: int = wire("int64")
    last_fetched_epoch: int = wire("int32")
    log_start_offset: int = wire("int64")
    local_log_start_offset: int = wire("int64")
    tiered_epoch: int = wire("int32")
    max_bytes: int = wire("int32")


@entity(EntityType.nested, REPLICA_FETCH)
class ForgottenPartition:
    """A partition that leaves the session."""

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")


@entity(EntityType.request, REPLICA_FETCH)
class ReplicaFetchRequest:
    """Fetch of a follower.

    The response waits for ``min_bytes`` of records, a log start offset that the follower does not
    have yet, an error, or the end of ``max_wait_ms``. In a session (``session_epoch`` above 0)
    ``partitions`` are those to add or to change. All others count as fetched at the offset at which
    they were last named.
    """

    replica_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    max_wait_ms: int = wire("int32")
    min_bytes: int = wire("int32")
    max_bytes: int = wire("int32")
    partitions: tuple[ReplicaFetchPartition, ...]
    session_id: int = wire("int32", default=i32(NO_SESSION))
    session_epoch: int = wire("int32", default=i32(FINAL_EPOCH))
    forgotten: tuple[ForgottenPartition, ...] = ()


@entity(EntityType.nested, REPLICA_FETCH)
class ReplicaFetchResult:
    """Result of one partition.

    ``error_code``: 0, 1 (out of range: see ``log_start_offset`` and ``next_offset``), 6, 56, 74,
    75, 100, 109 (start at ``local_log_start_offset`` from the tier). A ``diverging_epoch`` other
    than -1 is sent without records. ``remote_end_*``: last copied record, -1 for none. ``head_*``:
    position of the newest head of the manifest, -1 for none. ``tier_damaged``: that head went back,
    so local copies of tiered data must be kept.
    """

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    error_code: int = wire("int16")
    leader_epoch: int = wire("int32", default=i32(-1))
    high_watermark: int = wire("int64", default=i64(-1))
    log_start_offset: int = wire("int64", default=i64(-1))
    local_log_start_offset: int = wire("int64", default=i64(-1))
    next_offset: int = wire("int64", default=i64(-1))
    diverging_epoch: int = wire("int32", default=i32(-1))
    diverging_end_offset: int = wire("int64", default=i64(-1))
    head_tiered_epoch: int = wire("int32", default=i32(-1))
    remote_end_offset: int = wire("int64", default=i64(-1))
    remote_end_epoch: int = wire("int32", default=i32(-1))
    records: bytes = wire("bytes", default=b"")
    head_version: int = wire("int64", default=i64(-1), tag=0)
    head_commit_id: str = wire("string", default="", tag=1)
    tier_damaged: bool = wire("bool", default=False, tag=2)
    head_floor_epoch: int = wire("int32", default=i32(0), tag=3)


@entity(EntityType.response, REPLICA_FETCH)
class ReplicaFetchResponse:
    """Results of each named partition and, in a session, of others with news.

    ``session_id``: session to continue with, 0 for none. ``error_code`` 70
    (FETCH_SESSION_ID_NOT_FOUND) and 71 (INVALID_FETCH_SESSION_EPOCH): send a full request. 77: the
    leader has another broker epoch.
    """

    error_code: int = wire("int16")
    partitions: tuple[ReplicaFetchResult, ...]
    session_id: int = wire("int32", default=i32(NO_SESSION))
