"""Where clients reach a broker."""

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.wire import control
from tidemark_broker.api.table import Call
from tidemark_broker.replication.metadata import MetadataCache


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """KIP-951: the leader that a client should have asked, of an answer that says it was not."""

    leader_id: int = -1
    leader_epoch: int = -1


NO_LEADER = LeaderIdAndEpoch()


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    """KIP-951: how to reach such a leader."""

    node_id: int
    host: str
    port: int
    rack: str | None


def endpoint_of(row: control.BrokerState, listener: str) -> control.Endpoint | None:
    """The endpoint of that name; a client is never sent to another listener than its own."""
    return next((each for each in row.listeners if each.name == listener), None)


def reachable(cluster: MetadataCache, listener: str) -> dict[int, control.Endpoint]:
    """Node id -> endpoint of every broker that is registered, not fenced, and has that
    listener."""
    registered = registered_at(cluster, listener)
    return {node: each for node, each in registered.items() if not cluster.brokers[node].fenced}


def registered_at(cluster: MetadataCache, listener: str) -> dict[int, control.Endpoint]:
    """The same of every broker that has that listener, be it fenced or not."""
    found = {node: endpoint_of(row, listener) for node, row in sorted(cluster.brokers.items())}
    return {node: endpoint for node, endpoint in found.items() if endpoint is not None}


def node_endpoints(call: Call, nodes: Iterable[int]) -> tuple[NodeEndpoint, ...]:
    """How to reach the leaders that an answer names."""
    node_ids = sorted({node for node in nodes if node >= 0})
    if not node_ids:
        return ()
    cluster = call.services.cluster
    live = reachable(cluster, call.client.listener)
    return tuple(
        NodeEndpoint(
            node_id=node,
            host=live[node].host,
            port=live[node].port,
            rack=cluster.brokers[node].rack,
        )
        for node in node_ids
        if node in live
    )
