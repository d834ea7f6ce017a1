"""Conditions of objects that no reconciler of this term serves.

An object may belong to a Cluster which this operator does not control. Or its deletion is complete
for the operator while other finalizers hold it: it would keep its last status, and a Topic would
stay Ready although its records are deleted. The condition is derived from the object alone. So if
the operator stops before it writes the condition, the next one writes it.
"""

from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.status.conditions import (
    ConditionValue,
    condition,
    render,
    summary,
)
from tidemark_operator.kube.finalizers import finalizers_of
from tidemark_operator.kube.kinds import (
    BROKER,
    BY_KIND,
    CLUSTER,
    EXPORT,
    RECORD_DELETION,
    TOPIC,
    USER,
    Json,
    Key,
    Kind,
)
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.reconcile.services import TermServices
from tidemark_operator.resources.names import BROKER_FINALIZER, CLUSTER_FINALIZER, TOPIC_FINALIZER


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


# ------------------------------------------------------------ released objects


#: The operator's finalizer by kind. The deletion of other kinds needs no work that takes time.
_OWN_FINALIZERS = {
    TOPIC.kind: TOPIC_FINALIZER,
    BROKER.kind: BROKER_FINALIZER,
    CLUSTER.kind: CLUSTER_FINALIZER,
}


async def report_deleted(services: TermServices, key: Key) -> None:
    """Write Ready=False, reason Deleted (of a RecordDeletion Succeeded=False, Abandoned), if only
    finalizers of others hold the object. Raises ``KubeError``."""
    body = services.objects.get(key)
    # A Cluster is released between terms: term.cluster_teardown reports it.
    if body is None or key.kind == CLUSTER.kind or not is_released(body):
        return
    # An object of another Cluster is that Cluster's operator's.
    spec: Json = body["spec"]
    if "clusterRef" in spec and spec["clusterRef"]["name"] != services.cluster_key.name:
        return
    if key.kind == RECORD_DELETION.kind and (body.get("status") or {}).get("completionTime"):
        return  # Succeeded has the final result
    await write_conditions(services, BY_KIND[key.kind], key, body, deleted_conditions(body))


def is_released(body: Json) -> bool:
    """Return whether an object is being deleted and the operator has done its part."""
    own = _OWN_FINALIZERS.get(str(body["kind"]))
    return bool(body["metadata"].get("deletionTimestamp")) and own not in finalizers_of(body)


def deleted_conditions(body: Json) -> list[ConditionValue]:
    """Return the conditions of an object that the operator has released.

    It still exists only because finalizers of other controllers remain.
    """
    kind = str(body["kind"])
    waiting = f"waiting for others to remove their finalizers: {_names(body)}"
    if kind == RECORD_DELETION.kind:
        text = f"deleted before it finished, so records may remain. {waiting}"
        return [
            condition("Succeeded", False, Reason.ABANDONED, text),
            condition("Reconciling", False, Reason.FINISHED),
            condition("Stalled", False, Reason.PROGRESSING),
        ]
    done = _DONE[kind]
    if kind == TOPIC.kind and body["spec"].get("deletionPolicy") == "Orphan":
        done = "the topic is orphaned (deletionPolicy Orphan)"
    return summary(ready=False, reason=Reason.DELETED, message=f"{done}; {waiting}")


_DONE = {
    TOPIC.kind: "the topic is completely deleted",
    BROKER.kind: "the broker is removed from the cluster",
    CLUSTER.kind: "the cluster is completely deleted",
    USER.kind: "brokers no longer accept the user",
    EXPORT.kind: "no job runs, and the table keeps its rows",
}


def _names(body: Json) -> str:
    return ", ".join(finalizers_of(body))
