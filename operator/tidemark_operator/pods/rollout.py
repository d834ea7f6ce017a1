"""State of a StatefulSet: its owner, and whether its pod is up to date and ready.

Also the state of a broker's volume claim: its owner, its desired state, the reason for a missing
volume. A claim has no owner, so that it stays. A Broker that is recreated under its name finds it
by its labels. A claim without them belongs to another owner, whose volume a broker must not write
to.
"""

import re

from tidemark_operator.pods.identity import MANAGER, Json
from tidemark_operator.resources.names import BROKER_LABEL, CLUSTER_LABEL

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


# ------------------------------------------------------------ volumes


_NO_CLASS = re.compile(r'storageclass\.storage\.k8s\.io "[^"]*" not found')


def foreign_claim(live: Json, desired: Json) -> str:
    """Return why an existing claim is not the Broker's, "" if it is."""
    labels = live["metadata"].get("labels") or {}
    own = {name: desired["metadata"]["labels"][name] for name in (CLUSTER_LABEL, BROKER_LABEL)}
    if own.items() <= labels.items():
        return ""
    name, pairs = desired["metadata"]["name"], " ".join(f"{k}={v}" for k, v in own.items())
    return (
        f"PersistentVolumeClaim {name} was not created for it. Delete it, or "
        "create this Broker under another name. To continue with its data: "
        f"kubectl label --overwrite pvc {name} {pairs}"
    )


def claim_matches(live: Json, desired: Json) -> bool:
    """Return whether a claim has its desired state."""
    there, spec = live["spec"], desired["spec"]
    labels, class_name = live["metadata"].get("labels") or {}, spec.get("storageClassName")
    return (
        desired["metadata"]["labels"].items() <= labels.items()
        and class_name in (None, there.get("storageClassName"))
        and there["resources"]["requests"]["storage"] == spec["resources"]["requests"]["storage"]
    )


def is_pending(live: Json) -> bool:
    """Return whether the claim has no volume yet."""
    return (live.get("status") or {}).get("phase") == "Pending"


def why_pending(live: Json, warning: str) -> str:
    """Return why a claim has no volume, "" if that is unknown and may resolve itself.

    ``warning``: the last warning of its Events.
    """
    name, class_name = live["metadata"]["name"], live["spec"].get("storageClassName")
    if class_name is None:
        return (
            f"claim {name} has no StorageClass, and there is no default "
            "StorageClass. Make one the default"
        )
    if _NO_CLASS.search(warning):
        return f"claim {name}: StorageClass {class_name} does not exist. Create it"
    return f"claim {name}, of StorageClass {class_name}: {warning}" if warning else ""
