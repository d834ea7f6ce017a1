"""Leader's response to a follower's fetch of one partition.

The checks run in this order: epoch, assignment, log start, epoch of the follower's last record, and
then divergence. The log start comes *before* divergence; records come last.
"""

from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import UNDEFINED_END, EpochEnd
from tidemark_broker.log import OffsetOutOfRange, StorageError, reading
from tidemark_broker.replication.following.follower_fetch_session import LeaderState
from tidemark_broker.replication.following.wire import ReplicaFetchPartition, ReplicaFetchResult
from tidemark_broker.replication.partition import (
    Partition,
    consumer_reads,
    divergence,
    isr_and_high_watermark,
)
from tidemark_broker.replication.threads import in_read_thread


def state_of(partition: Partition) -> LeaderState:
    """Return the values that a response reports for a partition in addition to records.

    They have the form of :func:`state_in`, so that both can be compared: a partition whose values
    equal those of the last response need not be sent again (KIP-227).
    """
    # Only durable values of the tier are reported: a crash must not undo them.
    log, end = partition.log, partition.durable_remote_end
    position = partition.durable_tier_position
    return LeaderState(
        partition.leader_epoch,
        log.high_watermark,
        log.log_start_offset,
        partition.durable_head_tiered_epoch,
        -1 if end is None else end.offset,
        -1 if end is None else end.epoch,
        -1 if position is None else position.version,
        partition.tier_damaged,
    )


def state_in(result: ReplicaFetchResult) -> LeaderState:
    """Return the values that a response reports in addition to records."""
    return LeaderState(
        result.leader_epoch,
        result.high_watermark,
        result.log_start_offset,
        result.head_tiered_epoch,
        result.remote_end_offset,
        result.remote_end_epoch,
        result.head_version,
        result.tier_damaged,
    )


def check(partition: Partition, replica_id: int, requested: ReplicaFetchPartition) -> ErrorCode:
    """Return the error for a follower's fetch of one partition, or ``none`` if it is served.

    The order matters: each check assumes that the earlier ones have passed.
    """
    error = partition.check_leader(requested.current_leader_epoch)
    if error is not ErrorCode.none:
        return error
    # A replica that is not assigned yet: the follower waits until both brokers have received the
    # newer assignment from the controller.
    if partition.leader is None or replica_id not in partition.leader.followers:
        return ErrorCode.unknown_leader_epoch
    log = partition.log
    # Records below the log start are deleted in both tiers, whatever the epochs say.
    if requested.fetch_offset < log.log_start_offset:
        return ErrorCode.offset_out_of_range
    # Only this log has the follower's missing range; OFFSET_OUT_OF_RANGE makes it restart.
    if isr_and_high_watermark.must_fetch_again(
        partition, partition.leader, replica_id, requested.local_log_start_offset
    ):
        return ErrorCode.offset_out_of_range
    # The follower's last record is of an epoch that this log does not contain at all.
    if requested.last_fetched_epoch != divergence.UNKNOWN:
        end = consumer_reads.epoch_end(log, requested.last_fetched_epoch)
        if end.epoch < 0 or end.end_offset < 0:
            return ErrorCode.offset_out_of_range
    # An empty follower has no epoch to compare, so its offset alone decides.
    elif requested.fetch_offset > log.next_offset:
        return ErrorCode.offset_out_of_range
    # The follower starts its log from the tier instead of copying it through this leader.
    if requested.fetch_offset < log.local_log_start_offset:
        return ErrorCode.offset_moved_to_tiered_storage
    return ErrorCode.none


def is_in_step(partition: Partition, replica_id: int, requested: ReplicaFetchPartition) -> bool:
    """Return whether a fetch passes :func:`check`, and the follower's log does not diverge.

    It is True for nearly all fetches, and costs less than both: the follower's last record is of
    the latest epoch, and its offset is in the leader's local log. False means that they decide.
    """
    leader, log, offset = partition.leader, partition.log, requested.fetch_offset
    return (
        leader is not None
        and replica_id in leader.followers
        and requested.last_fetched_epoch == log.epochs.latest_epoch
        and log.local_log_start_offset <= offset <= log.next_offset
        and requested.local_log_start_offset <= log.log_start_offset <= offset
        and partition.check_leader(requested.current_leader_epoch) is ErrorCode.none
    )


def records(
    partition: Partition, requested: ReplicaFetchPartition, left: int
) -> ReplicaFetchResult | None:
    """Return a result with records from the follower's fetch offset, from memory.

    ``left``: bytes that the response may still take. The first batch is complete even if it is
    larger, unless the response is full already. None is returned if there is nothing but offsets.
    Raises :class:`NotCached` if the records are on the disk only (:func:`records_on_disk`).
    """
    log = partition.log
    # The response is full, or there is nothing new: only the offsets are sent.
    if left <= 0 or requested.fetch_offset >= log.next_offset:
        return None
    context = partition.context
    if not context.failures.may_try(partition.tp, context.monotonic()):
        return answer(partition, ErrorCode.kafka_storage_error)
    try:
        read = reading.read_cached(
            log,
            requested.fetch_offset,
            max_bytes=min(requested.max_bytes, left),
            up_to_offset=log.next_offset,
            min_one=True,
        )
    except (OffsetOutOfRange, StorageError) as error:
        return _unreadable(partition, error)
    # No copy: only reads for a socket return a view.
    return answer(partition, ErrorCode.none, records=bytes(read.data))


async def records_on_disk(
    partition: Partition, requested: ReplicaFetchPartition, max_bytes: int
) -> ReplicaFetchResult:
    """Return a result with records that :func:`records` has not found in memory.

    They are read in a thread.
    """
    log = partition.log
    try:
        read = await in_read_thread(
            reading.read,
            log,
            requested.fetch_offset,
            max_bytes=max_bytes,
            up_to_offset=log.next_offset,
            min_one=True,
        )
    except (OffsetOutOfRange, StorageError) as failure:
        return _unreadable(partition, failure)
    # The leader may have changed during the disk read. The offsets in the response must be of the
    # same leader epoch as the records.
    error = partition.check_leader(requested.current_leader_epoch)
    if error is not ErrorCode.none:
        return answer(partition, error)
    return answer(partition, ErrorCode.none, records=bytes(read.data))


def _unreadable(partition: Partition, error: OffsetOutOfRange | StorageError) -> ReplicaFetchResult:
    """Return the result for records that retention has deleted, or whose disk fails."""
    if isinstance(error, OffsetOutOfRange):
        return answer(partition, ErrorCode.offset_out_of_range)
    partition.storage_failed(error)
    return answer(partition, ErrorCode.kafka_storage_error)


def refusal(requested: ReplicaFetchPartition, error: ErrorCode) -> ReplicaFetchResult:
    """Return an error result without offsets, for a partition that this broker does not host."""
    return ReplicaFetchResult(
        topic_id=requested.topic_id,
        partition=requested.partition,
        error_code=int(error.value),
    )


def answer(
    partition: Partition,
    error: ErrorCode,
    *,
    diverging: EpochEnd | None = None,
    records: bytes = b"",
) -> ReplicaFetchResult:
    """Return a result with the leader's offsets, its log start and the end of the tier.

    ``diverging``: point where the follower must truncate (KIP-595), None for none.
    """
    log = partition.log
    point = diverging or UNDEFINED_END
    # The tier's end is sent only once it is in this leader's state file.
    end, position = partition.durable_remote_end, partition.durable_tier_position
    return ReplicaFetchResult(
        topic_id=partition.topic_id,
        partition=partition.partition,
        error_code=int(error.value),
        leader_epoch=partition.leader_epoch,
        high_watermark=log.high_watermark,
        log_start_offset=log.log_start_offset,
        local_log_start_offset=log.local_log_start_offset,
        next_offset=log.next_offset,
        diverging_epoch=point.epoch,
        diverging_end_offset=point.end_offset,
        head_tiered_epoch=partition.durable_head_tiered_epoch,
        remote_end_offset=-1 if end is None else end.offset,
        remote_end_epoch=-1 if end is None else end.epoch,
        records=records,
        head_version=-1 if position is None else position.version,
        head_commit_id="" if position is None else position.commit_id,
        tier_damaged=partition.tier_damaged,
        head_floor_epoch=0 if position is None else position.floor_epoch,
    )
