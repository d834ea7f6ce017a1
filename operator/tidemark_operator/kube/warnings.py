"""What others say of an object that the operator keeps, in its Events.

A pod that is not made or does not start, or a volume that does not come, stands nowhere else that
the operator may read: quotas, classes, nodes and images are told by whoever was refused for them.
"""

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import REFUSALS
from tidemark_operator.kube.kinds import EVENT, POD, Json, Kind

#: Of a pod, what does not pass by itself as a rule; a probe that fails is how any pod begins.
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
    """The text of the last one; "": there is none, or Events may not be read."""
    warnings = [
        each for each in await _events(api, namespace, kind, name) if each.get("type") == "Warning"
    ]
    return str(max(warnings, key=_at).get("note", "")) if warnings else ""


async def why_stuck(api: KubeApi, namespace: str, pod: str) -> str:
    """What holds a pod up, if that is the last thing that was said of it: what came before, of
    another pod of the name even, is over."""
    last = max(await _events(api, namespace, POD, pod), key=_at, default=None)
    if last is None or last.get("reason") not in _STUCK:
        return ""
    return str(last.get("note", ""))


async def _events(api: KubeApi, namespace: str, kind: Kind, name: str) -> list[Json]:
    regarding = f"regarding.kind={kind.kind},regarding.name={name}"
    try:
        return await api.list_all(EVENT, namespace, field_selector=regarding)
    except REFUSALS:
        return []


def _at(event: Json) -> str:
    """When it was seen last, as the API server writes it."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("deprecatedLastTimestamp"))
    first = (event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return next((str(each) for each in (*times, *first) if each), "")
