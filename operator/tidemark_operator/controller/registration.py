"""Registrations of brokers: admission, and the effect of a start on ISRs and leadership.

A registration names the process (incarnation), the log directory and, after a clean shutdown only,
the broker epoch under which it stopped. Without that proof the disk may lack acknowledged records:
the broker leaves every ISR in which another replica has, or may have, them
(:mod:`eligible_leaders`). With another directory it leaves all ISRs, even as the last member, and
the partition waits for a person. The slices store its former directory, so deleting and creating
the ``Broker`` object again changes nothing. A broker whose former directory is not known is
unproven, but its directory does not count as another. After any start it leads nothing and stays
fenced until it has applied a full snapshot of this controller epoch.

Broker epochs grow over the whole cluster and start at ``controller epoch << 24``. No epoch is used
twice, even if a ``Broker`` object was deleted and created again.
"""

import dataclasses
import uuid
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark.wire.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from tidemark_operator.controller import elections, epochs
from tidemark_operator.controller.state import eligible_leaders
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import normal, warning
from tidemark_operator.controller.state.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerInfo,
    PartitionRow,
    RowKey,
)


def register(
    draft: Draft,
    request: BrokerRegistrationRequest,
    *,
    session_alive: bool,
    connected: bool = True,
    session_timeout_ms: int,
) -> BrokerRegistrationResponse:
    """Decide a broker's registration (KIP-631); return the response, to be sent after the commit.

    ``session_alive``: the process that registered before still has a session. ``connected``: False
    if its connections are known to be closed. The commit stores the slices first, then the Broker's
    status: a persisted registration implies that the broker has left the ISRs that it must leave.
    """
    # Check whether this process may act as the broker at all.
    broker = draft.broker(request.broker_id)
    refused = refusal(
        draft.state, broker, request, session_alive=session_alive, connected=connected
    )
    if refused is not None or broker is None:
        error, message = refused or (ErrorCode.broker_id_not_registered, "")
        return _response(draft.state, error, message, NO_EPOCH, session_timeout_ms)
    if broker.incarnation_id == request.incarnation_id:
        # The same process after a broken connection: its epoch and its ISRs stay.
        epoch = broker.broker_epoch
        _present(draft, broker, request)
    # Another process, so it gets a new epoch.
    else:
        epoch = _admit(draft, broker, request)
    return _response(draft.state, ErrorCode.none, None, epoch, session_timeout_ms)


def refusal(
    state: ControllerState,
    broker: BrokerInfo | None,
    request: BrokerRegistrationRequest,
    *,
    session_alive: bool,
    connected: bool,
) -> tuple[ErrorCode, str] | None:
    """Return Kafka's error and message if a registration is refused, else None.

    ``broker`` is the Broker object, None without one. For the other parameters see
    :func:`register`.
    """
    # A broker of another cluster would delete replicas that this cluster does not know.
    if request.cluster_id != state.cluster.cluster_id:
        text = (
            f"this is cluster {state.cluster.cluster_id}, but cluster.id of the "
            f"broker is {request.cluster_id}"
        )
        return ErrorCode.inconsistent_cluster_id, text
    if broker is None:
        text = f"no Broker object has nodeId {request.broker_id}. Create one"
        return ErrorCode.broker_id_not_registered, text
    # Epochs far above the persisted ones would use up the range for all later terms.
    strange = epochs.too_far_ahead(state, request)
    if strange is not None:
        return ErrorCode.invalid_registration, f"broker {request.broker_id} is refused: {strange}"
    # Two live processes with one node id would both serve clients. The former process has ended if
    # the new one proves a clean shutdown, or has the lock of the same log directory while the
    # former connections are closed.
    gone = not session_alive or (not connected and _has_same_directory(broker, request))
    other_process = broker.incarnation_id not in (None, request.incarnation_id)
    if other_process and not gone and not _has_proof(broker, request):
        text = (
            f"broker {request.broker_id} is live with another process. Stop that "
            "process, or use another node.id"
        )
        return ErrorCode.duplicate_broker_registration, text
    return None


def _has_proof(broker: BrokerInfo, request: BrokerRegistrationRequest) -> bool:
    """Return whether the registered run was the last one in this log directory and ended cleanly.

    Then that process has ended, even if its session counts as alive: after a takeover every session
    starts fresh.
    """
    return (
        _has_same_directory(broker, request)
        and request.previous_broker_epoch == broker.broker_epoch >= 0
    )


def _has_same_directory(broker: BrokerInfo, request: BrokerRegistrationRequest) -> bool:
    """Return whether the request has the registered log directory.

    The directory's lock admits one process at a time, so a former process without connections has
    ended.
    """
    return broker.directory_id == request.directory_id


def _admit(draft: Draft, broker: BrokerInfo, request: BrokerRegistrationRequest) -> int:
    """Admit a new process of a broker under a new broker epoch, which is returned.

    Without proof of a clean shutdown (KIP-966), it leaves the ISRs, since a crash may have lost the
    end of its logs.
    """
    proof = _has_proof(broker, request)
    # The new epoch is above all earlier ones. Until it has applied a snapshot, the broker is
    # fenced.
    epoch = next_broker_epoch(draft, request.previous_broker_epoch)
    fresh = dataclasses.replace(
        broker,
        broker_epoch=epoch,
        incarnation_id=request.incarnation_id,
        directory_id=request.directory_id,
        fenced=True,
        proven=proof,
        shutting_down=False,
    )
    # Rows change in the same draft as the registration, and are stored before it.
    _present(draft, fresh, request)
    left, lost, moved = _leave(draft, broker.node_id, request.directory_id, proof=proof)
    how = "after a clean shutdown" if proof else "without proof of a clean shutdown"
    if moved:
        how = "with another log directory"
    text = f"broker {broker.node_id} registered {how} (epoch {epoch})"
    if left:
        text += f" and left {count(left, 'ISR')}"
    draft.emit(normal("Broker", broker.key, "BrokerRegistered", text))
    if lost:
        text = (
            f"{count(lost, 'partition')} had the last complete copy in the "
            f"former log directory of broker {broker.node_id}. Restore that "
            "directory"
        )
        draft.emit(warning("Broker", broker.key, Reason.LAST_COPY_MISSING, text))
    return epoch


def next_broker_epoch(draft: Draft, previous: int) -> int:
    """Return an epoch above every one ever given."""
    known = [broker.broker_epoch for broker in draft.brokers.values()]
    floor = draft.state.controller_epoch << epochs.BROKER_EPOCH_BITS
    return max(floor, draft.state.broker_epoch_max, previous, *known) + 1


def _present(draft: Draft, broker: BrokerInfo, request: BrokerRegistrationRequest) -> None:
    # A repeated registration changes nothing, so it costs no write.
    new = dataclasses.replace(
        broker, reported_rack=request.rack, listeners=tuple(request.listeners)
    )
    if new != draft.state.brokers.get(broker.node_id):
        draft.put_broker(new)


def _leave(
    draft: Draft, node_id: int, directory_id: uuid.UUID, *, proof: bool
) -> tuple[int, int, int]:
    """Remove a restarted broker from ISRs and leaderships that it cannot be trusted with.

    Returns (ISRs left, partitions without any complete copy, replicas of another log directory).
    """
    left = lost = moved = 0
    for row in draft.rows_on(node_id):
        if row.key in draft.state.unverified_rows:
            continue  # a rebuilding compares all replicas that may have the committed records
        index = draft.state.slice_index(row.key)
        same_disk = draft.state.directory_of(node_id, index) in (None, directory_id)
        new = after_restart(row, node_id, draft, proof=proof, same_disk=same_disk)
        if new != row:
            draft.put_row(new)
        left += node_id in row.isr and node_id not in new.isr
        lost += bool(row.holders) and not new.holders
        moved += not same_disk
    return left, lost, moved


def after_restart(
    row: PartitionRow, node_id: int, draft: Draft, *, proof: bool, same_disk: bool
) -> PartitionRow:
    """Return a partition's row after the broker of a replica has restarted.

    ``proof``: of a clean shutdown. ``same_disk``: it has the log directory with this replica.
    Without proof the partition epoch rises even if the broker was not in the ISR: the leader may
    have an AlterPartition request in flight that adds it because of its former process (KIP-903).
    The last member of an ISR stays even without proof, unless another replica may have what it
    lost.
    """
    others = tuple(replica for replica in row.isr if replica != node_id)
    # An unproven replica becomes a candidate of last resort, unless it is the only one.
    unproven = same_disk and not proof and node_id in row.holders and row.holders != (node_id,)
    left = dataclasses.replace(
        row,
        isr=others if unproven or not same_disk else row.isr,
        last_known_elr=(*row.last_known_elr, node_id) if unproven else row.last_known_elr,
        leader=NO_LEADER if row.leader == node_id else row.leader,
    )
    # With another disk it is no candidate at all: its records are on the former disk.
    lost = () if same_disk else (node_id,)
    left = eligible_leaders.with_eligible_leaders(row, left, draft.state.min_isr(row), lost=lost)
    new = elections.with_raised_epochs(row, _with_successor(draft, left))
    if new == row and not proof:
        return dataclasses.replace(row, partition_epoch=row.partition_epoch + 1)
    return new


def _with_successor(draft: Draft, row: PartitionRow) -> PartitionRow:
    """Elect a successor of a leader that started again.

    An election from the ISR leaves the ISR as it is: its members are fenced when their sessions
    end.
    """
    if row.leader != NO_LEADER:
        return row
    new = elections.best(draft, row, unclean=False)
    if new.leader not in row.isr:
        return new
    kept = dataclasses.replace(row, leader=new.leader)
    return eligible_leaders.with_eligible_leaders(row, kept, draft.state.min_isr(row))


def _response(
    state: ControllerState,
    error: ErrorCode,
    message: str | None,
    broker_epoch: int,
    session_timeout_ms: int,
) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(
        error_code=error.value,
        error_message=message,
        broker_epoch=broker_epoch,
        controller_epoch=state.controller_epoch,
        session_timeout_ms=session_timeout_ms,
    )


# ---------------------------------------------------------------- heartbeats


def heartbeat(
    draft: Draft, request: BrokerHeartbeatRequest, *, session_timeout_ms: int
) -> tuple[BrokerHeartbeatResponse, bool]:
    """Decide a heartbeat (KIP-631); return the response and whether it renews the session.

    Send the response after the commit if the draft changed. Heartbeats have a thread of their own
    in the broker, so a broker whose main loop has not run for a session timeout counts as dead.
    """
    broker = draft.broker(request.broker_id)
    # A stale epoch is a former process: it must register again before it serves.
    if broker is None or not broker.registered or broker.broker_epoch != request.broker_epoch:
        return _beat(draft.state, ErrorCode.stale_broker_epoch, fenced=True, stop=False), False
    # A controlled shutdown: move the leaderships away first.
    alive = request.loop_age_ms < session_timeout_ms
    if request.want_shut_down:
        elections.shut_down(draft, request.broker_id)
        return _beat(draft.state, ErrorCode.none, fenced=broker.fenced, stop=True), alive
    # A heartbeat without the flag withdraws an earlier request to shut down.
    elections.withdraw_shutdown(draft, request.broker_id)
    # Unfence only with a snapshot of this term; an older one may name replaced leaders.
    snapshot = request.snapshot_controller_epoch == draft.state.controller_epoch
    if broker.fenced and alive and snapshot:
        elections.unfence(draft, request.broker_id)
    now = draft.broker(request.broker_id) or broker
    return _beat(draft.state, ErrorCode.none, fenced=now.fenced, stop=False), alive


def _beat(
    state: ControllerState, error: ErrorCode, *, fenced: bool, stop: bool
) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        error_code=error.value,
        is_fenced=fenced,
        should_shut_down=stop,
        controller_epoch=state.controller_epoch,
    )


# ---------------------------------------------------------------- take-over and removal


def fenced_at_take_over(node_id: int, stored_fenced: bool, rows: Iterable[PartitionRow]) -> bool:
    """Return whether a broker counts as fenced when a controller takes over.

    Slices are written before the Broker's status, so a broker in the ISR of a partition with a
    leader was not fenced, whatever its status says. ``rows`` are those that have a replica on it.
    """
    serving = any(row.leader != NO_LEADER and node_id in row.isr for row in rows)
    return stored_fenced and not serving


def removal_blockers(draft: Draft, node_id: int) -> list[RowKey]:
    """Return the partitions that block the removal of a ``Broker``.

    No other live broker is known to have their records, or fewer than min.insync.replicas would.
    Until that is fixed the finalizer stays, and the broker serves on.
    """
    return [
        row.key
        for row in draft.rows_on(node_id)
        if not _has_enough_copies_without(draft, row, node_id)
    ]


def _has_enough_copies_without(draft: Draft, row: PartitionRow, node_id: int) -> bool:
    if draft.is_in_doubt(row.key):
        return False
    others = set(row.isr + row.elr) - {node_id}
    # An unproven copy counts too: another broker may have lost its tail in a crash that is not
    # known yet, because it has not registered again.
    enough = node_id not in row.holders or len(others) >= draft.state.min_isr(row)
    return enough and has_live_copy(draft, row.key, without=node_id)


def has_live_copy(draft: Draft, key: RowKey, *, without: int) -> bool:
    """Return whether a live broker other than ``without`` has all records of a partition."""
    row = draft.row(key)
    proven = () if row is None else row.isr + row.elr
    return any(replica != without and draft.is_live(replica) for replica in proven)


def remove_broker(draft: Draft, node_id: int) -> None:
    """Remove a deleted Broker from all partitions; nothing may depend on it any more.

    Its replicas become placeholders, which another broker fills later. A replica that a
    reassignment was adding or removing leaves none. If one was being added, a replica that was
    being removed stays in its place, so that no reassignment ends with fewer replicas than planned.
    """
    for row in draft.rows_on(node_id):
        back = _replica_to_retain(row, node_id)
        # A placeholder id below all others of the row keeps ids in a row unique.
        free = min((*row.replicas, 0)) - 1
        # In a move its place is taken by the replica that stays, or by nothing.
        instead = {node_id: back if node_id in row.adding + row.removing else free}
        replicas = (instead.get(other, other) for other in row.replicas if other != back)
        left = dataclasses.replace(
            row,
            replicas=tuple(replica for replica in replicas if replica is not None),
            isr=tuple(replica for replica in row.isr if replica != node_id),
            leader=NO_LEADER if row.leader == node_id else row.leader,
            adding=_remaining_additions(row, node_id),
            removing=tuple(other for other in row.removing if other not in (node_id, back)),
        )
        # The eligible leaders follow from the new ISR before the election that may use them.
        left = eligible_leaders.with_eligible_leaders(row, left, draft.state.min_isr(row))
        draft.put_row(elections.with_raised_epochs(row, elections.best(draft, left, unclean=False)))


def _replica_to_retain(row: PartitionRow, node_id: int) -> int | None:
    """Return the replica being removed that stays because ``node_id``, being added, is removed."""
    if node_id not in row.adding:
        return None
    # One in sync is preferred: it needs no catch-up.
    in_sync = [other for other in row.removing if other in row.isr]
    return next(iter([*in_sync, *row.removing]), None)


def _remaining_additions(row: PartitionRow, node_id: int) -> tuple[int, ...]:
    """Return the replicas that are still being added once a broker is removed.

    If the removed one was to be replaced, they count as the partition's own. Otherwise so few would
    be left that the minimum in sync, which is capped by that number, would sink.
    """
    if node_id in row.removing:
        return ()
    return tuple(replica for replica in row.adding if replica != node_id)
