"""Listeners of a local cluster's brokers and their authentication, as reported by ready brokers."""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark_devcluster.processes import ProcessRecord


@dataclass(frozen=True, slots=True)
class ListenerAddresses:
    """Listener that one or more brokers share.

    ``bootstrap`` is the list of addresses. ``proof`` names the authentication, "" for none.
    ``is_local``: it is reachable only from this machine.
    """

    name: str
    protocol: str
    proof: str
    is_local: bool
    bootstrap: str


def listeners_of(records: Iterable[ProcessRecord]) -> list[ListenerAddresses]:
    """Return the client listeners of the running brokers, in the order of their configuration.

    Listeners of several brokers with equal properties are combined.
    """
    addresses_of: dict[tuple[str, str, str, bool], list[str]] = {}
    for record in records:
        for listener in record.ready.get("clients") or ():
            kind = (
                listener["name"],
                listener["protocol"],
                listener["proof"],
                _is_loopback(listener["bound"]),
            )
            addresses_of.setdefault(kind, []).append(listener["address"])
    return [ListenerAddresses(*kind, ",".join(at)) for kind, at in addresses_of.items()]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def described(listeners: Sequence[ListenerAddresses], *, authorize: bool | None) -> list[str]:
    """Return a line for each listener: which clients it accepts, and what they may do.

    ``authorize``: whether ACLs decide; None if unknown.
    """
    may = "do what ACLs allow" if authorize else "do everything"
    unless = ", unless the Cluster has an authorization" if authorize is None else ""
    return [
        f"{listener.name} {listener.bootstrap} ({listener.protocol}): "
        f"{_clients(listener)} may {may}{unless}"
        for listener in listeners
    ]


def _clients(listener: ListenerAddresses) -> str:
    if listener.proof:
        return f"authenticated clients ({listener.proof})"
    where = "from this machine" if listener.is_local else "from any machine"
    return f"no authentication: every client {where}"
