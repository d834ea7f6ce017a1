"""Status of objects whose deletion is complete for the operator while other finalizers hold them.

Such an object keeps its last status: a Topic would stay Ready although its records are deleted. The
condition is derived from the object alone. So if the operator stops before it writes the condition,
the next one writes it.
"""

from tidemark.reasons import Reason
from tidemark_operator.controller.status.conditions import ConditionValue, condition, summary
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
)
from tidemark_operator.reconcile.foreign_objects import write_conditions
from tidemark_operator.reconcile.services import TermServices
from tidemark_operator.resources.names import BROKER_FINALIZER, CLUSTER_FINALIZER, TOPIC_FINALIZER

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
