"""How clients reach the brokers of a local cluster, and what they have to prove there: as the
brokers themselves have said, once they were ready."""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark_cli.local.processes import ProcessRecord


@dataclass(frozen=True, slots=True)
class ListenerAddresses:
    """A listener that one or more brokers have alike: ``bootstrap`` is Kafka's list of addresses;
    ``proof`` is "" where nobody has to prove who they are; ``is_local``: nobody from elsewhere
    reaches it."""

    name: str
    protocol: str
    proof: str
    is_local: bool
    bootstrap: str


def listeners_of(records: Iterable[ProcessRecord]) -> list[ListenerAddresses]:
    """Of the brokers among the processes that run, in the order of their configuration."""
    found: dict[tuple[str, str, str, bool], list[str]] = {}
    for record in records:
        for each in record.ready.get("clients") or ():
            kind = (each["name"], each["protocol"], each["proof"], _is_loopback(each["bound"]))
            found.setdefault(kind, []).append(each["address"])
    return [ListenerAddresses(*kind, ",".join(at)) for kind, at in found.items()]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def described(listeners: Sequence[ListenerAddresses], *, authorize: bool | None) -> list[str]:
    """A line for each: who gets in, and what they may do. ``authorize``: whether ACLs decide, None
    where that is not known."""
    may = "do what ACLs allow" if authorize else "do everything"
    unless = ", unless the Cluster has an authorization" if authorize is None else ""
    return [
        f"{each.name} {each.bootstrap} ({each.protocol}): {_who(each)} may {may}{unless}"
        for each in listeners
    ]


def _who(listener: ListenerAddresses) -> str:
    if listener.proof:
        return f"whoever proves who they are ({listener.proof})"
    where = ", from this machine," if listener.is_local else ", from any machine,"
    return f"no authentication: whoever reaches it{where}"
