"""Endpoints at which clients reach a broker."""

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.wire import control
from tidemark_broker.api.table import Call
from tidemark_broker.replication.metadata import MetadataCache


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """Current leader in an answer of a broker that does not lead (KIP-951)."""

    leader_id: int = -1
    leader_epoch: int = -1


NO_LEADER = LeaderIdAndEpoch()


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    """Endpoint of a broker in Metadata, or of a leader that LeaderIdAndEpoch names (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None


def endpoint_of(row: control.BrokerState, listener: str) -> control.Endpoint | None:
    """Return the broker's endpoint on that listener; a client is never sent to another listener."""
    return next((endpoint for endpoint in row.listeners if endpoint.name == listener), None)


def reachable(cluster: MetadataCache, listener: str) -> dict[int, control.Endpoint]:
    """Return the endpoint by node id of each unfenced broker that has the listener."""
    registered = registered_at(cluster, listener)
    return {
        node: endpoint for node, endpoint in registered.items() if not cluster.brokers[node].fenced
    }


def registered_at(cluster: MetadataCache, listener: str) -> dict[int, control.Endpoint]:
    """Return the endpoint by node id of each broker that has the listener, fenced or not."""
    # Sorted by id, so that clients see a stable order.
    found = {node: endpoint_of(row, listener) for node, row in sorted(cluster.brokers.items())}
    return {node: endpoint for node, endpoint in found.items() if endpoint is not None}


def node_endpoints(call: Call, nodes: Iterable[int]) -> tuple[NodeEndpoint, ...]:
    """Return the endpoints of the brokers in ``nodes`` that the client can reach (KIP-951)."""
    # -1 stands for an unknown leader, which has no endpoint. Nearly all responses name none.
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
