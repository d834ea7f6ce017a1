"""Parts of the broker that the handlers share."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.configuration.broker_keys import REMOTE_READERS_RACK
from tidemark_broker.admission.time_slice import ReadTurns
from tidemark_broker.api.fetch_session import FetchSessionCache
from tidemark_broker.api.read_confirmations import ReadConfirmations
from tidemark_broker.config_entries import key_field
from tidemark_broker.groups.group_coordinator import GroupCoordinator
from tidemark_broker.producer_ids import ProducerIds
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.security.user_store import UserStore
from tidemark_broker.topic_changes.creations import Creations
from tidemark_broker.topic_changes.forwarder import ChangeForwarder
from tidemark_broker.transactions.coordinator import TransactionCoordinator
from tidemark_broker.transactions.marker_writer import MarkerWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    """Settings of the handlers.

    ``replica_selector`` is ``replica.selector.class`` and ``remote_readers`` is
    ``tidemark.remote.fetch.replicas``, unless the Cluster has another value.
    ``readers_listeners``: listeners whose metadata lists Readers among the replicas.
    """

    fetch_bytes_max: int = key_field("fetch.max.bytes")
    remote_wait_ms: int = key_field("remote.fetch.max.wait.ms")
    replica_selector: str = ""
    remote_readers: str = REMOTE_READERS_RACK
    readers_listeners: frozenset[str] = frozenset()
    partitions_described_max: int = key_field("max.request.partition.size.limit")
    log_dir: Path = Path()


class RemoteReadRotation:
    """Order in which this broker last assigned consumers of remote records to each replica.

    ``redirects`` counts the consumers that it has sent to another broker.
    """

    def __init__(self) -> None:
        self.redirects = 0
        self._turn = 0
        #: Number of the last turn of each broker; as many entries as there are broker ids.
        self._last: dict[int, int] = {}

    def next(self, nodes: Collection[int], own: int) -> int:
        """Return the broker whose last turn is the oldest, and record its new turn.

        ``own``: id of this broker, which is first among brokers without a turn, so that a single
        consumer stays where it is.
        """
        # Each leader continues with the ids above its own. If all began with the lowest id, leaders
        # with fewer consumers than replicas would together prefer the same brokers.
        chosen = min(nodes, key=lambda node: (self._last.get(node, 0), node < own, node))
        self._turn += 1
        self._last[chosen] = self._turn
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerServices:
    """Parts of one broker, all owned by its loop. ``entries`` is its configuration file."""

    replicas: ReplicaManager
    cluster: MetadataCache
    purgatory: Purgatory
    settings: HandlerSettings
    users: UserStore
    fetch_sessions: FetchSessionCache
    changes: ChangeForwarder
    creations: Creations
    producer_ids: ProducerIds
    entries: Mapping[str, str]
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    marker_writer: MarkerWriter
    confirmations: ReadConfirmations
    remote_read_rotation: RemoteReadRotation = field(default_factory=RemoteReadRotation)
    read_turns: ReadTurns = field(default_factory=ReadTurns)
