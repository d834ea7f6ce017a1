"""What brokers and clients are told of listeners that are reached from outside the Kubernetes
cluster.

A broker cannot know where a load balancer or a port of a node leads to it. It registers with the
address of its node at best; where the ways lead is found out by whoever keeps the Services. So what
is told is put together here, each time anew: a pod that comes back on another node, or an address
that changes, is another row for all brokers, and no restart of any. A client is told of brokers on
its own listener only (KIP-103). One that nothing leads to yet is left out: clients would wait for a
connection that never comes, where a broker that is not there has them ask again.
"""

import dataclasses
import ipaddress
from collections.abc import Iterable

from tidemark.wire.control import Endpoint
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.external_addresses import WayIn
from tidemark_operator.controller.model import BrokerInfo

#: Of a bootstrap Service on the ports of nodes: any of them would do, and one may be away.
BOOTSTRAP_HOSTS_MAX = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no address; ``refused``: until somebody does something about it."""

    why: str
    refused: bool = False


def endpoints(state: ControllerState, broker: BrokerInfo) -> tuple[Endpoint, ...]:
    """All listeners of a broker, as others are told."""
    told = (advertised(state, broker, each) for each in broker.listeners)
    return tuple(each for each in told if isinstance(each, Endpoint))


def told_outside(state: ControllerState, broker: BrokerInfo) -> list[Endpoint]:
    """What others are told of those that are reached from outside."""
    return [each for each in endpoints(state, broker) if each.name in broker.external]


def external(state: ControllerState, broker: BrokerInfo) -> dict[str, Endpoint | Missing]:
    """Those that are reached from outside, by name, as far as each is as wanted."""
    registered = {each.name: each for each in broker.listeners}
    ways = state.ways_in.brokers.get(broker.node_id) or {}
    found: dict[str, Endpoint | Missing] = {}
    for name in broker.external:
        if name in ways and ways[name].problem is not None:
            found[name] = problem_of(ways[name])
        elif name in registered:
            found[name] = advertised(state, broker, registered[name])
        else:
            found[name] = Missing("no broker process has registered this listener yet")
    return found


def advertised(
    state: ControllerState, broker: BrokerInfo, registered: Endpoint
) -> Endpoint | Missing:
    """What stands for one listener as it was registered. Before a new controller has looked at the
    Services, what was told before."""
    if registered.name not in broker.external:
        return registered
    ways = state.ways_in.brokers.get(broker.node_id)
    if ways is None:
        before = told_before(broker).get(registered.name)
        return before or Missing("its Service is not observed yet")
    way = ways.get(registered.name)
    if way is None:
        return Missing("its Service is not observed yet")
    if not way.port:
        return problem_of(way)
    host = way.host or _node(state, way, registered.host)
    return (
        host
        if isinstance(host, Missing)
        else dataclasses.replace(registered, host=host, port=way.port)
    )


def problem_of(way: WayIn) -> Missing:
    """Of a way that leads nowhere."""
    return Missing(way.problem or "", refused=way.refused)


def _node(state: ControllerState, way: WayIn, registered: str) -> str | Missing:
    """The address of the node that the process said it is on."""
    if not _is_address(registered):
        return Missing(
            "its pod must be replaced by one that knows its node's address. "
            "See the condition PodUpToDate"
        )
    if not way.by_external_ip:
        return registered
    if state.ways_in.nodes_problem:
        return Missing(state.ways_in.nodes_problem, refused=True)
    found = state.ways_in.external_ips.get(registered)
    return Missing(f"no Node with the address {registered} exists") if found is None else found


def needs_node(state: ControllerState, broker: BrokerInfo) -> bool:
    """Whether the address of a broker depends on a Node that nobody has looked at."""
    ways = state.ways_in.brokers.get(broker.node_id) or {}
    return any(
        each.name in ways
        and ways[each.name].by_external_ip
        and _is_address(each.host)
        and each.host not in state.ways_in.external_ips
        for each in broker.listeners
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def told_before(broker: BrokerInfo) -> dict[str, Endpoint]:
    """By the status as it was last read or written."""
    stored = broker.status.get("externalEndpoints")
    if not isinstance(stored, list | tuple):
        return {}
    return {
        str(each["name"]): Endpoint(
            name=str(each["name"]), host=str(each["host"]), port=int(each["port"])
        )
        for each in stored
    }


def bootstrap_servers(state: ControllerState) -> dict[str, str | Missing] | None:
    """Where clients from outside begin, by listener, as Kafka's ``bootstrap.servers``. None: a new
    controller has not looked yet. What is refused of a Service that leads in leaves it as it is."""
    if state.ways_in.bootstraps is None:
        return None
    return {name: _servers(state, name, way) for name, way in state.ways_in.bootstraps.items()}


def refused_bootstraps(state: ControllerState) -> dict[str, Missing]:
    """What is refused of where clients from outside begin, by listener."""
    ways = state.ways_in.bootstraps or {}
    return {name: problem_of(way) for name, way in ways.items() if way.problem is not None}


def _servers(state: ControllerState, name: str, way: WayIn) -> str | Missing:
    if not way.port:
        return problem_of(way)
    if way.host:
        return text_of(Endpoint(name=name, host=way.host, port=way.port))
    hosts = sorted(
        {
            host
            for broker in state.brokers.values()
            if broker.live
            for each in broker.listeners
            if each.name == name and name in broker.external
            if isinstance(host := _node(state, way, each.host), str)
        }
    )
    if not hosts:
        return Missing("no live broker's node has an address")
    told = (Endpoint(name=name, host=host, port=way.port) for host in hosts[:BOOTSTRAP_HOSTS_MAX])
    return ",".join(map(text_of, told))


def text_of(endpoint: Endpoint) -> str:
    """``host:port``, as clients write it."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"


def rendered(told: Iterable[Endpoint]) -> list[dict[str, object]]:
    """``status.externalEndpoints``."""
    return [{"name": each.name, "host": each.host, "port": each.port} for each in told]
