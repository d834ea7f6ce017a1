"""Warnings about the operator's objects from other components, read from Events.

Only Events say why a pod is not created or does not start, or why a volume is missing. The operator
may not read quotas, classes, nodes and images itself.
"""

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import REFUSALS
from tidemark_operator.kube.kinds import EVENT, POD, Json, Kind

#: Reasons of a pod's Events that usually need a person. A failing probe is normal at start.
_STUCK = frozenset(
    {
        "BackOff",
        "Failed",
        "FailedAttachVolume",
        "FailedCreatePodSandBox",
        "FailedMount",
        "FailedScheduling",
    }
)


async def last_warning(api: KubeApi, namespace: str, kind: Kind, name: str) -> str:
    """Return the text of the last warning, "" without one or without the right to read Events."""
    events = await _events(api, namespace, kind, name)
    warnings = [event for event in events if event.get("type") == "Warning"]
    return str(max(warnings, key=_at).get("note", "")) if warnings else ""


async def why_stuck(api: KubeApi, namespace: str, pod: str) -> str:
    """Return why a pod is stuck, if its last Event says so.

    Earlier Events are over; they may even concern a former pod of the name.
    """
    last = max(await _events(api, namespace, POD, pod), key=_at, default=None)
    if last is None or last.get("reason") not in _STUCK:
        return ""
    return str(last.get("note", ""))


async def _events(api: KubeApi, namespace: str, kind: Kind, name: str) -> list[Json]:
    regarding = f"regarding.kind={kind.kind},regarding.name={name}"
    try:
        return await api.list_all(EVENT, namespace, field_selector=regarding)
    # The right to read Events is optional; without it statuses are only less detailed.
    except REFUSALS:
        return []


def _at(event: Json) -> str:
    """Return when the Event was last seen, as the API server writes it."""
    # Newer components count in `series`, older ones in the deprecated fields.
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("deprecatedLastTimestamp"))
    first = (event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return next((str(time) for time in (*times, *first) if time), "")
