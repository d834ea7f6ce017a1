"""Who may be a broker, and what a start costs it.

A registration names the process (incarnation), the log directory and, after a clean shutdown only,
the broker epoch under which it stopped. Without that proof the disk may lack what was acknowledged:
the broker leaves every ISR in which others have it, or may have it (:mod:`eligible_leaders`). With
another directory it leaves all, also as the last, and the partition waits for a person. Which
directory it had stands in the slices, so that a ``Broker`` object that was deleted and made again
changes nothing; one that nobody knows is unproven, not another. After any start it leads nothing
and stays fenced until it has applied a full snapshot of this controller epoch.

Broker epochs grow over the whole cluster and start at ``controller epoch << 24``, so none is used
twice even if a ``Broker`` object was deleted and made again.
"""

import dataclasses
import uuid
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from tidemark.reasons import Reason
from tidemark.wire.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from tidemark_operator.controller import elections, eligible_leaders, epochs
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.events import count, normal, warning
from tidemark_operator.controller.model import NO_EPOCH, NO_LEADER, BrokerInfo, PartitionRow, RowKey


def register(
    draft: Draft,
    request: BrokerRegistrationRequest,
    *,
    session_alive: bool,
    connected: bool = True,
    session_timeout_ms: int,
) -> BrokerRegistrationResponse:
    """Decide a registration. ``session_alive``: the incarnation registered before still has a
    session; ``connected``: and its connections are not known to be gone. The response is sent after
    the commit, and the order of the commit matters: slices first, then the Broker's status (a
    persisted registration says that the ISRs were left)."""
    broker = draft.broker(request.broker_id)
    refused = refusal(
        draft.state, broker, request, session_alive=session_alive, connected=connected
    )
    if refused is not None or broker is None:
        error, message = refused or (ErrorCode.broker_id_not_registered, "")
        return _response(draft.state, error, message, NO_EPOCH, session_timeout_ms)
    if broker.incarnation_id == request.incarnation_id:
        epoch = broker.broker_epoch  # the same process, back after a broken connection
        _present(draft, broker, request)
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
    """Why a process is not admitted as this broker, whatever is decided about it else."""
    if request.cluster_id != state.cluster.cluster_id:
        text = (
            f"this is cluster {state.cluster.cluster_id}, but cluster.id of the "
            f"broker is {request.cluster_id}"
        )
        return ErrorCode.inconsistent_cluster_id, text
    if broker is None:
        text = f"no Broker object has nodeId {request.broker_id}. Create one"
        return ErrorCode.broker_id_not_registered, text
    strange = epochs.too_far_ahead(state, request)
    if strange is not None:
        return ErrorCode.invalid_registration, f"broker {request.broker_id} is refused: {strange}"
    gone = not session_alive or (not connected and _same(broker, request))
    other_process = broker.incarnation_id not in (None, request.incarnation_id)
    if other_process and not gone and not _has_proof(broker, request):
        text = (
            f"broker {request.broker_id} is live with another process. Stop that "
            "process, or use another node.id"
        )
        return ErrorCode.duplicate_broker_registration, text
    return None


def _has_proof(broker: BrokerInfo, request: BrokerRegistrationRequest) -> bool:
    """The last run with this log directory was the registered one, and it ended cleanly: so that
    process is gone, whatever its session says (after a take-over every session counts as fresh)."""
    return _same(broker, request) and request.previous_broker_epoch == broker.broker_epoch >= 0


def _same(broker: BrokerInfo, request: BrokerRegistrationRequest) -> bool:
    """The registered log directory. Its lock lets one process have it at a time: a former process
    whose connections are gone is not alive in it any more."""
    return broker.directory_id == request.directory_id


def _admit(draft: Draft, broker: BrokerInfo, request: BrokerRegistrationRequest) -> int:
    """A new process: a new epoch, and out of the ISRs that it can no longer answer for."""
    proof = _has_proof(broker, request)
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
    """An epoch above every one that was ever given."""
    known = [broker.broker_epoch for broker in draft.brokers.values()]
    floor = draft.state.controller_epoch << epochs.BROKER_EPOCH_BITS
    return max(floor, draft.state.broker_epoch_max, previous, *known) + 1


def _present(draft: Draft, broker: BrokerInfo, request: BrokerRegistrationRequest) -> None:
    new = dataclasses.replace(
        broker, reported_rack=request.rack, listeners=tuple(request.listeners)
    )
    if new != draft.state.brokers.get(broker.node_id):
        draft.put_broker(new)


def _leave(
    draft: Draft, node_id: int, directory_id: uuid.UUID, *, proof: bool
) -> tuple[int, int, int]:
    """Change the rows of a broker that has just started; (ISRs left, partitions without a copy,
    replicas that were in another directory)."""
    left = lost = moved = 0
    for row in draft.rows_on(node_id):
        if row.key in draft.state.doubted:
            continue  # all who may hold what is committed will be compared
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
    """One row after a replica's broker started again. Without proof the partition epoch rises even
    where the broker was not in the ISR: a leader may have proposed it on the strength of what the
    former process had fetched (KIP-903). The last member of an ISR stays in it without proof only
    where no other replica may have what it lost."""
    others = tuple(replica for replica in row.isr if replica != node_id)
    unproven = same_disk and not proof and node_id in row.holders and row.holders != (node_id,)
    left = dataclasses.replace(
        row,
        isr=others if unproven or not same_disk else row.isr,
        last_known_elr=(*row.last_known_elr, node_id) if unproven else row.last_known_elr,
        leader=NO_LEADER if row.leader == node_id else row.leader,
    )
    lost = () if same_disk else (node_id,)
    left = eligible_leaders.carried(row, left, draft.min_isr(row), lost=lost)
    new = elections.raised(row, _led_again(draft, left))
    if new == row and not proof:
        return dataclasses.replace(row, partition_epoch=row.partition_epoch + 1)
    return new


def _led_again(draft: Draft, row: PartitionRow) -> PartitionRow:
    """The row of a leader that started again under the next one. An election from the ISR leaves
    the ISR as it is: its members are fenced when their sessions end, not before."""
    if row.leader != NO_LEADER:
        return row
    new = elections.best(draft, row, unclean=False)
    if new.leader not in row.isr:
        return new
    kept = dataclasses.replace(row, leader=new.leader)
    return eligible_leaders.carried(row, kept, draft.min_isr(row))


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
    """Decide a heartbeat: the response (to be sent after the commit if the draft changed), and
    whether it refreshes the session: a broker whose main loop has not turned for a session does
    not count as alive."""
    broker = draft.broker(request.broker_id)
    if broker is None or not broker.registered or broker.broker_epoch != request.broker_epoch:
        return _beat(draft.state, ErrorCode.stale_broker_epoch, fenced=True, stop=False), False
    alive = request.loop_age_ms < session_timeout_ms
    if request.want_shut_down:
        elections.shut_down(draft, request.broker_id)
        return _beat(draft.state, ErrorCode.none, fenced=broker.fenced, stop=True), alive
    elections.stay(draft, request.broker_id)  # it stays after all, if it wanted to stop
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
    """Whether a broker counts as fenced when a controller takes over. Slices are written before the
    Broker's status, so a broker that is in the ISR of a partition with a leader was not fenced,
    whatever its status says. ``rows``: those that have a replica on it."""
    serving = any(row.leader != NO_LEADER and node_id in row.isr for row in rows)
    return stored_fenced and not serving


def removal_blockers(draft: Draft, node_id: int) -> list[RowKey]:
    """Partitions that keep a ``Broker`` from being removed: no other live broker is known to have
    their records, or fewer have them without it than min.insync.replicas promises. Until that is
    mended, the finalizer waits, and the broker serves on (or may come back)."""
    return [row.key for row in draft.rows_on(node_id) if not _survives(draft, row, node_id)]


def _survives(draft: Draft, row: PartitionRow, node_id: int) -> bool:
    if draft.is_in_doubt(row.key):
        return False
    proven = set(row.isr + row.elr)
    others = proven - {node_id}
    enough = node_id not in proven or len(others) >= draft.min_isr(row)
    return enough and has_live_copy(draft, row.key, without=node_id)


def has_live_copy(draft: Draft, key: RowKey, *, without: int) -> bool:
    """Whether a live broker beside one has all records of a partition."""
    row = draft.row(key)
    proven = () if row is None else row.isr + row.elr
    return any(replica != without and draft.is_live(replica) for replica in proven)


def remove_broker(draft: Draft, node_id: int) -> None:
    """A ``Broker`` object is being deleted and nothing blocks it: its replicas leave every
    partition and become placeholders, which another broker fills; those that were going, or coming,
    with a move leave no place behind. One that others were to make room for stays in the place of
    one that comes no more: a move never ends with fewer than it was to end with."""
    for row in draft.rows_on(node_id):
        back = _called_back(row, node_id)
        free = min((*row.replicas, 0)) - 1
        instead = {node_id: back if node_id in row.adding + row.removing else free}
        replicas = (instead.get(other, other) for other in row.replicas if other != back)
        left = dataclasses.replace(
            row,
            replicas=tuple(replica for replica in replicas if replica is not None),
            isr=tuple(replica for replica in row.isr if replica != node_id),
            leader=NO_LEADER if row.leader == node_id else row.leader,
            adding=_still_coming(row, node_id),
            removing=tuple(other for other in row.removing if other not in (node_id, back)),
        )
        left = eligible_leaders.carried(row, left, draft.min_isr(row))
        draft.put_row(elections.raised(row, elections.best(draft, left, unclean=False)))


def _called_back(row: PartitionRow, node_id: int) -> int | None:
    """Who stays of those that go, since one that was to come is removed."""
    if node_id not in row.adding:
        return None
    in_sync = [other for other in row.removing if other in row.isr]
    return next(iter([*in_sync, *row.removing]), None)


def _still_coming(row: PartitionRow, node_id: int) -> tuple[int, ...]:
    """Once one is gone that others were to replace, these count as what the partition has: else so
    few would be left that the minimum in sync, which is never more than that, would sink."""
    if node_id in row.removing:
        return ()
    return tuple(replica for replica in row.adding if replica != node_id)
