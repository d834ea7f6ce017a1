"""The end of a Cluster: it waits for its Topics and Brokers, and says for which.

They need the controller to go in order (replicas, what lies in the tier, registrations), and the
controller needs the Cluster. So the Cluster's finalizer goes after theirs, and the PartitionSlices
between the two: whoever finds a Cluster without Topics and Brokers may remove all that is left.
"""

from collections.abc import Iterable

from tidemark_operator.controller.events import count

#: Names of each kind that a condition shows; the rest are counted.
_SHOWN = 5


def waiting_text(topics: Iterable[str], brokers: Iterable[str]) -> str:
    """For what a Cluster that is being deleted waits, and what helps; "" when for nothing."""
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
