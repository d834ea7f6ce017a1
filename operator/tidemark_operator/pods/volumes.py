"""State of a broker's volume claim: its owner, its desired state, the reason for a missing volume.

A claim has no owner, so that it stays. A Broker that is recreated under its name finds it by its
labels. A claim without them belongs to another owner, whose volume a broker must not write to.
"""

import re

from tidemark_operator.pods.identity import Json
from tidemark_operator.resources.names import BROKER_LABEL, CLUSTER_LABEL

_NO_CLASS = re.compile(r'storageclass\.storage\.k8s\.io "[^"]*" not found')


def foreign(live: Json, desired: Json) -> str:
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


def matches_manifest(live: Json, desired: Json) -> bool:
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
