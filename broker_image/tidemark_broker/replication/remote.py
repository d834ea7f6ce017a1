"""Interface between replicas and the remote tier.

The remote log manager implements :class:`RemoteLog`; a broker without a tier has none. The tier's
modules know partitions, but partitions know only this protocol.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from prometheus_client.core import Metric

from tidemark.logfiles.leader_epochs import EpochEntry
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.split_bytes import SplitBytes
from tidemark.tier.metadata.head import HeadPosition
from tidemark.tiering import Tiering
from tidemark_broker.log import ProducerBatch
from tidemark_broker.replication.types import TopicIdPartition, TopicPartition

#: A hosted replica. A type variable, because replicas import this module.
ReplicaT_contra = TypeVar("ReplicaT_contra", contravariant=True)


class TieredPartition(Protocol):
    """Partition as reads of the tier need it: a hosted replica, or a Reader's knowledge of one.

    ``tier_position``: position of the newest known head of the manifest, None if unknown.
    """

    @property
    def tp(self) -> TopicPartition: ...
    @property
    def key(self) -> TopicIdPartition: ...
    @property
    def topic_id(self) -> uuid.UUID: ...
    @property
    def partition(self) -> int: ...
    @property
    def tiering(self) -> Tiering: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def tier_position(self) -> HeadPosition | None: ...


class RemoteUnavailable(Exception):
    """The tier cannot answer now (store unreachable, wrong identity, wrong key): retry."""


class RemoteDataCorrupt(RemoteUnavailable):
    """The tier's content differs from what was copied there: a retry does not help."""


class RemoteOffsetOutOfRange(Exception):
    """The offset is in no live segment of the tier."""


@dataclass(frozen=True, slots=True)
class RemoteEnd:
    """Last copied offset (inclusive) and the leader epoch of that record."""

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TierEnd:
    """End of the tier as read under the caller's own claim, so that no other leader can add to it.

    ``end`` is (-1, -1) for an empty tier. Everything below ``log_start_offset`` was deleted.
    ``position`` is that of the head that was read.
    """

    end: RemoteEnd
    log_start_offset: int
    position: HeadPosition | None = None

    @property
    def next_offset(self) -> int:
        """First offset that was never in the tier."""
        return max(self.end.offset + 1, self.log_start_offset)


#: End of an empty tier.
NOTHING = RemoteEnd(-1, -1)


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """Whole batches from the one that contains the requested offset.

    ``next_offset`` follows them. ``aborted``: transactions that some of the records may be part of.
    """

    data: bytes | SplitBytes
    next_offset: int
    aborted: Sequence[AbortedTxn] = ()


@dataclass(frozen=True, slots=True)
class RemoteOffset:
    """First record at or after a timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapPoint:
    """Start of a replica's own log if it lacks records that only the tier has.

    ``producer_snapshot``: content of a ``.snapshot``, which has each producer's last batch.
    ``recent_batches``: the batches before it.
    """

    next_offset: int
    log_start_offset: int
    epochs: Sequence[EpochEntry]
    producer_snapshot: bytes | None = None
    recent_batches: Sequence[ProducerBatch] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSummary:
    """Figures of one partition's tier for status; the reason is CamelCase or empty.

    ``lagging_since_ms``: append time of the oldest committed record that is not in the tier, if the
    topic's maximum lag is exceeded or copying is paused; -1 otherwise.
    """

    segments: int = 0
    size_bytes: int = 0
    remaining_segments: int = 0
    remaining_bytes: int = 0
    highest_remote_offset: int = -1
    error_reason: str = ""
    error_message: str = ""
    lagging_since_ms: int = -1


@dataclass(frozen=True, slots=True)
class WaitingRecords:
    """Committed records that are not in the tier, in whole segments.

    ``since_ms``: time of the append of the oldest. After a restart of the broker that time is not
    known, and the time of the segment's last append is used instead. ``size_bytes``: bytes of the
    segments that contain the records.
    """

    since_ms: int
    is_since_known: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """Health of the store as this broker sees it; ``error`` is empty if it is healthy."""

    error: str
    store_id: str


class RemoteLog(Protocol[ReplicaT_contra]):
    """Remote log manager as the replicas use it (KIP-950). Methods run on the loop thread."""

    def on_leader(self, partition: ReplicaT_contra) -> None:
        """Start a leader's tasks in a new epoch: claim, copy and expire."""

    def on_follower(self, partition: ReplicaT_contra) -> None:
        """Stop a leader's tasks, because this replica follows."""

    def on_stop(self, partition: ReplicaT_contra) -> None:
        """End every task of a replica that is removed or whose log is closed, without waiting."""

    def on_tiering_change(self, partition: ReplicaT_contra) -> None:
        """Handle a change of ``partition.tiering``."""

    async def read(
        self, partition: TieredPartition, offset: int, max_bytes: int, deadline_s: float
    ) -> RemoteRead:
        """Read whole batches; ``deadline_s`` is monotonic.

        Raises :class:`RemoteOffsetOutOfRange` or :class:`RemoteUnavailable`.
        """

    async def offset_by_timestamp(
        self, partition: ReplicaT_contra, timestamp_ms: int
    ) -> RemoteOffset | None:
        """Return the tier's first record at or after a time, or None."""

    async def newest_offset(self, partition: ReplicaT_contra) -> RemoteOffset | None:
        """Return the tier's first record with the largest timestamp, None if it has no record."""

    async def bytes_below(self, partition: ReplicaT_contra, offset: int) -> int:
        """Return the bytes of the tier's segments that are completely below an offset.

        Raises :class:`RemoteUnavailable`.
        """

    async def disable(self, partition: ReplicaT_contra, disabling: Tiering) -> None:
        """Do this replica's part of a disablement; return when it may be acknowledged."""

    async def delete_topic(
        self, topic_id: uuid.UUID, name: str, partitions: int, tiered_epoch: int
    ) -> int:
        """Remove a deleted topic's objects; return the number that remains."""

    async def claimed_end(self, partition: ReplicaT_contra) -> TierEnd:
        """Return the tier's end after a claim of the head in the partition's leader epoch.

        No former leader can add to the tier then. Raises :class:`RemoteUnavailable`, also if a
        later leader has claimed it. May be cancelled at any time; the claim may still succeed
        afterwards.
        """

    async def bootstrap(self, partition: ReplicaT_contra, up_to_offset: int) -> BootstrapPoint:
        """Return the start for a log that needs everything from ``up_to_offset`` (the leader's
        local start). May be cancelled at any time.
        """

    def summary(self, partition: ReplicaT_contra) -> RemoteSummary:
        """Return figures for the status report, without I/O."""

    def waiting(self, partition: ReplicaT_contra) -> WaitingRecords | None:
        """Return the committed records of a led partition that wait for a copy, without I/O.

        None if none waits or nothing is copied. Any thread may call it.
        """

    def configure(self, remote_storage: str, store_id: str, cluster_id: str) -> None:
        """Set the accepted storage configuration (JSON, "" for none) and the identity that the
        store must have.
        """

    def status(self) -> RemoteStatus:
        """Return the health of the store."""

    def metrics(self) -> Iterator[Metric]:
        """Yield the tier's metrics. Any thread may call it."""

    async def close(self, timeout_s: float) -> bool:
        """End every task and every pool; the log directory stays open.

        Return False if work continues because the store does not answer.
        """
