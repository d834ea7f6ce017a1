"""Maintenance of the ISR by the leader: commits, proposals, and the controller's answers.

:mod:`isr_decisions` decides; this module applies the decisions to a partition. One proposal is in
flight at a time. A newer row of the same leader epoch settles it, or an answer with the current
row. Until then the maximal ISR bounds the high watermark. No follower is added before the
controller has stored that an uncleanly elected leader has recovered (KIP-704).
"""

import logging
from dataclasses import replace

from kio.schema.errors import ErrorCode

from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.wire import control
from tidemark_broker.purgatory import PartitionChange
from tidemark_broker.replication.partition import isr_decisions
from tidemark_broker.replication.partition.isr_decisions import FollowerFetch, LeaderView
from tidemark_broker.replication.partition.leader import LeaderRole
from tidemark_broker.replication.partition.partition import Partition

logger = logging.getLogger(__name__)


def leader_view(partition: Partition, leader: LeaderRole) -> LeaderView:
    """Collect the input of :mod:`isr_decisions` for a partition that this broker leads."""
    metadata = partition.context.metadata
    return LeaderView(
        leader=partition.context.node_id,
        next_offset=partition.log.next_offset,
        high_watermark=partition.log.high_watermark,
        epoch_start_offset=leader.epoch_start_offset,
        isr=leader.row.isr,
        maximal_isr=leader.maximal_isr,
        followers=leader.progress(),
        # A fetch under an older registration proves nothing about the broker's current log.
        eligible=frozenset(
            node
            for node, progress in leader.followers.items()
            if metadata.is_alive(node) and metadata.broker_epoch(node) == progress.broker_epoch
        ),
        min_isr=partition.min_isr,
        now_s=partition.context.monotonic(),
        lag_max_s=partition.context.lag_max_s,
        has_eligible_leaders=leader.row.has_eligible_leaders,
        log_start_offset=partition.log.log_start_offset,
    )


def commits_alone(partition: Partition) -> bool:
    """Return whether an append of the leader commits, because there are no other replicas.

    Placeholders are no followers, but they count for the minimum.
    """
    leader = partition.leader
    return not (
        leader is None
        or len(leader.row.isr) > 1
        or leader.followers
        or leader.row.has_eligible_leaders
        or partition.under_min_isr
    )


def after_append(partition: Partition) -> None:
    """Notify the operations that wait for the high watermark, which the append may have moved."""
    leader, bounds = partition.leader, partition.log.bounds
    if bounds.high_watermark == bounds.end:
        partition.context.purgatory.notify(partition.high_watermark_key)
    # A follower in the ISR bounds the high watermark by its end, which has not moved.
    elif leader is not None and len(leader.row.isr) <= 1:
        advance_high_watermark(partition)


def advance_high_watermark(partition: Partition) -> None:
    """Commit what enough replicas have."""
    leader = partition.leader
    if leader is None:
        return
    log, followers, isr = partition.log, leader.followers, leader.row.isr
    committed, offset, members = log.high_watermark, log.next_offset, 0
    for node in isr:
        progress = followers.get(node)
        if progress is None:
            continue
        # An ISR member without records above the high watermark decides it, as in half of the
        # calls.
        if progress.next_offset <= committed:
            return
        members += 1
        offset = min(offset, progress.next_offset)
    # While all replicas are in the ISR their smallest log end is committed, as
    # :func:`isr_decisions.high_watermark` finds. This is the path of each record.
    if (
        members < len(followers)
        or len(isr) < partition.log.config.min_insync_replicas
        or leader.row.has_eligible_leaders
    ):
        offset = isr_decisions.high_watermark(leader_view(partition, leader))
    if offset > committed and log.advance_high_watermark(offset):
        partition.context.purgatory.notify(partition.high_watermark_key)


def after_change(partition: Partition) -> None:
    """Recompute high and low watermark after a change of ISR, replicas or brokers.

    Operations that wait for the high watermark are woken only if it has moved.
    """
    advance_high_watermark(partition)
    partition.context.purgatory.notify((PartitionChange.LOW_WATERMARK, partition.tp))


def follower_fetched(partition: Partition, node: int, fetch: FollowerFetch) -> None:
    """Record a follower's fetch, which may advance the high watermark or add it to the ISR.

    ``node``: the follower's broker id. It joins the ISR only once the controller has accepted.
    """
    leader = partition.leader
    if leader is None:
        return
    before = leader.record_fetch(node, fetch)
    # DeleteRecords requests wait for the followers' log starts.
    if before.log_start_offset != fetch.log_start_offset:
        partition.context.purgatory.notify((PartitionChange.LOW_WATERMARK, partition.tp))
    advance_high_watermark(partition)
    # One proposal at a time: a second one would carry an outdated partition epoch.
    if leader.pending is None and node not in leader.row.isr:
        view = leader_view(partition, leader)
        if not partition.recovering and isr_decisions.may_join(view, node):
            _propose(partition, isr_decisions.expanded(leader.row.isr, node))


def must_fetch_again(
    partition: Partition, leader: LeaderRole, node: int, local_log_start_offset: int
) -> bool:
    """Return whether a follower must drop its log and fetch it again before it joins the ISR.

    That is the case after a disablement with policy Delete (KIP-950) has removed the remote
    segments, if the follower's local log starts above the log start offset. Only this leader's log
    has the offsets in between. A replica that may be in the ISR, or any replica while there are
    eligible leader replicas (KIP-966), keeps its log, because its data may be the only copy.
    """
    # All conditions are needed: a deletion from the tier, and a start above the log start.
    log = partition.log
    return (
        log.local_log_start_offset <= log.log_start_offset < local_log_start_offset
        and partition.tiering.has_deleted_remote_part(partition.durable_head_tiered_epoch)
        and node not in leader.maximal_isr
        and not leader.row.has_eligible_leaders
    )


def shrink_isr(partition: Partition) -> None:
    """Propose an ISR without lagging followers; called every half ``replica.lag.time.max.ms``.

    If an earlier proposal has no answer yet, it is repeated instead. Its epochs are the same, so it
    cannot take effect twice.
    """
    leader = partition.leader
    if leader is None:
        return
    if leader.pending is not None:
        # The answer was lost, or the controller was unreachable: repeat the proposal.
        partition.context.propose_isr(partition, _change(partition, leader, leader.pending))
        return
    propose_news(partition)
    gone = isr_decisions.out_of_sync(leader_view(partition, leader))
    if gone and leader.pending is None:
        _propose(partition, isr_decisions.shrunk(leader.row.isr, gone))


def _propose(partition: Partition, new_isr: tuple[int, ...]) -> None:
    leader = partition.leader
    if leader is None:
        return
    # Pending before it is sent: from now on the maximal ISR includes the new members.
    leader.pending = new_isr
    if new_isr != leader.row.isr:
        logger.info("%s: proposing ISR %s instead of %s", partition.tp, new_isr, leader.row.isr)
    partition.context.propose_isr(partition, _change(partition, leader, new_isr))


def _change(
    partition: Partition, leader: LeaderRole, new_isr: tuple[int, ...]
) -> control.IsrChange:
    """Return the AlterPartition request that proposes ``new_isr`` under the current epochs."""
    return control.IsrChange(
        topic_id=partition.topic_id,
        partition=partition.partition,
        leader_epoch=leader.row.leader_epoch,
        partition_epoch=leader.row.partition_epoch,
        new_isr=new_isr,
        remote_manifest=partition.manifest_created or leader.row.manifest,
        leader_recovery_state=int(LeaderRecoveryState.RECOVERED),
    )


def answered(partition: Partition, change: control.IsrChange, result: control.IsrResult) -> None:
    """Apply the controller's answer to an ISR proposal (AlterPartition).

    :func:`isr_decisions.meaning` decides. ``change`` is the proposal that was sent. The answer
    takes effect at once, because the controller has persisted it. This replica's state file is
    written later.
    """
    leader, row = partition.leader, partition.row
    if leader is None or row is None or row.leader_epoch != leader.epoch:
        return  # it no longer leads, or is about to lead in a later epoch
    # Late and repeated answers occur: only a newer state, or the answer to the pending proposal,
    # has an effect.
    meaning = isr_decisions.meaning(row, leader.pending, change, result)
    if meaning is isr_decisions.AlterPartitionAnswer.NOTHING:
        return
    if meaning is isr_decisions.AlterPartitionAnswer.ADOPT:
        _adopt_answer(partition, leader, change, result)
    else:
        leader.pending = None
    if result.error_code:
        logger.warning(
            "%s: the controller refused ISR %s: %s",
            partition.tp,
            change.new_isr,
            error_name(result),
        )
    # The high watermark would wait for the replica for up to ``replica.lag.time.max.ms``.
    if result.error_code == ErrorCode.ineligible_replica.value:
        leader.stop_waiting_for(set(change.new_isr) - set(leader.row.isr))
    if not result.error_code or meaning is isr_decisions.AlterPartitionAnswer.ADOPT:
        # After a plain refusal shrink_isr retries later: the answer would be the same now.
        propose_news(partition)
    # Another ISR may permit a higher high watermark.
    after_change(partition)


def _adopt_answer(
    partition: Partition, leader: LeaderRole, change: control.IsrChange, result: control.IsrResult
) -> None:
    """Adopt the partition state in an answer to AlterPartition as the leader's current one.

    ``change``: the proposal that was answered.
    """
    if partition.stored is None:
        return
    # The answer has no manifest flag: an accepted proposal has set the one it carried.
    manifest = leader.row.manifest or (not result.error_code and change.remote_manifest)
    row = replace(
        leader.row,
        isr=tuple(result.isr),
        partition_epoch=result.partition_epoch,
        manifest=manifest,
        leader_recovery_state=result.leader_recovery_state,
        has_eligible_leaders=result.has_eligible_leaders,
        elr=result.elr,
        last_known_elr=result.last_known_elr,
    )
    # The controller has persisted this state, so the replica's state file may follow later.
    partition.remember(partition.stored.with_row(row))
    leader.adopt(row, partition.context.monotonic())
    partition.context.metadata.update(partition.topic_id, row)
    logger.info("%s: ISR is %s (partition epoch %d)", partition.tp, row.isr, row.partition_epoch)


def report_manifest_created(partition: Partition) -> None:
    """Report that the leader created the partition's head object, so that the controller stores
    it.
    """
    partition.manifest_created = True
    propose_news(partition)


def propose_news(partition: Partition) -> None:
    """Report facts that the controller does not have yet.

    These are that the head object was created, and that an uncleanly elected leader has recovered
    (which it reports only as leader, see :mod:`roles`).
    """
    leader = partition.leader
    if leader is None or leader.pending is not None:
        return
    if partition.recovering or (partition.manifest_created and not leader.row.manifest):
        _propose(partition, leader.row.isr)


def error_name(result: control.IsrResult) -> str:
    """Return Kafka's name of an answer's error."""
    try:
        return ErrorCode(result.error_code).name
    except ValueError:
        return str(result.error_code)
