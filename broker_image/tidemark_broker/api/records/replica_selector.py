"""Preferred read replica of a consumer (KIP-392).

For records in the local log it is that of Kafka's ``RackAwareReplicaSelector``. It is used only if
``replica.selector.class`` selects it and the consumer sends its rack. The selection is pure: it
depends on the leader's view of its followers and on the brokers' racks.

Records that only the tier has can be read by every replica and by every Reader, so their consumers
are spread (``tidemark.remote.fetch.replicas``). A connection that was redirected and returns is
served by the leader for a minute, because it returns early if the replica could not serve it.
librdkafka pauses if it is redirected twice within a minute, and a client that ignores redirections
needs records too.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark.configuration.broker_keys import (
    RACK_AWARE_SELECTOR,
    REMOTE_READERS,
    REMOTE_READERS_LEADER,
    REMOTE_READERS_RACK,
    REPLICA_SELECTOR,
)
from tidemark_broker.api.endpoints import endpoint_of
from tidemark_broker.api.table import Call
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.partition import Partition, consumer_reads
from tidemark_broker.replication.partition.isr_decisions import FollowerProgress
from tidemark_broker.replication.partition.leader import FOLLOWER_CONTACT_S
from tidemark_broker.replication.types import FetchResult

NONE = -1
#: Names of librdkafka and of its bindings in ApiVersions.
_FOLLOWS_TO_ANY_BROKER = ("librdkafka", "confluent-kafka-")
#: Seconds in which a redirected connection is not redirected again: librdkafka's minute, and time
#: for the response to arrive.
RETURN_S = 65.0
#: Seconds for which the leader keeps a connection that it has assigned to itself. Java clients and
#: librdkafka return from another replica after the same time.
STAY_S = 300.0


class RemoteReaders(NamedTuple):
    """Choice of replicas and Readers for one consumer of remote records.

    ``rack``: the consumer's rack, or "". ``beyond_rack``: whether replicas of other racks may serve
    it if none is in its rack. Readers of other racks always may.
    """

    rack: str
    beyond_rack: bool


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


def remote_readers_of(call: Call, rack: str) -> RemoteReaders | None:
    """Return the choice of replicas for remote records; None if the leader serves them itself.

    ``rack``: rack in the request, or "".
    """
    services = call.services
    # The Cluster's value takes precedence over the broker's file.
    choice = services.cluster.cluster_config.get(REMOTE_READERS) or services.settings.remote_readers
    if choice == REMOTE_READERS_LEADER:
        return None
    if choice == REMOTE_READERS_RACK and not rack and not readers_for(call):
        return None
    return RemoteReaders(rack, beyond_rack=choice != REMOTE_READERS_RACK)


def readers_for(call: Call) -> frozenset[int]:
    """Return the live Readers to which the client can be redirected.

    Java clients and kafka-python return from a broker that is not in the replica list, and franz-go
    1.21 stops reading. So its listener has to list Readers there, unless the client is librdkafka.
    """
    services, client = call.services, call.client
    lists_readers = client.listener in services.settings.readers_listeners
    if lists_readers or client.software.startswith(_FOLLOWS_TO_ANY_BROKER):
        return services.cluster.readers
    return frozenset()


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
    return consumer_reads.redirection(partition, node)


def redirected_remote(
    partition: Partition, readers: RemoteReaders, call: Call
) -> FetchResult | None:
    """Return a response that redirects the consumer of remote records to a replica or Reader.

    None means that the consumer reads here. The caller has checked that this broker is the leader.
    """
    leader, own = partition.leader, partition.context.node_id
    if leader is None:
        return None
    key, now_s = partition.key, partition.context.monotonic()
    if call.client.is_assigned_here(key, now_s):
        return None
    # A follower must have fetched recently, because it refuses reads of the tier otherwise.
    able = {
        node
        for node, progress in leader.progress().items()
        if node in partition.isr
        and progress.tiered_epoch >= partition.tiering.epoch
        and now_s - progress.last_fetch_s < FOLLOWER_CONTACT_S
    }
    dedicated = readers_for(call)
    racks = _racks(call.services.cluster, able | dedicated | {own}, call.client.listener)
    nodes = serving_replicas(readers, racks=racks, own=own, dedicated=dedicated)
    node = call.services.remote_read_rotation.next(nodes, own)
    call.client.assign_here(key, now_s + (STAY_S if node == own else RETURN_S))
    if node == own:
        return None
    call.services.remote_read_rotation.redirects += 1
    return consumer_reads.redirection(partition, node)


def serving_replicas(
    readers: RemoteReaders,
    *,
    racks: Mapping[int, str | None],
    own: int,
    dedicated: Collection[int] = (),
) -> Collection[int]:
    """Return the brokers among which the consumer's reads of the tier are spread.

    ``racks``: racks of the brokers that can serve it, by node id. ``own``: id of the leader, which
    always can. ``dedicated``: ids of the Readers.
    """
    near = [node for node, rack in racks.items() if readers.rack and rack == readers.rack]
    if near:
        return near
    if readers.beyond_rack:
        return {*racks, own}
    # Readers exist for this work, so they relieve the leader without any setting.
    return [node for node in racks if node in dedicated] or [own]


def _rack(cluster: MetadataCache, node: int) -> str | None:
    row = cluster.brokers.get(node)
    return None if row is None else row.rack


def _racks(cluster: MetadataCache, nodes: set[int], listener: str) -> Mapping[int, str | None]:
    """Return the racks of those brokers that a client of the listener can reach."""
    return {
        node: row.rack
        for node in nodes
        if (row := cluster.brokers.get(node)) is not None
        and not row.fenced
        and endpoint_of(row, listener) is not None
    }
