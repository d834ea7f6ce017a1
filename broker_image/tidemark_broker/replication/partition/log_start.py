"""Log start changes by DeleteRecords (KIP-107) on the leader, and the low watermark.

Below the *low watermark* no live replica has a visible record. It is the smallest log start offset
among:

- the leader
- every *assigned, live* follower, not only the ISR
- every replica that may be elected, live or not (the ISR, and eligible leaders (KIP-966) if there
  are any)
- in a topic with a tier, every follower that has fetched in the last seconds: it may serve
  consumers from the tier, even if it is not live for the controller

A replica's log start counts only once its checkpoint is durable. So every value here survives a
crash of its replica, and no cleanly elected leader has a lower one (invariant 2). A replica that
joins the ISR later has it already (:func:`isr_decisions.may_join`).
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from kio.schema.errors import ErrorCode

from tidemark_broker.log import start_offsets
from tidemark_broker.purgatory import PartitionChange
from tidemark_broker.replication.partition.partition import Partition
from tidemark_broker.replication.types import DeleteResult

logger = logging.getLogger(__name__)

UNKNOWN = -1


def delete_records(partition: Partition, offset: int) -> DeleteResult:
    """Delete the records below ``offset`` on the leader (DeleteRecords, KIP-107).

    -1 stands for the high watermark. The log start is raised as soon as it is durable. The caller
    then waits for ``(PartitionChange.LOW_WATERMARK, tp)`` until the low watermark has reached
    ``result.offset``, that is, until all replicas have deleted the records.
    """
    error = partition.check_leader()
    # Kafka rejects DeleteRecords on a topic that is only compacted.
    if error is ErrorCode.none and not partition.log.config.deletes:
        error = ErrorCode.policy_violation
    target = partition.high_watermark if offset == -1 else offset
    if error is ErrorCode.none and not 0 <= target <= partition.high_watermark:
        error = ErrorCode.offset_out_of_range
    if error is not ErrorCode.none:
        return DeleteResult(error, target, UNKNOWN)
    # Only announced here: clients see it once a checkpoint has it.
    raise_to(partition, target)
    return DeleteResult(ErrorCode.none, target, low_watermark(partition))


def last_epoch_below(partition: Partition, offset: int) -> int:
    """Return the leader epoch of the last record below ``offset``.

    Together with the offset it identifies the records in any log. If no record is left, the
    leader's own epoch is returned, which has no record below ``offset`` either.
    """
    epoch = partition.log.epochs.epoch_for_offset(offset - 1)
    return partition.leader_epoch if epoch < 0 else epoch


def delete_intended(
    partition: Partition, offset: int, *, leader_epoch: int, last_epoch: int
) -> DeleteResult:
    """Delete the records below ``offset`` if they are still those that the caller means.

    After an unclean election other records may have the same offsets, so the caller also names the
    leader's epoch and ``last_epoch``, the leader epoch in which the record before ``offset`` was
    written.

    The error is OFFSET_OUT_OF_RANGE if the log has other records; ``lost_from`` is then the end of
    the intended ones. It is OFFSET_NOT_AVAILABLE if a newly elected leader does not know yet that
    they are committed.
    """
    error = partition.check_leader(leader_epoch)
    if error is not ErrorCode.none:
        return DeleteResult(error, offset, UNKNOWN)
    log = partition.log
    # Read before the log start: retention, in a thread, moves the log start first.
    epochs = log.epochs
    # The records are not deleted yet, and the one before ``offset`` is missing or of another epoch.
    if log.log_start_offset < offset and (
        log.next_offset < offset or epochs.epoch_for_offset(offset - 1) != last_epoch
    ):
        # The intended records end where this log's part of their epoch ends, if it has that epoch.
        end = epochs.end_offset_for(last_epoch, log.next_offset)
        lost_from = end.end_offset if end.epoch == last_epoch else UNKNOWN
        return DeleteResult(ErrorCode.offset_out_of_range, offset, UNKNOWN, lost_from=lost_from)
    result = delete_records(partition, offset)
    # The records are present, but not known as committed yet.
    if result.error is ErrorCode.offset_out_of_range:
        return replace(result, error=ErrorCode.offset_not_available)
    return result


def raise_to(partition: Partition, offset: int) -> "asyncio.Future[None] | None":
    """Raise the log start once it is durable; the future is done then.

    It never falls, nor exceeds the high watermark. None: it is at ``offset`` or on its way already.
    """
    if not start_offsets.announce_log_start(partition.log, offset):
        return None
    return partition.context.checkpoint_log_start(partition)


def after_checkpoint(partition: Partition) -> None:
    """Put log starts into effect that a checkpoint has made durable."""
    log = partition.log
    durable, notified = log.durable_log_start_offset, partition.durable_log_start_notified
    if notified == durable == log.log_start_offset == log.announced_log_start_offset:
        return  # the common case, for thousands of logs
    if start_offsets.adopt_checkpointed_log_start(log):
        logger.info("%s: log start offset raised to %d", partition.tp, partition.log_start_offset)
    if log.durable_log_start_offset != partition.durable_log_start_notified:
        partition.durable_log_start_notified = log.durable_log_start_offset
        partition.context.purgatory.notify((PartitionChange.LOW_WATERMARK, partition.tp))


def low_watermark(partition: Partition) -> int:
    """Return the smallest durable log start of the leader, its live followers and all electable
    replicas; -1 if this is not the leader.
    """
    leader = partition.leader
    if leader is None:
        return UNKNOWN
    # Followers report their durable log start in each fetch.
    known = {**leader.removed, **leader.followers}
    reported = {node: progress.log_start_offset for node, progress in known.items()}
    others = (_alive_followers(partition) | leader.electable) - {partition.context.node_id}
    if partition.tiering.reads_tier:
        others |= leader.in_contact(partition.context.monotonic())
    return smallest(partition.durable_log_start_offset, reported, others)


def _alive_followers(partition: Partition) -> frozenset[int]:
    """Return the assigned followers that are registered and unfenced."""
    node_id, row = partition.context.node_id, partition.row
    if row is None:
        return frozenset()
    others = (node for node in row.replicas if node >= 0 and node != node_id)
    return partition.context.metadata.alive(others)


def smallest(
    leader_log_start_offset: int, reported: Mapping[int, int], others: Collection[int]
) -> int:
    """Return the minimum.

    ``reported`` is the last log start of each follower (-1: it never fetched).
    """
    followers = [reported.get(node, UNKNOWN) for node in others]
    return min([leader_log_start_offset, *followers])
