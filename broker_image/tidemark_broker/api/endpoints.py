"""Where clients reach a broker."""

from collections.abc import Iterable
from typing import Any

from tidemark.wire import control
from tidemark_broker.api.ports import ClusterView
from tidemark_broker.api.table import Call


def endpoint_of(row: control.BrokerState, listener: str) -> control.Endpoint | None:
    """The endpoint of that name, else the first that the broker registered."""
    for endpoint in row.listeners:
        if endpoint.name == listener:
            return endpoint
    return row.listeners[0] if row.listeners else None


def reachable(cluster: ClusterView, listener: str) -> dict[int, control.Endpoint]:
    """Node id -> endpoint of every broker that is registered and not fenced."""
    found: dict[int, control.Endpoint] = {}
    for node, row in sorted(cluster.brokers.items()):
        endpoint = None if row.fenced else endpoint_of(row, listener)
        if endpoint is not None:
            found[node] = endpoint
    return found


def node_endpoints(call: Call, nodes: Iterable[int]) -> tuple[Any, ...]:
    """KIP-951: how to reach the leaders that an answer names, where the version can carry it."""
    wanted = sorted({node for node in nodes if node >= 0})
    if not wanted or not call.shapes.has("NodeEndpoint"):
        return ()
    cluster = call.services.cluster
    live = reachable(cluster, call.services.settings.listener)
    make = call.shapes.of("NodeEndpoint")
    return tuple(
        make(
            node_id=node,
            host=live[node].host,
            port=live[node].port,
            rack=cluster.brokers[node].rack,
        )
        for node in wanted
        if node in live
    )
