"""Condition PodUpToDate of a broker's pod, and its effect on Reconciling and Stalled."""

from tidemark.message_text import numbers
from tidemark.reasons import Reason
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.pod_state import Hold, PodState
from tidemark_operator.controller.status.conditions import ConditionValue, condition
from tidemark_operator.controller.status.draining import named

UP_TO_DATE = "PodUpToDate"


def with_pod(
    state: ControllerState, node_id: int, conditions: list[ConditionValue]
) -> list[ConditionValue]:
    """Add the condition PodUpToDate to a Broker's conditions, if it has a pod.

    The first three of ``conditions`` are Ready, Reconciling and Stalled.
    """
    pod = state.pods.get(node_id)
    if pod is None:
        return conditions
    found = _condition(state, pod)
    ready, reconciling, stalled, *others = conditions
    # A reason of the Broker itself has precedence over one of its pod.
    if (
        found.reason in (Reason.RESTART_PENDING, Reason.POD_STARTING)
        and reconciling.status != "True"
    ):
        reconciling = condition("Reconciling", True, found.reason, found.message)
    if (
        found.reason in (Reason.POD_MISSING, Reason.POD_REFUSED, Reason.VOLUME_REFUSED)
        and stalled.status != "True"
    ):
        stalled = condition("Stalled", True, found.reason, found.message)
    return [ready, reconciling, stalled, *others, found]


def _condition(state: ControllerState, pod: PodState) -> ConditionValue:
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
