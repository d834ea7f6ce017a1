"""State of a StatefulSet: its owner, and whether its pod is up to date and ready."""

from tidemark_operator.pods.identity import MANAGER, Json
from tidemark_operator.resources.names import BROKER_LABEL

_OF_THE_POD = ("template", "updateStrategy")
_CONTENT = frozenset({"f:spec", "f:data", "f:binaryData"})


def is_complete(stateful_set: Json) -> bool:
    """Return whether the controller has observed the spec, and the pod of that spec is ready."""
    status = stateful_set.get("status") or {}
    return (
        int(status.get("observedGeneration") or 0) >= int(stateful_set["metadata"]["generation"])
        and int(status.get("updatedReplicas") or 0) >= 1
        and int(status.get("readyReplicas") or 0) >= 1
    )


def has_no_pod(stateful_set: Json) -> bool:
    """Return whether the controller has observed the spec, and there is no pod."""
    status = stateful_set.get("status") or {}
    seen = int(status.get("observedGeneration") or 0)
    return seen >= int(stateful_set["metadata"]["generation"]) and not status.get("replicas")


def replaces_pod(live: Json, desired: Json) -> bool:
    """Return whether an apply of ``desired`` may replace the pod.

    Both are answers of the API server with its defaults, so they differ only in real changes. A
    foreign update strategy may hold back a pod whose template was changed as well: the revert
    releases it.
    """
    return any(live["spec"].get(part) != desired["spec"].get(part) for part in _OF_THE_POD)


def belongs_to_broker(live: Json, desired: Json) -> bool:
    """Return whether an object was made for this Broker.

    The owner shows it, or, for a recreated Broker, the labels. Either may have been removed by
    hand.
    """
    owners, labels = (live["metadata"].get(part) or () for part in ("ownerReferences", "labels"))
    meta = desired["metadata"]
    uids = {reference["uid"] for reference in meta["ownerReferences"]}
    return not uids.isdisjoint(reference["uid"] for reference in owners) or all(
        name in labels and labels[name] == value for name, value in meta["labels"].items()
    )


def belongs_to_cluster(live: Json, desired: Json) -> bool:
    """Return the same for an object that all brokers of a Cluster share."""
    labels = live["metadata"].get("labels") or {}
    return belongs_to_broker(live, desired) and BROKER_LABEL not in labels


def owner_text(live: Json) -> str:
    """Return the owner of an object that is not ours, as far as the object shows."""
    owners = live["metadata"].get("ownerReferences") or ()
    named = [f"{reference.get('kind')} {reference.get('name')}" for reference in owners]
    return ", ".join(named or other_managers(live)) or "an unknown owner"


def other_managers(live: Json) -> list[str]:
    """Return the other managers of an object's content, by its ``managedFields``."""
    return sorted(
        {
            str(entry.get("manager"))
            for entry in live["metadata"].get("managedFields") or ()
            if entry.get("manager") != MANAGER
            and not entry.get("subresource")
            and not _CONTENT.isdisjoint(entry.get("fieldsV1") or {})
        }
    )
