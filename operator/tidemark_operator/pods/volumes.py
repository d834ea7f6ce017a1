"""What the claim of a broker's volume says of itself: whose it is, whether it is as wanted, and why
no volume comes.

A claim has no owner, so that it stays. A Broker that is made again under its name finds it by its
labels; one without them is somebody else's, and a broker would write into a stranger's volume.
"""

import re

from tidemark_operator.pods.identity import Json
from tidemark_operator.resources.names import BROKER_LABEL, CLUSTER_LABEL

_NO_CLASS = re.compile(r'storageclass\.storage\.k8s\.io "[^"]*" not found')


def foreign(live: Json, wanted: Json) -> str:
    """Why a claim that is there is not a Broker's; "": it is."""
    labels = live["metadata"].get("labels") or {}
    own = {name: wanted["metadata"]["labels"][name] for name in (CLUSTER_LABEL, BROKER_LABEL)}
    if own.items() <= labels.items():
        return ""
    name, words = wanted["metadata"]["name"], " ".join(f"{k}={v}" for k, v in own.items())
    return (
        f"PersistentVolumeClaim {name} was not created for it. Delete it, or "
        "create this Broker under another name. To continue with its data: "
        f"kubectl label --overwrite pvc {name} {words}"
    )


def is_as_wanted(live: Json, wanted: Json) -> bool:
    """Whether a claim need not be written."""
    there, spec = live["spec"], wanted["spec"]
    labels, class_name = live["metadata"].get("labels") or {}, spec.get("storageClassName")
    return (
        wanted["metadata"]["labels"].items() <= labels.items()
        and class_name in (None, there.get("storageClassName"))
        and there["resources"]["requests"]["storage"] == spec["resources"]["requests"]["storage"]
    )


def is_pending(live: Json) -> bool:
    """Whether no volume has been found for it yet."""
    return (live.get("status") or {}).get("phase") == "Pending"


def why_pending(live: Json, said: str) -> str:
    """Of a claim without a volume what a person has to see to; "": that is not known, and it may
    come by itself. ``said``: the last warning of its Events."""
    name, class_name = live["metadata"]["name"], live["spec"].get("storageClassName")
    if class_name is None:
        return (
            f"claim {name} has no StorageClass, and there is no default "
            "StorageClass. Make one the default"
        )
    if _NO_CLASS.search(said):
        return f"claim {name}: StorageClass {class_name} does not exist. Create it"
    return f"claim {name}, of StorageClass {class_name}: {said}" if said else ""
