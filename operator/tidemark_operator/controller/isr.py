"""AlterPartition: a leader proposes the ISR of its partitions, the controller decides.

Kafka's rules (KIP-497, KIP-841): only the leader under the present epochs may propose. A broker
that is fenced, shutting down or unknown is not admitted, nor a replica whose storage fails. The
answer is sent only after the commit (persist before acting). Every result carries the row as it
then is, so that a refused leader catches up from the answer. A former leader that returns and is
still fenced is refused row by row, too: a stale broker epoch is an answer to another registration
(ClusterControlManager.checkBrokerEpoch), and ends the session.

A partition that is RECOVERING (KIP-704) keeps its leader as the only member of its ISR until that
leader proposes RECOVERED; replicas that caught up are admitted by later proposals. When the last
added replica of a reassignment enters the ISR, the move is done (:mod:`reassignment`).
"""

import dataclasses

from kio.schema.errors import ErrorCode

from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.wire.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    IsrChange,
    IsrResult,
)
from tidemark_operator.controller import reassignment
from tidemark_operator.controller.elections import with_elr_and_epochs
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.model import NO_EPOCH, NO_LEADER, PartitionRow


def alter_partition(draft: Draft, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """Decide every change of a request; send the response after the draft's commit."""
    broker = draft.broker(request.broker_id)
    if broker is None or broker.broker_epoch != request.broker_epoch:
        return AlterPartitionResponse(error_code=ErrorCode.stale_broker_epoch.value, results=())
    results = tuple(_decide(draft, request.broker_id, change) for change in request.changes)
    return AlterPartitionResponse(error_code=ErrorCode.none.value, results=results)


def deferred_response(draft: Draft, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """Return the answer while nothing may be decided: the leader repeats its request."""
    error = ErrorCode.operation_not_attempted
    rows = ((change, draft.row((change.topic_id, change.partition))) for change in request.changes)
    results = (
        _unknown(change, error) if row is None else _result(row, error) for change, row in rows
    )
    return AlterPartitionResponse(error_code=ErrorCode.none.value, results=tuple(results))


def _decide(draft: Draft, leader: int, change: IsrChange) -> IsrResult:
    """Decide one partition of an AlterPartition request; return the result for the leader."""
    row = draft.row((change.topic_id, change.partition))
    if row is None:
        known = draft.rows_of(change.topic_id)
        error = ErrorCode.unknown_topic_or_partition if known else ErrorCode.unknown_topic_id
        return _unknown(change, error)
    error = _refusal(draft, row, leader, change)
    if error is not ErrorCode.none:
        return _result(row, error)
    # The ISR is stored in the order of the replicas; an equal set must not change the row.
    isr = tuple(sorted(change.new_isr, key=row.replicas.index))
    same = set(isr) == set(row.isr)
    new = dataclasses.replace(
        row,
        isr=row.isr if same else isr,
        # The leader reports the first remote data of the partition with the same request.
        manifest=row.manifest or change.remote_manifest,
        leader_recovery_state=LeaderRecoveryState(change.leader_recovery_state),
    )
    # A finished reassignment changes the replicas in the same commit as the ISR.
    new = with_elr_and_epochs(row, reassignment.settled(draft, new), draft.state.min_isr(row))
    if new != row:
        draft.put_row(new)
    return _result(new, ErrorCode.none)


def _refusal(draft: Draft, row: PartitionRow, leader: int, change: IsrChange) -> ErrorCode:
    """Return the error of a refused ISR change, in Kafka's order of checks; ``none``: accepted.

    While the row may be outdated after a loss of slices, all changes are refused.
    """
    if row.key in draft.state.unverified_rows:
        return ErrorCode.operation_not_attempted
    if change.leader_epoch != row.leader_epoch or row.leader != leader:
        return ErrorCode.fenced_leader_epoch
    if change.partition_epoch != row.partition_epoch:
        return ErrorCode.invalid_update_version
    proposed = set(change.new_isr)
    malformed = len(proposed) != len(change.new_isr) or leader not in proposed
    if malformed or not proposed <= set(row.hosts):
        return ErrorCode.invalid_request
    if not _recovery_allowed(row, change):
        return ErrorCode.invalid_request
    # Only new members have to be live: a present one may be removed in a later proposal.
    if not all(draft.can_serve(node_id, row.key) for node_id in proposed - set(row.isr)):
        return ErrorCode.ineligible_replica
    return ErrorCode.none


def _recovery_allowed(row: PartitionRow, change: IsrChange) -> bool:
    """Return whether a change respects recovery.

    A proposal can end recovery, not start it, and no replica is admitted during it.
    """
    if not row.recovering:
        return change.leader_recovery_state == LeaderRecoveryState.RECOVERED
    known = change.leader_recovery_state in tuple(LeaderRecoveryState)
    return known and set(change.new_isr) <= set(row.isr)


def _result(row: PartitionRow, error: ErrorCode) -> IsrResult:
    return IsrResult(
        topic_id=row.topic_id,
        partition=row.partition,
        error_code=error.value,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        partition_epoch=row.partition_epoch,
        isr=row.isr,
        leader_recovery_state=int(row.leader_recovery_state),
        has_eligible_leaders=bool(row.elr or row.last_known_elr),
        elr=row.elr,
        last_known_elr=row.last_known_elr,
    )


def _unknown(change: IsrChange, error: ErrorCode) -> IsrResult:
    return IsrResult(
        topic_id=change.topic_id,
        partition=change.partition,
        error_code=error.value,
        leader=NO_LEADER,
        leader_epoch=NO_EPOCH,
        partition_epoch=NO_EPOCH,
        isr=(),
    )
