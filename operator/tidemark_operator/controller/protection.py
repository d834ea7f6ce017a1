"""Deletion protection, as the last line: an object that is being deleted though
``tidemark.dev/deletion-protection`` is "true" (the admission policies are not installed, or were
gone round) is served on, and its conditions say so. A deletion cannot be taken back: the object
goes once the annotation is removed, and is to be made again by its manifest.
"""

from tidemark.annotations import DELETION_PROTECTION


def held_text(kind: str) -> str:
    """What the condition says."""
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
    """What a Kafka client is told that asks for the deletion of a topic."""
    return f"Topic {key} has {DELETION_PROTECTION} set. Remove the annotation first"
