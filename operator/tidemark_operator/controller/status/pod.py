"""How far a broker's pod is what the manifest says: its condition PodUpToDate, and what that means
for Reconciling and Stalled."""

from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.events import numbers
from tidemark_operator.controller.pod_state import Hold, PodState
from tidemark_operator.controller.status.conditions import Condition, condition
from tidemark_operator.controller.status.draining import named

UP_TO_DATE = "PodUpToDate"


def with_pod(state: ControllerState, node_id: int, conditions: list[Condition]) -> list[Condition]:
    """A Broker's conditions, with that of its pod if it has one; the first three are Ready,
    Reconciling and Stalled."""
    pod = state.pods.get(node_id)
    if pod is None:
        return conditions
    found = _condition(state, pod)
    ready, reconciling, stalled, *others = conditions
    if found.reason in ("RestartWaits", "PodStarting") and reconciling.status != "True":
        reconciling = condition("Reconciling", True, found.reason, found.message)
    if found.reason in ("PodMissing", "PodRefused", "VolumeRefused") and stalled.status != "True":
        stalled = condition("Stalled", True, found.reason, found.message)
    return [ready, reconciling, stalled, *others, found]


def _condition(state: ControllerState, pod: PodState) -> Condition:
    if pod.missing:
        return condition(UP_TO_DATE, False, "PodMissing", pod.missing)
    if pod.refused:
        return condition(UP_TO_DATE, False, "PodRefused", pod.refused)
    if pod.hold is not None:
        text = f"its pod is replaced once it may restart: {hold_text(state, pod.hold)}"
        return condition(UP_TO_DATE, False, "RestartWaits", text)
    if pod.volume:
        return condition(UP_TO_DATE, False, "VolumeRefused", pod.volume)
    if pod.restarting and pod.why:
        text = f"pod {pod.name} {pod.why}"
        return condition(UP_TO_DATE, False, "PodStarting", text)
    if pod.restarting:
        text = f"pod {pod.name} is being made, or is not ready: kubectl describe pod {pod.name}"
        return condition(UP_TO_DATE, False, "PodStarting", text)
    return condition(UP_TO_DATE, True, "UpToDate", f"pod {pod.name}")


def hold_text(state: ControllerState, held: Hold) -> str:
    """What is waited for."""
    if held.unreached:
        return "no broker has reached this operator yet"
    texts = []
    if held.starting:
        texts.append(f"the pods of other brokers are being made ({numbers(held.starting)})")
    if held.away:
        texts.append(f"other brokers are not there ({numbers(held.away)})")
    if held.behind:
        texts.append(f"not fully in sync: {named(state, held.behind)}")
    return "; ".join(texts)
