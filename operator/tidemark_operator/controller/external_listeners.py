"""Advertised addresses of listeners that clients reach from outside the Kubernetes cluster.

A broker cannot know the address of its load balancer or node port. It registers with the address of
its node at best; the reconciler of the Services finds the external address. The advertised
endpoints are therefore computed here, each time: a pod on another node, or a changed address, is
another row for all brokers, and no restart of any. A client receives brokers on its own listener
only (KIP-103). A listener without an address is left out: clients would wait for a connection,
whereas for a missing broker they refresh their metadata.
"""

import dataclasses
import ipaddress
from collections.abc import Iterable

from tidemark.wire.control import Endpoint
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import BrokerInfo, ServiceAddress

#: Hosts of a bootstrap Service on node ports: any one is enough, and some may be down.
BOOTSTRAP_HOSTS_MAX = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Missing:
    """Reason why there is no address; ``refused``: a person has to act."""

    why: str
    refused: bool = False


def endpoints(state: ControllerState, broker: BrokerInfo) -> tuple[Endpoint, ...]:
    """Return all listeners of a broker with their advertised addresses."""
    found = (advertised(state, broker, listener) for listener in broker.listeners)
    return tuple(endpoint for endpoint in found if isinstance(endpoint, Endpoint))


def advertised_external(state: ControllerState, broker: BrokerInfo) -> list[Endpoint]:
    """Return the advertised external listeners of a broker."""
    return [endpoint for endpoint in endpoints(state, broker) if endpoint.name in broker.external]


def external(state: ControllerState, broker: BrokerInfo) -> dict[str, Endpoint | Missing]:
    """Return each external listener by name: its address, or why it does not match the spec."""
    registered = {listener.name: listener for listener in broker.listeners}
    addresses = state.external_addresses.brokers.get(broker.node_id) or {}
    found: dict[str, Endpoint | Missing] = {}
    for name in broker.external:
        if name in addresses and addresses[name].problem is not None:
            found[name] = problem_of(addresses[name])
        elif name in registered:
            found[name] = advertised(state, broker, registered[name])
        else:
            found[name] = Missing("no broker process has registered this listener yet")
    return found


def advertised(
    state: ControllerState, broker: BrokerInfo, registered: Endpoint
) -> Endpoint | Missing:
    """Return the address that clients receive for a listener of a broker, or why there is none.

    ``registered``: the address that the broker registered. Until a new controller has read the
    Services, the address in the Broker's status is used.
    """
    # An internal listener is advertised as registered.
    if registered.name not in broker.external:
        return registered
    addresses = state.external_addresses.brokers.get(broker.node_id)
    if addresses is None:
        before = stored_endpoints(broker).get(registered.name)
        return before or Missing("its Service is not observed yet")
    address = addresses.get(registered.name)
    if address is None:
        return Missing("its Service is not observed yet")
    if not address.port:
        return problem_of(address)
    # A load balancer has its own host; a node port is on the host of the pod's node.
    host = address.host or _node(state, address, registered.host)
    return (
        host
        if isinstance(host, Missing)
        else dataclasses.replace(registered, host=host, port=address.port)
    )


def problem_of(address: ServiceAddress) -> Missing:
    """Return the problem of an address as Missing."""
    return Missing(address.problem or "", refused=address.refused)


def _node(state: ControllerState, address: ServiceAddress, registered: str) -> str | Missing:
    """Return the address of the node on which the process registered."""
    if not _is_address(registered):
        return Missing(
            "its pod must be replaced by one that knows its node's address. "
            "See the condition PodUpToDate"
        )
    # Nodes without an external address are reached by the one that the process registered.
    if not address.by_external_ip:
        return registered
    if state.external_addresses.nodes_problem:
        return Missing(state.external_addresses.nodes_problem, refused=True)
    found = state.external_addresses.external_ips.get(registered)
    return Missing(f"no Node with the address {registered} exists") if found is None else found


def needs_node(state: ControllerState, broker: BrokerInfo) -> bool:
    """Return whether a broker's address needs a Node that has not been read."""
    addresses = state.external_addresses.brokers.get(broker.node_id) or {}
    return any(
        listener.name in addresses
        and addresses[listener.name].by_external_ip
        and _is_address(listener.host)
        and listener.host not in state.external_addresses.external_ips
        for listener in broker.listeners
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def stored_endpoints(broker: BrokerInfo) -> dict[str, Endpoint]:
    """Return the external addresses in the status as last read or written."""
    # Nothing is advertised from a status that was never written.
    stored = broker.status.get("externalEndpoints")
    if not isinstance(stored, list | tuple):
        return {}
    return {
        str(entry["name"]): Endpoint(
            name=str(entry["name"]), host=str(entry["host"]), port=int(entry["port"])
        )
        for entry in stored
    }


def bootstrap_servers(state: ControllerState) -> dict[str, str | Missing] | None:
    """Return the external ``bootstrap.servers`` by listener.

    None before a new controller has read them.

    A refused change of a Service leaves its present address as it is.
    """
    if state.external_addresses.bootstraps is None:
        return None
    return {
        name: _servers(state, name, address)
        for name, address in state.external_addresses.bootstraps.items()
    }


def refused_bootstraps(state: ControllerState) -> dict[str, Missing]:
    """Return the refusals of bootstrap addresses by listener."""
    addresses = state.external_addresses.bootstraps or {}
    return {
        name: problem_of(address)
        for name, address in addresses.items()
        if address.problem is not None
    }


def _servers(state: ControllerState, name: str, address: ServiceAddress) -> str | Missing:
    """Return the ``bootstrap.servers`` of an external listener, or why there are none."""
    if not address.port:
        return problem_of(address)
    # A load balancer distributes to all brokers. Node ports need the addresses of nodes.
    if address.host:
        return text_of(Endpoint(name=name, host=address.host, port=address.port))
    hosts = sorted(
        {
            host
            for broker in state.brokers.values()
            if broker.live
            for listener in broker.listeners
            if listener.name == name and name in broker.external
            if isinstance(host := _node(state, address, listener.host), str)
        }
    )
    # The list stays short: a client needs one address, and refreshes its metadata afterwards.
    if not hosts:
        return Missing("no live broker's node has an address")
    servers = (
        Endpoint(name=name, host=host, port=address.port) for host in hosts[:BOOTSTRAP_HOSTS_MAX]
    )
    return ",".join(map(text_of, servers))


def text_of(endpoint: Endpoint) -> str:
    """Format ``host:port`` as in clients' configurations, with brackets for IPv6."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"


def rendered(endpoints_: Iterable[Endpoint]) -> list[dict[str, object]]:
    """Return the entries of ``status.externalEndpoints``."""
    return [
        {"name": endpoint.name, "host": endpoint.host, "port": endpoint.port}
        for endpoint in endpoints_
    ]
