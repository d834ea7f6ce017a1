"""Where a Service leads from, as it was last seen: memory, which the next controller fills anew."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WayIn:
    """How clients outside reach one listener of one broker, or of any. ``host`` "": the address of
    the node, by ``by_external_ip`` its ExternalIP; ``port`` 0: there is no way. ``problem``: why
    not, or why it is not as wanted; ``refused``: it takes a person."""

    host: str = ""
    port: int = 0
    by_external_ip: bool = False
    problem: str | None = None
    refused: bool = False


@dataclasses.dataclass(slots=True, kw_only=True)
class WaysIn:
    """All of them. ``brokers``: by node id and listener; ``bootstraps``: those that lead to any
    broker, by listener; what is not there, or None, was not looked at yet. ``external_ips``: of
    Nodes by InternalIP, of one without an ExternalIP that itself; ``nodes_problem``: why Nodes are
    not read."""

    brokers: dict[int, Mapping[str, WayIn]] = dataclasses.field(default_factory=dict)
    bootstraps: Mapping[str, WayIn] | None = None
    external_ips: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nodes_problem: str = ""
