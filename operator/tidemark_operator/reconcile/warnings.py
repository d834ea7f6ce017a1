"""What others say of an object that is kept for a Broker: the last warning among its Events.

A pod that is not made, or a volume that does not come, stands nowhere else that may be read from
within a namespace: quotas, classes and policies are told by whoever was refused for them.
"""

from tidemark_operator.kube.errors import REFUSALS
from tidemark_operator.kube.kinds import EVENT, Json, Kind
from tidemark_operator.reconcile.services import Services


async def last_warning(services: Services, kind: Kind, name: str) -> str:
    """Its text; "": there is none, or Events may not be read."""
    regarding = f"regarding.kind={kind.kind},regarding.name={name}"
    try:
        events = await services.client.api.list_all(
            EVENT, services.cluster_key.namespace, field_selector=regarding
        )
    except REFUSALS:
        return ""
    warnings = [each for each in events if each.get("type") == "Warning"]
    return str(max(warnings, key=_at).get("note", "")) if warnings else ""


def _at(event: Json) -> str:
    """When it was seen last, as the API server writes it."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("deprecatedLastTimestamp"))
    first = (event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return next((str(each) for each in (*times, *first) if each), "")
