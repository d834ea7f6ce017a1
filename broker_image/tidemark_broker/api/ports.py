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
from tidemark_broker.replication.produce import DelayedAppend
from tidemark_broker.replication.remote import RemoteRead
from tidemark_broker.replication.types import (
    DeleteResult,
    FetchResult,
    OffsetResult,
    ProduceResult,
    TopicPartition,
)


class LogFigures(Protocol):
    """What a waiting Fetch watches of a log."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the local segments."""


class PartitionPort(Protocol):
    """One hosted replica; every answer says itself whether this broker leads it."""

    @property
    def tp(self) -> TopicPartition:
        """The key under which operations wait."""

    @property
    def log(self) -> LogFigures:
        """Its log."""

    @property
    def high_watermark(self) -> int:
        """End of committed data (exclusive)."""

    def check_leader(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Why a request for the leader cannot be served; none if it can."""

    async def append(
        self, data: bytes, *, acks: int, timeout_ms: int, peer: str = ""
    ) -> ProduceResult:
        """Append in the order of one peer's calls (that is settled before anything is awaited),
        then wait for acks."""

    def begin_append(self, data: bytes, *, acks: int, peer: str) -> "ProduceResult | DelayedAppend":
        """With acks 0 and 1: append now, or take the place in which it will be."""

    def fetch(
        self,
        offset: int,
        *,
        max_bytes: int,
        min_one: bool,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> FetchResult:
        """A consumer's read of committed data."""

    async def read_from_disk(self, asked: FetchResult) -> FetchResult:
        """The rest of a :meth:`fetch` whose records were not in memory."""

    async def list_offset(self, timestamp: int, *, current_leader_epoch: int = -1) -> OffsetResult:
        """ListOffsets for one timestamp or special value."""

    def offset_for_leader_epoch(
        self, current_leader_epoch: int, epoch: int
    ) -> tuple[ErrorCode, int, int]:
        """(error, epoch, end offset)."""

    def delete_records(self, offset: int) -> DeleteResult:
        """Raise the log start; the caller waits for the low watermark."""

    def low_watermark(self) -> int:
        """The smallest log start offset of the live replicas."""


class RemotePort(Protocol):
    """Reading what is in the tier only."""

    async def read(
        self, partition: Any, offset: int, max_bytes: int, deadline_s: float
    ) -> RemoteRead:
        """Raises RemoteOffsetOutOfRange, RemoteUnavailable; ``deadline_s`` is monotonic."""


class Replicas(Protocol):
    """The partitions this broker hosts."""

    @property
    def remote(self) -> RemotePort | None:
        """The tier, where this broker has one."""

    def get(self, topic: str, partition: int) -> PartitionPort | None:
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
