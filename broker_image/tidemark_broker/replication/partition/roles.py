"""How a replica takes a role, and gives one up.

The state comes from the controller and is on disk before the role is taken. A leader whose log may
lack what is in the tier asks the tier first (:mod:`takeover`); one whose disk lost records leads
no more in that epoch, since others may hold what it acknowledged.
"""

import logging

from tidemark.reasons import Reason
from tidemark.wire import control
from tidemark_broker.log import StorageError
from tidemark_broker.replication.metadata import TopicMetadata, is_newer
from tidemark_broker.replication.partition import isr_maintenance, prefix_rule
from tidemark_broker.replication.partition.leader import LeaderRole
from tidemark_broker.replication.partition.partition import Partition, Role
from tidemark_broker.replication.partition.prefix_rule import Doubt
from tidemark_broker.replication.partition.state_file import StoredState
from tidemark_broker.replication.remote import TierEnd
from tidemark_broker.replication.threads import in_role_thread, in_thread

logger = logging.getLogger(__name__)

#: A loss that the controller does not know of yet: it may not lead in any.
_EVERY_EPOCH = 2**31 - 1


async def apply(
    partition: Partition, view: TopicMetadata, row: control.PartitionState, controller_epoch: int
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
        if partition.role is Role.FOLLOWER and prefix_rule.taken_in(
            known, row, partition.context.node_id
        ):
            partition.doubt = None
        tiering_changed = _tiering_differs(partition, view)
        try:
            if tiering_changed:
                async with partition.retention_lock:
                    await _persist(partition, view, row, controller_epoch)
                    partition.view = view
            else:
                await _persist(partition, view, row, controller_epoch)
                partition.view = view
        except StorageError:
            _give_up_former_role(partition, row)
            raise
        if begun_blind:
            partition.settle_log_start()
        # An answer to a proposal may have brought a newer one meanwhile.
        await _take_role(partition, partition.row or row)
        if tiering_changed and partition.context.remote is not None:
            partition.context.remote.on_tiering_change(partition)
        return True


def _give_up_former_role(partition: Partition, row: control.PartitionState) -> None:
    """A state that cannot be kept gives no role, but leadership that it takes away is gone: another
    leads now, or nobody, and who waits here must hear it."""
    leads = partition.role in (Role.LEADER, Role.TAKING_OVER)
    same = (row.leader, row.leader_epoch) == (partition.context.node_id, partition.leader_epoch)
    if leads and not same:
        _step_down(partition, Role.IDLE)


def _tiering_differs(partition: Partition, view: TopicMetadata) -> bool:
    stored = partition.stored
    return stored is None or stored.tiering != view.tiering


async def _persist(
    partition: Partition, view: TopicMetadata, row: control.PartitionState, controller_epoch: int
) -> None:
    await partition.write_state(StoredState.of(view, row, controller_epoch))


async def _take_role(partition: Partition, row: control.PartitionState) -> None:
    if row.leader == partition.context.node_id:
        if row.leader_epoch <= partition.lost_in_epoch:
            stop_leading(partition, Role.IDLE)
            return
        if partition.leader is not None and partition.leader.epoch == row.leader_epoch:
            partition.leader.adopt(row, partition.context.monotonic())
            isr_maintenance.propose_news(partition)
            isr_maintenance.after_change(partition)
        else:
            await become_leader(partition)
    else:
        _step_down(
            partition, Role.FOLLOWER if partition.context.node_id in row.replicas else Role.IDLE
        )


async def become_leader(partition: Partition) -> None:
    """Lead in the epoch of the current row, unless the log may lack what is in the tier: then
    :mod:`takeover` asks the tier. The caller holds ``lock``.
    """
    row = partition.row
    if row is None:
        return
    question = prefix_rule.question(partition.standing())
    if question:
        _wait_for_tier(partition, question)
    else:
        await lead(partition, row)


def found_lacking(partition: Partition, tier: TierEnd) -> bool:
    """Does the log of a leader lack what its own claim shows to be in the tier? Then it leads no
    more, at once: it takes nothing more before it has taken over from there."""
    log = partition.log
    if not prefix_rule.lacks(tier, log.epochs, next_offset=log.next_offset):
        return False
    doubt = Doubt(prefix_rule.lacking(tier, next_offset=log.next_offset), refuted=True)
    partition.doubt = doubt
    _wait_for_tier(partition, doubt.reason)
    return True


def _wait_for_tier(partition: Partition, doubt: str) -> None:
    if partition.role is not Role.TAKING_OVER:
        partition.offline_reason = Reason.TAKING_OVER_FROM_TIER
        logger.warning(
            "%s: elected in epoch %d, but %s: asking the tier first",
            partition.tp,
            partition.leader_epoch,
            doubt,
        )
    partition.offline_message = (
        f"broker {partition.context.node_id} is to lead, but {doubt}; it first learns from the "
        "tier what it must hold"
    )
    stop_leading(partition, Role.TAKING_OVER)
    if partition.context.remote is not None:
        partition.context.remote.on_follower(partition)


async def lead(partition: Partition, row: control.PartitionState) -> None:
    """Lead in the epoch of that row. The caller holds ``lock``."""
    await in_role_thread(partition.log.assign_leader_epoch, row.leader_epoch)
    doubt = partition.doubt
    if doubt is not None and doubt.refuted:  # a claim of the epoch before has shown it meanwhile
        _wait_for_tier(partition, doubt.reason)
        return
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
    isr_maintenance.after_change(partition)
    isr_maintenance.propose_news(partition)
    partition.tell_role()
    if partition.context.remote is not None:
        partition.context.remote.on_leader(partition)


def _epoch_start(partition: Partition, epoch: int) -> int:
    """Where an epoch that this log knows begins."""
    for entry in reversed(partition.log.epochs.entries):
        if entry.epoch == epoch:
            return entry.start_offset
    return partition.log.next_offset


def _step_down(partition: Partition, role: Role) -> None:
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


def stop_leading(partition: Partition, role: Role) -> None:
    """Serve as leader no more; whoever waits is woken."""
    was_leader = partition.leader is not None
    partition.leader = None
    partition.role = role
    if was_leader:
        partition.tell_role()
    partition.wake_all()


def retire(partition: Partition) -> None:
    """The replica goes: no role any more, whoever waits is woken."""
    partition.removed = True
    stop_leading(partition, Role.IDLE)


async def reopen(partition: Partition) -> None:
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
            partition.lost_in_epoch = _EVERY_EPOCH
            partition.doubt = prefix_rule.RECORDS_LOST
            if partition.role in (Role.LEADER, Role.TAKING_OVER):
                _step_down(partition, Role.IDLE)
            if partition.context.records_lost is not None:
                partition.context.records_lost()
        partition.wake_all()


def loss_is_known(partition: Partition) -> None:
    """Whatever the controller says of a later epoch, it says knowing of the loss."""
    if partition.lost_in_epoch == _EVERY_EPOCH:
        partition.lost_in_epoch = partition.leader_epoch
