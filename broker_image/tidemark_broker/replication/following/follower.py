"""Application of a leader's response to a follower's log.

The order matters: records, then the high watermark, then the log start, so that log start <= high
watermark always holds. Only the leader epochs decide what is truncated (see :mod:`divergence`).
Records below the leader's local log start are in the tier (:mod:`tier_bootstrap`).
"""

import enum
import logging
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import EpochEnd, EpochEntry
from tidemark.tier.metadata.head import HeadPosition
from tidemark_broker.log import CorruptRecords, ProducerBatch, StorageError, appending, truncation
from tidemark_broker.purgatory import PartitionChange
from tidemark_broker.replication.following.wire import ReplicaFetchPartition, ReplicaFetchResult
from tidemark_broker.replication.partition import (
    Partition,
    Role,
    consumer_reads,
    divergence,
    log_start,
    remote_end,
)
from tidemark_broker.replication.threads import in_role_thread

logger = logging.getLogger(__name__)

#: Errors of a leader that has not applied the state in which it leads. This follower was faster.
_LEADER_NOT_READY = frozenset(
    {ErrorCode.not_leader_or_follower, ErrorCode.unknown_leader_epoch, ErrorCode.unknown_topic_id}
)


class FetchOutcome(enum.Enum):
    """Next step of a follower.

    ``PROGRESS``: fetch again at once. ``IDLE``: nothing new. ``BACK_OFF``: pause first.
    ``LEADER_NOT_READY``: pause briefly, because the leader has not taken its role yet.
    ``FROM_TIER``: start the log from the tier first (:mod:`tier_bootstrap`).
    """

    PROGRESS = enum.auto()
    IDLE = enum.auto()
    BACK_OFF = enum.auto()
    LEADER_NOT_READY = enum.auto()
    FROM_TIER = enum.auto()


def next_request(partition: Partition, max_bytes: int) -> ReplicaFetchPartition:
    """Return the parameters of the partition's next fetch from its leader.

    ``log_start_offset`` is the durable one: the leader may complete DeleteRecords by it (KIP-107).
    """
    # The epoch and offset of the last record let the leader detect a divergence (KIP-595).
    log = partition.log
    return ReplicaFetchPartition(
        topic_id=partition.topic_id,
        partition=partition.partition,
        current_leader_epoch=partition.leader_epoch,
        fetch_offset=log.next_offset,
        last_fetched_epoch=log.epochs.latest_epoch,
        log_start_offset=partition.durable_log_start_offset,
        local_log_start_offset=log.local_log_start_offset,
        tiered_epoch=partition.tiering.epoch,
        max_bytes=max_bytes,
    )


def is_unchanged_since(partition: Partition, requested: ReplicaFetchPartition) -> bool:
    """Return whether :func:`next_request` would be unchanged, at a lower cost."""
    log = partition.log
    return (
        log.next_offset == requested.fetch_offset
        and log.local_log_start_offset == requested.local_log_start_offset
        and log.durable_log_start_offset == requested.log_start_offset
        and partition.leader_epoch == requested.current_leader_epoch
        and partition.tiering.epoch == requested.tiered_epoch
        and log.epochs.latest_epoch == requested.last_fetched_epoch
    )


async def apply_answer(
    partition: Partition, requested: ReplicaFetchPartition, result: ReplicaFetchResult
) -> FetchOutcome:
    """Apply the leader's result for one partition to the local log.

    It is ignored if the role, the leader epoch or the log end have changed since the request.
    Storage errors become ``BACK_OFF``.
    """
    context = partition.context
    async with partition.lock:
        if not still_applies(partition, requested):
            return FetchOutcome.IDLE
        try:
            # Truncations run in a thread. The lock keeps role changes out until they have ended.
            outcome = await _apply(partition, result)
        except StorageError as error:
            partition.storage_failed(error)
            return FetchOutcome.BACK_OFF
        except CorruptRecords:
            logger.exception("%s: the leader's records cannot be appended", partition.tp)
            return FetchOutcome.BACK_OFF
        if outcome is FetchOutcome.PROGRESS:
            context.failures.succeeded(partition.tp)
        return outcome


def still_applies(partition: Partition, requested: ReplicaFetchPartition) -> bool:
    """Return whether role, epoch and log end are those of the request.

    The caller holds ``lock``.
    """
    return (
        partition.role is Role.FOLLOWER
        and partition.leader_epoch == requested.current_leader_epoch
        and partition.next_offset == requested.fetch_offset
    )


async def _apply(partition: Partition, result: ReplicaFetchResult) -> FetchOutcome:
    """Apply a result that still matches the replica: truncate or append, then move the offsets.

    The caller holds ``lock``. Raises StorageError or CorruptRecords.
    """
    error = ErrorCode(result.error_code)
    if error is ErrorCode.offset_out_of_range:
        return await _out_of_range(partition, result)
    if error is ErrorCode.offset_moved_to_tiered_storage:
        return FetchOutcome.FROM_TIER
    if error is not ErrorCode.none:
        logger.info("%s: leader %d answers %s", partition.tp, partition.leader_id, error.name)
        is_early = error in _LEADER_NOT_READY
        return FetchOutcome.LEADER_NOT_READY if is_early else FetchOutcome.BACK_OFF
    # Record the tier's end first: truncation and retention depend on it.
    _note_tier(partition, result)
    # The local log has records that the leader's has not. They must go before anything is appended.
    if result.diverging_epoch >= 0:
        return await _truncate(
            partition, EpochEnd(result.diverging_epoch, result.diverging_end_offset)
        )
    if result.records:
        # The leader's log starts above this log's end: everything here was deleted.
        if result.log_start_offset >= partition.next_offset:
            await _drop_deleted_log(partition, result)
        # Verified like a client's: CRCs, contiguous offsets, epochs that do not fall.
        appending.append_as_follower(partition.log, result.records)
    # High watermark before log start, so that their order holds at every moment.
    _advance_high_watermark(partition, min(result.high_watermark, partition.next_offset))
    log_start.raise_to(partition, min(result.log_start_offset, partition.high_watermark))
    _close_copied_segment(partition)
    return FetchOutcome.PROGRESS if result.records else FetchOutcome.IDLE


def _close_copied_segment(partition: Partition) -> None:
    """Close the active segment once the tier reaches into it, if the leader closes segments early.

    A leader with a maximum lag closes segments by its own clock. A follower that did not would keep
    one large segment, and would copy all of it again as the next leader.
    """
    log = partition.log
    if not (log.config.limits_lag_time and partition.tiering.copies):
        return
    # A log that ends within the tier is still catching up with segments that are copied already.
    if log.active_base_offset <= log.highest_remote_offset < log.next_offset:
        appending.roll(log, partition.context.wall_ms())


def _advance_high_watermark(partition: Partition, offset: int) -> None:
    """Raise the high watermark and wake consumers that fetch from this follower (KIP-392)."""
    if offset > partition.high_watermark:
        partition.log.advance_high_watermark(offset)
        partition.context.purgatory.notify((PartitionChange.HIGH_WATERMARK, partition.tp))


async def _drop_deleted_log(partition: Partition, leader: ReplicaFetchResult) -> None:
    """Empty a log whose records were all deleted.

    A log that ends within the leader's first batch has another history, whose epochs the leader no
    longer has. An empty log accepts that batch (UnexpectedAppendOffsetException in Kafka's
    Partition).
    """
    log = partition.log
    first_offset = int.from_bytes(leader.records[:8], "big")
    if first_offset < log.next_offset > log.log_start_offset:
        await start_at(partition, log.next_offset, log.next_offset, ())


def _note_tier(partition: Partition, result: ReplicaFetchResult) -> None:
    """Record what a response says of the tier: its end, the version of its manifest, damage."""
    remote_end.note_damage(partition, is_damaged=result.tier_damaged)
    if result.head_version >= 0:
        position = HeadPosition(result.head_version, result.head_commit_id, result.head_floor_epoch)
        remote_end.note_position(partition, position)
    if result.head_tiered_epoch >= 0 or result.remote_end_offset >= 0:
        remote_end.note_head(
            partition, result.head_tiered_epoch, result.remote_end_offset, result.remote_end_epoch
        )
    # Valid only for this head: has_deleted_remote_part compares both later.
    if result.head_tiered_epoch >= partition.head_tiered_epoch:
        partition.head_log_start_offset = result.log_start_offset


async def _truncate(partition: Partition, leaders_end: EpochEnd) -> FetchOutcome:
    """Truncate the log to where it still agrees with the leader's log (KIP-595).

    ``leaders_end``: the leader's end offset of the largest epoch that is not above the follower's
    last one.
    """
    log = partition.log
    offset = divergence.truncation_offset(
        leaders_end=leaders_end,
        own_end=consumer_reads.epoch_end(log, leaders_end.epoch),
        own_next_offset=log.next_offset,
    )
    logger.info(
        "%s: the log diverges from the leader's at epoch %d, offset %d: truncating from %d to %d",
        partition.tp,
        leaders_end.epoch,
        leaders_end.end_offset,
        log.next_offset,
        offset,
    )
    cut = await in_role_thread(truncation.truncate_to, log, offset)
    # Without a change the same request would get the same response: pause first.
    return FetchOutcome.PROGRESS if cut else FetchOutcome.BACK_OFF


async def _out_of_range(partition: Partition, leader: ReplicaFetchResult) -> FetchOutcome:
    """Handle OFFSET_OUT_OF_RANGE: truncate or restart the log according to the leader's offsets.

    A log that is longer than the leader's is truncated. A log that ends below the leader's log
    start restarts there. After a disablement with policy Delete (KIP-950), a log that starts above
    the leader's log start restarts too, because only the leader's local log has the range below.
    """
    log = partition.log
    # An unclean election may have chosen a leader with a shorter log.
    if leader.next_offset < log.next_offset:
        logger.info(
            "%s: the log ends at %d, the leader's at %d: truncating to it",
            partition.tp,
            log.next_offset,
            leader.next_offset,
        )
        await in_role_thread(truncation.truncate_to, log, leader.next_offset)
        return FetchOutcome.PROGRESS
    # Nothing of this log is part of the leader's any more.
    if leader.log_start_offset > log.next_offset:
        await start_at(partition, leader.log_start_offset, leader.log_start_offset, ())
        return FetchOutcome.PROGRESS
    # A disablement with policy Delete has removed the remote segments. Only the leader's local log
    # still has the offsets between the two local log starts.
    gone = partition.tiering.has_deleted_remote_part(leader.head_tiered_epoch)
    if (
        gone
        and leader.local_log_start_offset <= leader.log_start_offset < log.local_log_start_offset
    ):
        await start_at(partition, leader.log_start_offset, leader.log_start_offset, ())
        return FetchOutcome.PROGRESS
    logger.warning(
        "%s: the leader reports offset %d as out of range without a known reason",
        partition.tp,
        log.next_offset,
    )
    return FetchOutcome.BACK_OFF


async def start_at(
    partition: Partition,
    next_offset: int,
    log_start_offset: int,
    epochs: tuple[EpochEntry, ...],
    producer_snapshot: bytes | None = None,
    recent_batches: Sequence[ProducerBatch] = (),
) -> None:
    """Drop the local log and restart it empty at ``next_offset``.

    ``epochs``, ``producer_snapshot`` and ``recent_batches`` are the state before that offset, from
    the tier. Without them the log starts without history. The caller holds ``lock``.
    """
    logger.info(
        "%s: restarts at offset %d, log start %d", partition.tp, next_offset, log_start_offset
    )
    log = partition.log
    # Blocks on the disk, so it runs in a thread. The lock keeps other changes of the log away.
    await in_role_thread(
        truncation.truncate_fully_and_start_at,
        log,
        next_offset,
        log_start_offset=log_start_offset,
        epochs=epochs,
        producer_snapshot=producer_snapshot,
        recent_batches=recent_batches,
    )
