"""Addresses of Services as last observed: in memory, and filled again by each controller."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """External address of one listener of one broker, or of any broker.

    ``host`` "" stands for the node's address, with ``by_external_ip`` its ExternalIP. ``port`` 0:
    there is no address. ``problem`` says why there is none, or why it differs from the spec; with
    ``refused`` a person has to act.
    """

    host: str = ""
    port: int = 0
    by_external_ip: bool = False
    problem: str | None = None
    refused: bool = False


@dataclasses.dataclass(slots=True, kw_only=True)
class ExternalAddresses:
    """All external addresses.

    ``brokers`` are by node id and listener, ``bootstraps`` (any broker) by listener. A missing
    entry, or None, was not read yet. ``external_ips`` maps InternalIPs of Nodes to ExternalIPs (to
    itself without one). ``nodes_problem`` says why Nodes are not read.
    """

    brokers: dict[int, Mapping[str, ServiceAddress]] = dataclasses.field(default_factory=dict)
    bootstraps: Mapping[str, ServiceAddress] | None = None
    external_ips: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nodes_problem: str = ""
