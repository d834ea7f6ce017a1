"""What the handlers share of the broker: its replicas, what it knows of the cluster, where they wait."""

from dataclasses import dataclass

from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.manager import ReplicaManager
from tidemark_broker.replication.metadata import MetadataCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``fetch_bytes_max`` is Kafka's broker key ``fetch.max.bytes``; ``remote_wait_ms`` is
    ``remote.fetch.max.wait.ms``; ``listener`` names the endpoint that clients are told of."""

    fetch_bytes_max: int = 57_671_680
    remote_wait_ms: int = 500
    listener: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One of each in a broker; all belong to its loop."""

    replicas: ReplicaManager
    cluster: MetadataCache
    purgatory: Purgatory
    settings: Settings
