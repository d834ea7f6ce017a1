"""Status of a Broker: registration, leaders and replicas, and its conditions.

The conditions are Registered, Ready, Draining, PodUpToDate and ExternalAddress.
"""

from tidemark.message_text import numbers
from tidemark.reasons import Reason
from tidemark_operator.controller import protection
from tidemark_operator.controller.external_listeners import rendered
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import BrokerHealth, BrokerInfo, Hold, PodState
from tidemark_operator.controller.status import external_listeners
from tidemark_operator.controller.status.conditions import (
    READY,
    TRUE,
    ConditionValue,
    StatusResult,
    condition,
    find,
    render,
    summary,
    time_text,
    with_cause,
)
from tidemark_operator.controller.status.draining import drain_status, named


def broker_status(state: ControllerState, broker: BrokerInfo, *, now_ms: int) -> StatusResult:
    """Return the status of a Broker: registration, figures, conditions.

    ``broker`` may be a drafted registration that is about to be persisted, while the state still
    has the former one.
    """
    health = state.health.get(broker.node_id, BrokerHealth())
    conditions = with_pod(
        state,
        broker.node_id,
        _conditions(broker, health, unreached=state.unreached, now_ms=now_ms),
    )
    conditions, addresses = external_listeners.of_broker(state, broker, conditions)
    status: dict[str, object] = dict(broker.status)
    status["observedGeneration"] = broker.generation
    # A registration in the stored status that is later than the one in memory is kept.
    status["controllerEpoch"] = state.controller_epoch
    if not _is_overtaken(broker):
        status.pop("rack", None)
        status.update(_registration(broker) if broker.registered else {})
    if broker.registered:
        status.update(_figures(state, broker))
    # Fields of absent features are removed, so that a withdrawn listener or drain leaves no trace.
    status.pop(external_listeners.ENDPOINTS, None)
    status.update(addresses)
    status.pop("drain", None)
    leaving = drain_status(state, broker)
    if leaving is not None:
        draining, status["drain"] = leaving
        conditions.append(draining)
        # A drain counts as reconciling unless something else does already.
        if draining.status == TRUE and conditions[1].status != TRUE:
            conditions[1] = condition("Reconciling", True, draining.reason, draining.message)
    status["conditions"] = render(
        conditions, broker.status, generation=broker.generation, now_ms=now_ms
    )
    sentence = f"broker {broker.node_id}: {conditions[0].message}"
    return StatusResult(status=status, sentence=sentence)


def _is_overtaken(broker: BrokerInfo) -> bool:
    """Return whether a later registration is stored already.

    A watch may be faster than the answer to the write, and that answer may be lost. An epoch never
    decreases.
    """
    stored = broker.status.get("brokerEpoch")
    return isinstance(stored, int) and stored > broker.broker_epoch


def _registration(broker: BrokerInfo) -> dict[str, object]:
    """Return the status fields of a registration, from which the next controller reads it."""
    rack = {} if broker.reported_rack is None else {"rack": broker.reported_rack}
    process: dict[str, object] = {}
    if broker.incarnation_id is not None:
        process = {
            "brokerEpoch": broker.broker_epoch,
            "incarnationId": str(broker.incarnation_id),
            "directoryId": str(broker.directory_id),
        }
    return {
        **rack,
        **process,
        "endpoints": rendered(broker.listeners),
    }


def _figures(state: ControllerState, broker: BrokerInfo) -> dict[str, object]:
    figures: dict[str, object] = {
        "leaders": state.partitions.leader_count(broker.node_id),
        "replicas": state.partitions.replica_count(broker.node_id),
    }
    health = state.health.get(broker.node_id)
    if health is not None:
        figures["logBytes"] = health.log_bytes
    return figures


def _conditions(
    broker: BrokerInfo, health: BrokerHealth, *, unreached: bool, now_ms: int
) -> list[ConditionValue]:
    """Return the conditions Ready, Reconciling, Stalled and Registered, in that order."""
    main = _main(broker, health, unreached=unreached, now_ms=now_ms)
    if broker.deletion_blocked:
        main[2] = condition(
            "Stalled", True, Reason.DELETION_PROTECTED, protection.blocked_text("Broker")
        )
    if not broker.registered:
        text = f"start a broker with node.id {broker.node_id} and this cluster's id"
        return [*main, condition("Registered", False, Reason.NEVER_REGISTERED, text)]
    text = f"broker epoch {broker.broker_epoch}"
    # Another engine registers its brokers without a process id of Tidemark's.
    if broker.incarnation_id is None:
        text = "it is registered with the controller of its cluster"
    if not broker.live:
        reason = Reason.SHUT_DOWN if broker.shutting_down else Reason.FENCED
        text = f"its registration is not active ({text}). See the condition Ready"
        return [*main, condition("Registered", False, reason, text)]
    return [*main, condition("Registered", True, Reason.REGISTERED, text)]


def _main(
    broker: BrokerInfo, health: BrokerHealth, *, unreached: bool, now_ms: int
) -> list[ConditionValue]:
    """Return Ready, Reconciling and Stalled of a Broker; the first reason that applies is shown."""
    # First the reasons why no process serves.
    if not broker.registered:
        text = f"waiting for a broker with node.id {broker.node_id} to register"
        return summary(ready=False, reason=Reason.NEVER_REGISTERED, message=text, reconciling=True)
    if broker.shutting_down:
        text = "the broker has shut down, or is shutting down. Start it again"
        return summary(ready=False, reason=Reason.SHUT_DOWN, message=text, reconciling=True)
    if broker.fenced:
        text = _fenced_text(broker, now_ms)
        return summary(ready=False, reason=Reason.FENCED, message=text, reconciling=True)
    if unreached:
        text = (
            "it was live when this operator took over, but no broker has reached "
            "the operator since then"
        )
        return summary(
            ready=False, reason=Reason.BROKER_UNREACHABLE, message=text, reconciling=True
        )
    # A broker without a log directory serves nothing; with a failed replica it serves the others.
    if health.directory_error:
        text = f"log directory: {health.directory_error}"
        return summary(ready=False, reason=Reason.LOG_DIRECTORY_FAILED, message=text, stalled=True)
    if health.storage_error:
        text = f"serving, except replicas with failed storage: {health.storage_error}"
        return summary(ready=True, reason=Reason.REPLICAS_FAILED, message=text)
    # Remote storage is last: without it the broker still serves local data.
    if health.remote_error and broker.is_reader:
        text = f"the remote tier, all that a Reader serves, is unavailable: {health.remote_error}"
        return summary(ready=False, reason=Reason.REMOTE_STORAGE_UNAVAILABLE, message=text)
    if health.remote_error:
        text = f"serving, but the remote tier is unavailable: {health.remote_error}"
        return summary(ready=True, reason=Reason.REMOTE_STORAGE_UNAVAILABLE, message=text)
    return summary(ready=True, reason=Reason.SERVING, message="registered and serving")


def _fenced_text(broker: BrokerInfo, now_ms: int) -> str:
    """Return the message of a fenced broker. The time in it stays as first written."""
    # A new time in each message would be a change of the status with every heartbeat.
    before = find(broker.status, READY) or {}
    if before.get("reason") == Reason.FENCED and "fenced since" in str(before.get("message")):
        return str(before["message"])
    return (
        f"fenced since {time_text(now_ms)}: the operator receives no heartbeat, "
        "or the broker has not caught up after its start. Start the broker "
        f"with node.id {broker.node_id}, or look at its log. If it never "
        "returns, delete this Broker"
    )


UP_TO_DATE = "PodUpToDate"


def with_pod(
    state: ControllerState, node_id: int, conditions: list[ConditionValue]
) -> list[ConditionValue]:
    """Add the condition PodUpToDate to a Broker's conditions, if it has a pod."""
    pod = state.pods.get(node_id)
    if pod is None:
        return conditions
    waits = (Reason.RESTART_PENDING, Reason.POD_STARTING)
    stuck = (Reason.POD_MISSING, Reason.POD_REFUSED, Reason.VOLUME_REFUSED)
    return with_cause(conditions, _pod_condition(state, pod), reconciling=waits, stalled=stuck)


def _pod_condition(state: ControllerState, pod: PodState) -> ConditionValue:
    """Return the condition PodUpToDate of a Broker; the first reason that applies is shown."""
    # First what prevents a pod or its replacement, then what delays it.
    if pod.missing:
        return condition(UP_TO_DATE, False, Reason.POD_MISSING, pod.missing)
    if pod.refused:
        return condition(UP_TO_DATE, False, Reason.POD_REFUSED, pod.refused)
    if pod.hold is not None:
        text = f"its pod is replaced when a restart is safe: {hold_text(state, pod.hold)}"
        return condition(UP_TO_DATE, False, Reason.RESTART_PENDING, text)
    if pod.volume:
        return condition(UP_TO_DATE, False, Reason.VOLUME_REFUSED, pod.volume)
    if pod.restarting and pod.why:
        text = f"pod {pod.name} {pod.why}"
        return condition(UP_TO_DATE, False, Reason.POD_STARTING, text)
    if pod.restarting:
        text = (
            f"pod {pod.name} is being created, or is not ready. See kubectl describe pod {pod.name}"
        )
        return condition(UP_TO_DATE, False, Reason.POD_STARTING, text)
    return condition(UP_TO_DATE, True, Reason.UP_TO_DATE, f"pod {pod.name}")


def hold_text(state: ControllerState, hold: Hold) -> str:
    """Return what a held restart waits for."""
    if hold.unreached:
        return "no broker has reached this operator yet"
    texts = []
    if hold.starting:
        texts.append(f"pods of other brokers are being created ({numbers(hold.starting)})")
    if hold.away:
        texts.append(f"other brokers are down ({numbers(hold.away)})")
    if hold.behind:
        texts.append(f"not fully in sync: {named(state, hold.behind)}")
    return "; ".join(texts)
