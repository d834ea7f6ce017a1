"""Conditions of objects that belong to a Cluster which this operator does not control."""

from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.status.conditions import ConditionValue, render, summary
from tidemark_operator.kube.kinds import CLUSTER, Json, Key, Kind
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.reconcile.services import TermServices


async def report_foreign(services: TermServices, kind: Kind, key: Key, body: Json) -> float | None:
    """Report that an object belongs to a Cluster that this operator does not manage.

    Writes Ready=False with the reason. Always returns None: nothing is due until the object or its
    Cluster changes.
    """
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
    """Write a status whose only changes are these conditions, unless they are already there.

    ``once``: an operator of another Cluster may write different conditions to the same object. Each
    then writes at most once, so that the two do not overwrite each other forever.
    """
    now_ms = wall_ms()
    former: Json = body.get("status") or {}
    generation = int(body["metadata"]["generation"])
    status: Json = {
        **former,
        "observedGeneration": generation,
        "conditions": render(conditions, former, generation=generation, now_ms=now_ms),
    }
    # Two operators that overwrite each other's conditions would never stop.
    if once:
        uid = str(body["metadata"]["uid"])
        await services.statuses.write_once(kind, key, former, status, uid=uid, now_ms=now_ms)
    else:
        await services.statuses.write_if_due(kind, key, former, status, now_ms=now_ms)
