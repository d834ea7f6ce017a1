"""How a replica takes a role, and gives one up.

The state comes from the controller and is on disk before the role is taken. A leader whose log
lacks what is in the tier takes it over from there first (the prefix rule); one whose disk lost
records leads no more in that epoch, since others may hold what it acknowledged.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from tidemark.wire import control
from tidemark_broker.replication import prefix
from tidemark_broker.replication.leader import LeaderRole
from tidemark_broker.replication.metadata import TopicView, is_newer
from tidemark_broker.replication.replica import Role
from tidemark_broker.replication.state_file import StoredState
from tidemark_broker.replication.threads import in_thread

if TYPE_CHECKING:
    from tidemark_broker.replication.partition import Partition

logger = logging.getLogger(__name__)

_TIER_TIMEOUT_S = 10.0


async def apply(
    partition: "Partition", view: TopicView, row: control.PartitionState, controller_epoch: int
) -> bool:
    """Take over a state from the controller; gives False if it must not be obeyed.

    Applying the same state again is how a role is taken after a start. A row that is older
    than a known one changes nothing but the topic's own settings; after a start it is not
    even that: a report ahead of the controller's state is for the controller to resolve.
    """
    async with partition.lock:
        known = partition.row
        if partition.removed:
            return False
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
        begun_blind = partition.stored is None
        tiering_changed = _tiering_differs(partition, view)
        if tiering_changed:
            async with partition.retention_lock:
                await _persist(partition, view, row, controller_epoch)
                partition.view = view
        else:
            await _persist(partition, view, row, controller_epoch)
            partition.view = view
        if begun_blind:
            partition.settle_log_start()
        await _take_role(partition, row)
        if tiering_changed and partition.context.remote is not None:
            partition.context.remote.on_tiering_change(partition)
        return True


def _tiering_differs(partition: "Partition", view: TopicView) -> bool:
    stored = partition.stored
    return stored is None or (
        stored.tiering_state,
        stored.tiered_epoch,
        stored.disable_policy,
    ) != (view.tiering_state, view.tiered_epoch, view.disable_policy)


async def _persist(
    partition: "Partition", view: TopicView, row: control.PartitionState, controller_epoch: int
) -> None:
    await partition.write_state(
        StoredState.of(view, row, controller_epoch, remote_end=partition.remote_end)
    )


async def _take_role(partition: "Partition", row: control.PartitionState) -> None:
    if row.leader == partition.context.node_id:
        if row.leader_epoch <= partition.lost_in_epoch:
            stop_leading(partition, Role.IDLE)
            return
        if partition.leader is not None and partition.leader.epoch == row.leader_epoch:
            partition.leader.adopt(row, partition.context.monotonic())
            partition.after_change()
        else:
            await become_leader(partition)
    else:
        _step_down(
            partition, Role.FOLLOWER if partition.context.node_id in row.replicas else Role.IDLE
        )


async def become_leader(partition: "Partition") -> None:
    """Lead in the epoch of the current row, unless the log lacks what is in the tier.

    The caller holds ``lock``.
    """
    row = partition.row
    if row is None:
        return
    if await _lacks_tier(partition):
        stop_leading(partition, Role.TAKING_OVER)
        logger.warning(
            "%s: elected in epoch %d, but the log (end %d) does not hold what is in the tier "
            "(end %s); taking it over from there first",
            partition.tp,
            row.leader_epoch,
            partition.next_offset,
            partition.remote_end,
        )
        return
    await in_thread(partition.log.assign_leader_epoch, row.leader_epoch)
    start = _epoch_start(partition, row.leader_epoch)
    partition.leader = LeaderRole(
        node_id=partition.context.node_id,
        row=row,
        epoch_start_offset=start,
        now_s=partition.context.monotonic(),
        before=partition.leader,
    )
    partition.role = Role.LEADER
    logger.info(
        "%s: leads in epoch %d from offset %d, ISR %s",
        partition.tp,
        row.leader_epoch,
        start,
        row.isr,
    )
    partition.after_change()
    if partition.context.remote is not None:
        partition.context.remote.on_leader(partition)


def _epoch_start(partition: "Partition", epoch: int) -> int:
    """Where an epoch that this log knows begins."""
    for entry in reversed(partition.log.epochs.entries):
        if entry.epoch == epoch:
            return entry.start_offset
    return partition.log.next_offset


async def _lacks_tier(partition: "Partition") -> bool:
    """The prefix rule; asks the tier only where this replica never heard of its end."""
    if not partition.reads_tier or partition.row is None or not partition.row.manifest:
        return False
    if partition.remote_end is None and not await _learn_remote_end(partition):
        return True
    end = partition.remote_end
    epoch = -1 if end is None else partition.log.epochs.epoch_for_offset(end.offset)
    return prefix.contradicts(end, next_offset=partition.next_offset, epoch_at_end=epoch)


async def _learn_remote_end(partition: "Partition") -> bool:
    if partition.context.remote is None:
        return False
    try:
        async with asyncio.timeout(_TIER_TIMEOUT_S):
            end = await partition.context.remote.last_known_end(partition)
    except Exception as error:  # noqa: BLE001  any failure of the tier leaves it offline
        logger.warning("%s: the end of the tier is not known: %s", partition.tp, error)
        return False
    partition.note_remote_end(*(end or (-1, -1)))
    return True


def _step_down(partition: "Partition", role: Role) -> None:
    was_leader = partition.leader is not None
    changed = partition.role is not role
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


def stop_leading(partition: "Partition", role: Role) -> None:
    """Serve as leader no more; whoever waits is woken."""
    partition.leader = None
    partition.role = role
    partition.wake_all()


async def take_over(partition: "Partition") -> None:
    """The prefix rule: an elected leader whose log lacks what is in the tier starts from it."""
    remote, end = partition.context.remote, partition.remote_end
    if remote is None:
        return
    async with partition.lock:
        if partition.role is not Role.TAKING_OVER:
            return
        try:
            if end is not None:
                point = await remote.bootstrap(partition, end.offset + 1)
                await in_thread(
                    partition.log.truncate_fully_and_start_at,
                    point.next_offset,
                    log_start_offset=point.log_start_offset,
                    epochs=tuple(point.epochs),
                )
            await become_leader(partition)
        except Exception as error:  # noqa: BLE001  whatever fails, it stays offline and is tried again
            logger.warning("%s: taking over from the tier failed: %s", partition.tp, error)


async def reopen(partition: "Partition") -> None:
    """Open the log again after its disk failed; raises :class:`StorageError` if it still fails.

    Where records are gone the replica must leave the ISR, and as leader it must not go on as if
    nothing had happened: the broker registers anew, without proof that its logs are whole.
    """
    async with partition.lock:
        if partition.removed or partition.log.failure is None:
            return
        whole = await in_thread(partition.log.reopen)
        if not whole:
            logger.error(
                "%s: the disk lost records, the log ends at %d now: this broker leaves its ISR",
                partition.tp,
                partition.next_offset,
            )
            partition.note_loss()
            if partition.role in (Role.LEADER, Role.TAKING_OVER):
                _step_down(partition, Role.IDLE)
            if partition.context.records_lost is not None:
                partition.context.records_lost()
        partition.wake_all()
