"""Preferred read replica of a consumer (KIP-392): Kafka's ``RackAwareReplicaSelector``.

Used only if ``replica.selector.class`` selects it and the consumer sends its rack. The selection is
pure: it depends on the leader's view of its followers and on the brokers' racks.
"""

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from tidemark.configuration.broker_keys import RACK_AWARE_SELECTOR, REPLICA_SELECTOR
from tidemark_broker.api.endpoints import endpoint_of
from tidemark_broker.api.table import Call
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.partition import Partition, consumer_reads
from tidemark_broker.replication.partition.isr_decisions import FollowerProgress
from tidemark_broker.replication.types import FetchResult

NONE = -1


def rack_of(call: Call, rack: str) -> str:
    """Return the rack of a consumer that may be redirected, or ""."""
    if not rack:
        return ""
    services = call.services
    # The Cluster's value takes precedence over the broker's file.
    selector = services.cluster.cluster_config.get(REPLICA_SELECTOR)
    if selector is None:
        selector = services.settings.replica_selector
    return rack if selector == RACK_AWARE_SELECTOR else ""


def preferred(
    rack: str,
    offset: int,
    *,
    leader_rack: str | None,
    racks: Mapping[int, str | None],
    followers: Mapping[int, FollowerProgress],
) -> int:
    """Return the follower in the consumer's rack with the longest log, :data:`NONE` for the leader.

    ``racks`` and ``followers`` are those of the ISR, by node id.
    """
    if leader_rack == rack:
        return NONE
    near = [
        (progress.next_offset, progress.last_caught_up_s, node)
        for node, progress in followers.items()
        if racks.get(node) == rack
        # A follower without the offset in its local log would redirect the consumer or read the
        # tier.
        and progress.next_offset >= offset
        and 0 <= progress.local_log_start_offset <= offset
    ]
    return max(near)[-1] if near else NONE


def redirected(
    partition: Partition, offset: int, rack: str, call: Call, current_leader_epoch: int
) -> FetchResult | None:
    """Return a response without records that redirects the consumer to a closer replica (KIP-392).

    None means that the consumer reads here: this broker is the closest, or is not the leader.
    """
    if partition.leader is None:
        return None
    # An outdated leader must not redirect. The read itself reports the error.
    if partition.check_leader(current_leader_epoch) is not ErrorCode.none:
        return None
    cluster, isr = call.services.cluster, set(partition.isr)
    node = preferred(
        rack,
        offset,
        leader_rack=_rack(cluster, partition.context.node_id),
        racks=_racks(cluster, isr, call.client.listener),
        followers={n: p for n, p in partition.leader.progress().items() if n in isr},
    )
    if node == NONE:
        return None
    # The answer has the offsets of the partition, which the consumer needs for its lag.
    return consumer_reads.empty_answer(partition)._replace(preferred_read_replica=node)


def _rack(cluster: MetadataCache, node: int) -> str | None:
    row = cluster.brokers.get(node)
    return None if row is None else row.rack


def _racks(cluster: MetadataCache, nodes: set[int], listener: str) -> Mapping[int, str | None]:
    """Return the racks of the brokers that a client of the listener can reach."""
    return {
        node: row.rack
        for node in nodes
        if (row := cluster.brokers.get(node)) is not None
        and not row.fenced
        and endpoint_of(row, listener) is not None
    }
