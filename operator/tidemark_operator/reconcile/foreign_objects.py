"""Conditions of objects that belong to a Cluster which this operator does not control."""

from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.status.conditions import ConditionValue, render, summary
from tidemark_operator.kube.kinds import CLUSTER, Json, Key, Kind
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.reconcile.services import TermServices


async def report_foreign(services: TermServices, kind: Kind, key: Key, body: Json) -> float | None:
    """Write Ready=False with the reason; the Cluster's creation triggers the next step."""
    name = cluster_of(body)
    exists = services.objects.get(Key(CLUSTER.kind, key.namespace, name)) is not None
    # clusterRef is immutable, so only a missing Cluster can resolve itself.
    if exists:
        text = (
            f"Cluster {name} is not managed by this operator, which manages "
            f"{services.cluster_key.name}. Create the object with that "
            f"clusterRef, or in the namespace of the operator of {name}"
        )
        conditions = summary(
            ready=False, reason=Reason.CLUSTER_NOT_CONTROLLED, message=text, stalled=True
        )
    else:
        text = f"Cluster {name} does not exist in namespace {key.namespace}. Create it"
        conditions = summary(
            ready=False, reason=Reason.CLUSTER_NOT_FOUND, message=text, reconciling=True
        )
    await write_conditions(services, kind, key, body, conditions)
    return None


async def write_conditions(
    services: TermServices,
    kind: Kind,
    key: Key,
    body: Json,
    conditions: list[ConditionValue],
    *,
    once: bool = True,
) -> None:
    """Write a status that consists of conditions, if it differs from the present one.

    ``once``: another operator may write different conditions to the object.
    """
    now_ms = wall_ms()
    former: Json = body.get("status") or {}
    generation = int(body["metadata"]["generation"])
    status: Json = {
        **former,
        "observedGeneration": generation,
        "conditions": render(conditions, former, generation=generation, now_ms=now_ms),
    }
    # Operators of other namespaces may write the same status: overwriting it would alternate.
    # Two operators that wrote alternately would never stop.
    if once:
        uid = str(body["metadata"]["uid"])
        await services.statuses.write_once(kind, key, former, status, uid=uid, now_ms=now_ms)
    else:
        await services.statuses.write_if_due(kind, key, former, status, now_ms=now_ms)
