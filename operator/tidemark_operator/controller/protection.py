"""Deletion protection as the last line of defence.

An object may be deleted although ``tidemark.dev/deletion-protection`` is "true", if the admission
policies are not installed or were bypassed. It is still served, and its conditions say so. A
deletion cannot be withdrawn: the object disappears once the annotation is removed, and has to be
created again from its manifest.
"""

from tidemark.annotations import DELETION_PROTECTION


def blocked_text(kind: str) -> str:
    """Return the condition's message of an object whose deletion is held back."""
    keep = " (to keep the data, first set deletionPolicy: Orphan)" if kind == "Topic" else ""
    return (
        f"this {kind} is being deleted, but {DELETION_PROTECTION} is set. "
        "Nothing is deleted and it stays in service. To delete it, remove the "
        f"annotation{keep}"
    )


def leaving_text(definitions: frozenset[str]) -> str:
    """Return the message of the Cluster's condition while definitions are being deleted."""
    names = ", ".join(sorted(definitions))
    return (
        f"the definition of {names} is being deleted, with its objects. The "
        "operator deletes nothing, and the cluster continues. Install the "
        "definitions again, and then the objects from their manifests "
        "(docs/how-to/deletion-protection.md)"
    )


def refused_text(key: str) -> str:
    """Return the answer to a Kafka client that requests the deletion of a protected topic."""
    return f"Topic {key} has {DELETION_PROTECTION} set. Remove the annotation first"
