"""Deletion of a Cluster: it waits for its Topics and Brokers, and names them.

They need the controller for their own deletion (replicas, data in the tier, registrations), and the
controller needs the Cluster. So the Cluster's finalizer is removed after theirs, and the
PartitionSlices in between: once a Cluster has neither Topics nor Brokers, everything else may be
removed.
"""

from collections.abc import Iterable

from tidemark.message_text import count

#: Names of each kind in a condition; the rest are counted.
_SHOWN = 5


def waiting_text(topics: Iterable[str], brokers: Iterable[str]) -> str:
    """Return the objects that a Cluster's deletion waits for, and what to do.

    "" if there are none.
    """
    waits = [
        _named(sorted(names), kind)
        for kind, names in (("Topic", list(topics)), ("Broker", list(brokers)))
        if names
    ]
    if not waits:
        return ""
    return (
        f"waiting for {' and '.join(waits)}. Delete them. If one is not "
        "deleted, see its conditions (for a Broker, Draining)"
    )


def _named(names: list[str], kind: str) -> str:
    shown = ", ".join(names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{count(len(names), kind)} ({shown}{more})"
