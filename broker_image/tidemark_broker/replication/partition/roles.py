"""Role changes of a replica.

The state comes from the controller. It is on disk before the replica starts to lead in it. Some
other states take effect before they are on disk (:func:`may_be_persisted_later`). A leader whose
log may lack records of the tier queries the tier first (:mod:`takeover`). One whose disk lost
records does not lead any more in that epoch, because others may have what it acknowledged.
"""

import logging
from dataclasses import replace

from tidemark.reasons import Reason
from tidemark.wire import control
from tidemark_broker.log import StorageError, opening
from tidemark_broker.replication.metadata import TopicMetadata, is_newer
from tidemark_broker.replication.partition import isr_and_high_watermark, prefix_rule
from tidemark_broker.replication.partition.leader import LeaderRole
from tidemark_broker.replication.partition.partition import Partition, Role
from tidemark_broker.replication.partition.prefix_rule import Doubt
from tidemark_broker.replication.partition.state_file import StoredState
from tidemark_broker.replication.remote import TierEnd
from tidemark_broker.replication.threads import in_role_thread, in_thread

logger = logging.getLogger(__name__)

#: A loss that the controller does not know yet: the replica may not lead in any epoch.
_EVERY_EPOCH = 2**31 - 1


async def apply(
    partition: Partition, view: TopicMetadata, row: control.PartitionState, controller_epoch: int
) -> bool:
    """Apply a partition state that the controller has sent: persist it, then take the role in it.

    A state that :func:`may_be_persisted_later` takes effect first.
    ``row`` is the partition's state, ``view`` its topic's metadata. Return False if it is ignored.
    A state that is older than the known one changes only the topic's settings. Directly after a
    start an older state is ignored completely: the controller must first resolve this broker's
    report, which is ahead of its own state. Raises StorageError if the state cannot be persisted.
    """
    async with partition.lock:
        known = partition.row
        if partition.removed:
            return False
        # An older state never replaces a newer one; Kafka's leaders compare epochs the same way.
        if known is not None and is_newer(known, row):
            if partition.role is Role.IDLE:
                logger.warning(
                    "%s: the controller's state (epochs %d, %d) is older than the stored one "
                    "(%d, %d): no role is taken",
                    partition.tp,
                    row.leader_epoch,
                    row.partition_epoch,
                    known.leader_epoch,
                    known.partition_epoch,
                )
                return False
            row = known
        had_no_state = partition.stored is None
        # After a crash nothing proves the log complete. It is proven again once the current leader
        # has added the replica to the ISR.
        if partition.role is Role.FOLLOWER and prefix_rule.joined_isr(
            known, row, partition.context.node_id
        ):
            partition.doubt = None
        tiering_changed = _tiering_differs(partition, view)
        try:
            if tiering_changed:
                # Local retention must not delete under the old tiering while the new one is stored.
                async with partition.retention_lock:
                    await _persist(partition, view, row, controller_epoch)
                    partition.view = view
            elif may_be_persisted_later(partition, view, row, controller_epoch):
                # The file is written later, as after an answer to AlterPartition.
                if partition.stored is not None and row != known:
                    partition.remember(partition.stored.with_row(row))
                partition.view = view
            else:
                await _persist(partition, view, row, controller_epoch)
                partition.view = view
        # The new role is not taken, but another broker may lead now.
        except StorageError:
            _give_up_former_role(partition, row)
            raise
        # Only now it is known whether the topic has a tier, on which the log start depends.
        if had_no_state:
            partition.settle_log_start()
        # The controller's answer to an ISR proposal may have brought a newer state meanwhile.
        await _take_role(partition, partition.row or row)
        if tiering_changed and partition.context.remote is not None:
            partition.context.remote.on_tiering_change(partition)
        return True


def _give_up_former_role(partition: Partition, row: control.PartitionState) -> None:
    """Give up leadership that an unpersistable state takes away.

    The state gives no new role. But another broker may lead now, and waiting operations must be
    notified.
    """
    leads = partition.role in (Role.LEADER, Role.TAKING_OVER)
    same = (row.leader, row.leader_epoch) == (partition.context.node_id, partition.leader_epoch)
    if leads and not same:
        _step_down(partition, Role.IDLE)


def _tiering_differs(partition: Partition, view: TopicMetadata) -> bool:
    stored = partition.stored
    return stored is None or stored.tiering != view.tiering


def may_be_persisted_later(
    partition: Partition, view: TopicMetadata, row: control.PartitionState, controller_epoch: int
) -> bool:
    """Return whether a state may take effect before it is in the state file.

    That is so if it changes only the ISR, or makes another broker the leader. The controller has
    persisted it, and after a restart a replica has no role until a snapshot assigns one. When a
    broker dies, hundreds of such states arrive, and new leaders must not wait for their files. A
    state in which this replica starts to lead is none of them: its epoch must be on disk before
    records of that epoch are acknowledged.
    """
    known, stored = partition.row, partition.stored
    # A replica without a role must persist the state that assigns one.
    if known is None or stored is None or partition.role not in (Role.LEADER, Role.FOLLOWER):
        return False
    is_elected = row.leader == partition.context.node_id and row.leader_epoch > known.leader_epoch
    # With the known leader, epochs and ISR it equals the known state if no other field differs.
    rest_as_known = replace(
        row,
        leader=known.leader,
        leader_epoch=known.leader_epoch,
        partition_epoch=known.partition_epoch,
        isr=known.isr,
        elr=known.elr,
        last_known_elr=known.last_known_elr,
        has_eligible_leaders=known.has_eligible_leaders,
    )
    return (
        not is_elected
        and rest_as_known == known
        and stored.controller_epoch == controller_epoch
        and not _tiering_differs(partition, view)
    )


async def _persist(
    partition: Partition, view: TopicMetadata, row: control.PartitionState, controller_epoch: int
) -> None:
    await partition.write_state(StoredState.of(view, row, controller_epoch))


async def _take_role(partition: Partition, row: control.PartitionState) -> None:
    """Become leader or follower, or give up the role, according to the partition's state."""
    if row.leader == partition.context.node_id:
        # Its lost records may be acknowledged ones, which only other replicas have.
        if row.leader_epoch <= partition.lost_in_epoch:
            stop_leading(partition, Role.IDLE)
            return
        # The same term with another ISR or replica set: followers' progress is kept.
        if partition.leader is not None and partition.leader.epoch == row.leader_epoch:
            partition.leader.adopt(row, partition.context.monotonic())
            isr_and_high_watermark.propose_news(partition)
            isr_and_high_watermark.after_change(partition)
        else:
            await become_leader(partition)
    else:
        _step_down(
            partition, Role.FOLLOWER if partition.context.node_id in row.replicas else Role.IDLE
        )


async def become_leader(partition: Partition) -> None:
    """Lead in the epoch of the current partition state, or wait for the tier first.

    A log that may lack records of the tier takes over from it (:mod:`takeover`) before it leads.
    The caller holds ``lock``.
    """
    row = partition.row
    if row is None:
        return
    # A log that may lack records of the tier must not assign their offsets again.
    reason = prefix_rule.reason_to_query_tier(partition.prefix_state())
    if reason:
        _wait_for_tier(partition, reason)
    else:
        await lead(partition, row)


def stop_if_behind_tier(partition: Partition, tier: TierEnd) -> bool:
    """Return whether the leader's log lacks records that its own claim shows to be in the tier.

    If so, it stops leading at once and accepts nothing before it has taken over from the tier.
    """
    log = partition.log
    if not prefix_rule.is_behind_tier(tier, log.epochs, next_offset=log.next_offset):
        return False
    doubt = Doubt(prefix_rule.describe_gap(tier, next_offset=log.next_offset), refuted=True)
    partition.doubt = doubt
    _wait_for_tier(partition, doubt.reason)
    return True


def _wait_for_tier(partition: Partition, doubt: str) -> None:
    """Set the role TAKING_OVER: elected, but offline until the tier was queried (:mod:`takeover`).

    ``doubt``: reason why the log may lack records of the tier.
    """
    # Log the reason once, not with every attempt.
    if partition.role is not Role.TAKING_OVER:
        partition.offline_reason = Reason.TAKING_OVER_FROM_TIER
        logger.warning(
            "%s: elected in epoch %d, but %s: querying the tier first",
            partition.tp,
            partition.leader_epoch,
            doubt,
        )
    partition.offline_message = (
        f"broker {partition.context.node_id} is to lead, but {doubt}; it first reads "
        "the end of the tier"
    )
    stop_leading(partition, Role.TAKING_OVER)
    if partition.context.remote is not None:
        partition.context.remote.on_follower(partition)


async def lead(partition: Partition, row: control.PartitionState) -> None:
    """Start to serve as leader in the epoch of ``row``. The caller holds ``lock``."""
    # Persist the epoch's start before any record of it is appended.
    await in_role_thread(partition.log.assign_leader_epoch, row.leader_epoch)
    doubt = partition.doubt
    # A claim of the epoch before may have refuted the log during the wait above.
    if doubt is not None and doubt.refuted:
        _wait_for_tier(partition, doubt.reason)
        return
    # The epoch may have started in a former run of this broker, below the log end.
    start = _epoch_start(partition, row.leader_epoch)
    partition.leader = LeaderRole(
        node_id=partition.context.node_id,
        row=row,
        epoch_start_offset=start,
        now_s=partition.context.monotonic(),
        before=partition.leader,
    )
    partition.role = Role.LEADER
    partition.doubt = None
    logger.info(
        "%s: leads in epoch %d from offset %d, ISR %s",
        partition.tp,
        row.leader_epoch,
        start,
        row.isr,
    )
    # Single-replica partitions commit at once; then report and start the leader's tasks.
    isr_and_high_watermark.after_change(partition)
    isr_and_high_watermark.propose_news(partition)
    partition.notify_role()
    if partition.context.remote is not None:
        partition.context.remote.on_leader(partition)


def _epoch_start(partition: Partition, epoch: int) -> int:
    """Return the start of an epoch that this log knows."""
    for entry in reversed(partition.log.epochs.entries):
        if entry.epoch == epoch:
            return entry.start_offset
    return partition.log.next_offset


def _step_down(partition: Partition, role: Role) -> None:
    """Take the role FOLLOWER or IDLE, and end the leader's work if there was any."""
    was_leader = partition.leader is not None
    changed = partition.role is not role
    # Waiting requests are answered even if the role stays the same.
    stop_leading(partition, role)
    if was_leader or changed:
        logger.info(
            "%s: %s of broker %d in epoch %d",
            partition.tp,
            "follower" if role is Role.FOLLOWER else "no replica",
            partition.leader_id,
            partition.leader_epoch,
        )
        if partition.context.remote is not None:
            partition.context.remote.on_follower(partition)


def stop_leading(partition: Partition, role: Role) -> None:
    """Stop serving as leader and wake all waiting operations."""
    was_leader = partition.leader is not None
    partition.leader = None
    partition.role = role
    if was_leader:
        partition.notify_role()
    partition.wake_all()


def retire(partition: Partition) -> None:
    """Take the role from a replica that is being removed, and wake all waiting operations."""
    partition.removed = True
    stop_leading(partition, Role.IDLE)


async def reopen(partition: Partition) -> None:
    """Open a failed log again. Raises :class:`StorageError` if its disk still fails.

    If records are lost, this replica must leave the ISR, and must not continue as leader. The
    broker then registers again, so that the controller knows of the loss.
    """
    async with partition.lock:
        if partition.removed or partition.log.failure is None:
            return
        is_complete = await in_thread(opening.reopen, partition.log)
        # The controller must not elect this replica by an ISR from before the loss.
        if not is_complete:
            logger.error(
                "%s: the disk lost records, the log ends at %d now: this broker leaves its ISR",
                partition.tp,
                partition.next_offset,
            )
            partition.lost_in_epoch = _EVERY_EPOCH
            partition.doubt = prefix_rule.RECORDS_LOST
            if partition.role in (Role.LEADER, Role.TAKING_OVER):
                _step_down(partition, Role.IDLE)
            if partition.context.records_lost is not None:
                partition.context.records_lost()
        partition.wake_all()


def confirm_loss(partition: Partition) -> None:
    """Limit a loss to the current epoch: the controller decides about later epochs knowing of the
    loss.
    """
    if partition.lost_in_epoch == _EVERY_EPOCH:
        partition.lost_in_epoch = partition.leader_epoch
