"""What the handlers need of the rest of the broker; :mod:`tidemark_broker.replication` has it.

Small protocols instead of the classes themselves: a handler's dependencies can be read here.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark_broker.net.config import positive
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.metadata import TopicView
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.remote import RemoteRead


class RemotePort(Protocol):
    """Reading what is in the tier only."""

    async def read(
        self, partition: Partition, offset: int, max_bytes: int, deadline_s: float
    ) -> RemoteRead:
        """Raises RemoteOffsetOutOfRange, RemoteUnavailable; ``deadline_s`` is monotonic."""


class Replicas(Protocol):
    """The partitions this broker hosts."""

    @property
    def remote(self) -> RemotePort | None:
        """The tier, where this broker has one."""

    def get(self, topic: str, partition: int) -> Partition | None:
        """A hosted partition, None where :meth:`error_of` says why not."""

    def error_of(self, topic: str, partition: int) -> ErrorCode:
        """3 unknown, 6 not hosted here, 56 offline disk."""


class ClusterView(Protocol):
    """What this broker knows of the cluster."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""

    @property
    def controller_id(self) -> int:
        """A live broker to name to clients as controller, -1 for none."""

    @property
    def brokers(self) -> Mapping[int, control.BrokerState]:
        """All registered brokers, fenced ones included."""

    @property
    def topics(self) -> Mapping[str, TopicView]:
        """All topics by name."""

    def by_id(self, topic_id: uuid.UUID) -> TopicView | None:
        """The topic of this id."""


_KEYS = {"fetch_bytes_max": "fetch.max.bytes", "remote_wait_ms": "remote.fetch.max.wait.ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``fetch_bytes_max`` is Kafka's broker key ``fetch.max.bytes``; ``remote_wait_ms`` is
    ``remote.fetch.max.wait.ms``; ``listener`` names the endpoint that clients are told of."""

    fetch_bytes_max: int = 57_671_680
    remote_wait_ms: int = 500
    listener: str = "PLAINTEXT"

    @classmethod
    def of(cls, entries: Mapping[str, str]) -> Self:
        """From Kafka's text configuration; raises ValueError that names the key."""
        values: dict[str, Any] = {
            name: positive(key, entries[key]) for name, key in _KEYS.items() if key in entries
        }
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All that the handlers share."""

    replicas: Replicas
    cluster: ClusterView
    purgatory: Purgatory
    settings: Settings
