"""How a log start moves: DeleteRecords (KIP-107) on the leader, and what waits for it.

The *low watermark*: below it no live replica holds a visible record. It is the smallest log start
offset of the leader and of every *assigned, alive* follower, not only of the ISR; and of everyone
who may be elected, alive or not: the ISR, and eligible leaders (KIP-966) while there are any. A
replica's log start counts only once its checkpoint is durable, so every value here is one that
survives a crash of its replica, and no leader that is elected cleanly has a lower one (invariant
2). A replica that joins the ISR later has it already (:func:`isr.may_join`).
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from kio.schema.errors import ErrorCode

from tidemark_broker.purgatory import Change
from tidemark_broker.replication.partition.partition import Partition
from tidemark_broker.replication.types import DeleteResult

logger = logging.getLogger(__name__)

UNKNOWN = -1


def delete_records(partition: Partition, offset: int) -> DeleteResult:
    """KIP-107 on the leader: raise the log start to exactly ``offset`` (-1: the high watermark).

    The caller waits for ``(Change.LOW_WATERMARK, tp)`` until the low watermark has reached
    ``result.offset``.
    """
    error = partition.check_leader()
    if error is ErrorCode.none and not partition.log.config.deletes:
        error = ErrorCode.policy_violation
    target = partition.high_watermark if offset == -1 else offset
    if error is ErrorCode.none and not 0 <= target <= partition.high_watermark:
        error = ErrorCode.offset_out_of_range
    if error is not ErrorCode.none:
        return DeleteResult(error, target, UNKNOWN)
    raise_to(partition, target)
    return DeleteResult(ErrorCode.none, target, low_watermark(partition))


def last_epoch_below(partition: Partition, offset: int) -> int:
    """The leader epoch of the last record below ``offset``, by which any log can be asked whether
    it has the records that are meant. Where there is none any more, the leader's own: of it no
    record is there, either."""
    epoch = partition.log.epochs.epoch_for_offset(offset - 1)
    return partition.leader_epoch if epoch < 0 else epoch


def delete_meant(
    partition: Partition, offset: int, *, leader_epoch: int, last_epoch: int
) -> DeleteResult:
    """:func:`delete_records` by the leader of ``leader_epoch``, if its log holds the records that
    were meant, the last of which was written in ``last_epoch``, or has let go of them already. An
    unclean election may have put others in their place (OFFSET_OUT_OF_RANGE); a leader that was
    just elected may not know yet that they are committed (OFFSET_NOT_AVAILABLE)."""
    error = partition.check_leader(leader_epoch)
    if error is not ErrorCode.none:
        return DeleteResult(error, offset, UNKNOWN)
    log = partition.log
    epochs = log.epochs  # before the log start: retention, in a thread, moves that first
    if log.log_start_offset < offset and (
        log.next_offset < offset or epochs.epoch_for_offset(offset - 1) != last_epoch
    ):
        end = epochs.end_offset_for(last_epoch, log.next_offset)
        lost_from = end.end_offset if end.epoch == last_epoch else UNKNOWN
        return DeleteResult(ErrorCode.offset_out_of_range, offset, UNKNOWN, lost_from=lost_from)
    result = delete_records(partition, offset)
    if result.error is ErrorCode.offset_out_of_range:  # they are here, only not known as committed
        return replace(result, error=ErrorCode.offset_not_available)
    return result


def raise_to(partition: Partition, offset: int) -> "asyncio.Future[None] | None":
    """Have the log start raised (never back, never above the high watermark) as soon as it is
    durable; the future is done then. None: it is there, or on its way, already."""
    if not partition.log.announce_log_start(offset):
        return None
    return partition.context.checkpoint_log_start(partition)


def after_checkpoint(partition: Partition) -> None:
    """Checkpoints were written: a log start may have become durable, and so be shown."""
    log = partition.log
    durable, notified = log.durable_log_start_offset, partition.durable_log_start_notified
    if notified == durable == log.log_start_offset == log.announced_log_start_offset:
        return  # as nearly every log is, and there may be thousands
    if log.adopt_checkpointed_log_start():
        logger.info("%s: log start offset raised to %d", partition.tp, partition.log_start_offset)
    if log.durable_log_start_offset != partition.durable_log_start_notified:
        partition.durable_log_start_notified = log.durable_log_start_offset
        partition.context.purgatory.notify((Change.LOW_WATERMARK, partition.tp))


def low_watermark(partition: Partition) -> int:
    """The smallest durable log start of the leader, its alive followers and whoever may be
    elected; -1 elsewhere."""
    leader = partition.leader
    if leader is None:
        return UNKNOWN
    reported = {node: progress.log_start_offset for node, progress in leader.followers.items()}
    others = (_alive_followers(partition) | leader.electable) - {partition.context.node_id}
    return smallest(partition.durable_log_start_offset, reported, others)


def _alive_followers(partition: Partition) -> frozenset[int]:
    """Assigned followers that are registered and unfenced."""
    node_id, row = partition.context.node_id, partition.row
    if row is None:
        return frozenset()
    others = (node for node in row.replicas if node >= 0 and node != node_id)
    return partition.context.metadata.alive(others)


def smallest(
    leader_log_start_offset: int, reported: Mapping[int, int], others: Collection[int]
) -> int:
    """``reported``: the log start last reported by each follower (-1: it never fetched)."""
    followers = [reported.get(node, UNKNOWN) for node in others]
    return min([leader_log_start_offset, *followers])
