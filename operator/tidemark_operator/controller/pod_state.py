"""A broker's pod as the operator last saw it: memory, which the next controller fills anew."""

import dataclasses

from tidemark_operator.controller.model import RowKey


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why a changed pod is not made yet: nobody has reached this operator, brokers are being
    restarted or away, or partitions of this one are not fully in sync."""

    unreached: bool = False
    starting: tuple[int, ...] = ()
    away: tuple[int, ...] = ()
    behind: tuple[RowKey, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """A broker's pod as the operator last saw it. ``hold``: a changed pod waits; ``restarting``: it
    is being made, or is not ready, ``why``: for what reason, as far as that is known; ``refused``,
    ``volume``: why the pod, or its volume, is not as wanted; ``missing``: why there can be no
    pod."""

    name: str
    hold: Hold | None = None
    restarting: bool = False
    refused: str = ""
    volume: str = ""
    why: str = ""
    missing: str = ""
