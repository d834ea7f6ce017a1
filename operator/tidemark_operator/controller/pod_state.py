"""A broker's pod as last observed: in memory, and filled again by each controller."""

import dataclasses

from tidemark_operator.controller.model import RowKey


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Reason why a changed pod is not created yet.

    No broker has reached this operator, other brokers restart or are down, or partitions of this
    one are not fully in sync.
    """

    unreached: bool = False
    starting: tuple[int, ...] = ()
    away: tuple[int, ...] = ()
    behind: tuple[RowKey, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """A broker's pod as last observed.

    ``hold``: a changed pod waits. ``restarting``: it is being created, or is not ready, because of
    ``why`` if that is known. ``refused`` and ``volume`` say why the pod, or its volume, differs
    from the spec. ``missing`` says why there can be no pod.
    """

    name: str
    hold: Hold | None = None
    restarting: bool = False
    refused: str = ""
    volume: str = ""
    why: str = ""
    missing: str = ""
