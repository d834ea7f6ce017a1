"""The seam between replicas and the remote tier: what the one expects of the other.

The remote log manager implements :class:`RemoteLog`; a broker without a tier has none. Reading
and copying know partitions, partitions know only this protocol.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from prometheus_client.registry import Collector

from tidemark.logfiles.leader_epochs import EpochEntry
from tidemark.logfiles.transaction_index import AbortedTransaction
from tidemark.tier.head import HeadPosition
from tidemark.tiering import Tiering
from tidemark_broker.log import ProducerBatch

#: A hosted replica. Replicas know this seam, so it does not name their class.
ReplicaT_contra = TypeVar("ReplicaT_contra", contravariant=True)


class RemoteUnavailable(Exception):
    """The tier cannot answer now (store unreachable, wrong identity, wrong key): try again."""


class RemoteDataCorrupt(RemoteUnavailable):
    """What the tier holds is not what was copied there: asking again does not help."""


class RemoteOffsetOutOfRange(Exception):
    """The offset is in no live segment of the tier."""


@dataclass(frozen=True, slots=True)
class RemoteEnd:
    """The last copied offset (inclusive) and the leader epoch of the record there."""

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TierEnd:
    """What the tier itself says, read under the asker's own claim: nobody else can add to it.
    ``end`` is (-1, -1) for an empty one; below ``log_start_offset`` everything was deleted.
    ``position``: of the head that says so."""

    end: RemoteEnd
    log_start_offset: int
    position: HeadPosition | None = None

    @property
    def next_offset(self) -> int:
        """The first offset that was never in the tier."""
        return max(self.end.offset + 1, self.log_start_offset)


#: The end of an empty tier.
NOTHING = RemoteEnd(-1, -1)


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """Whole batches from the one that holds the asked offset; ``next_offset`` follows them;
    ``aborted``: transactions that some of them may be of."""

    data: bytes
    next_offset: int
    aborted: Sequence[AbortedTransaction] = ()


@dataclass(frozen=True, slots=True)
class RemoteOffset:
    """First record at or after a timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapPoint:
    """Where a replica that lacks what is only in the tier starts its own log, and what is known
    there of producers: the bytes of a ``.snapshot``, which has each producer's last batch, and
    ``recent_batches`` before it."""

    next_offset: int
    log_start_offset: int
    epochs: Sequence[EpochEntry]
    producer_snapshot: bytes | None = None
    recent_batches: Sequence[ProducerBatch] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSummary:
    """Figures of one partition's tier for status; the reason is CamelCase or empty."""

    segments: int = 0
    size_bytes: int = 0
    remaining_segments: int = 0
    remaining_bytes: int = 0
    highest_remote_offset: int = -1
    error_reason: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """Health of the store as this broker sees it; ``error`` is empty when all is well."""

    error: str
    store_id: str


class RemoteLog(Protocol[ReplicaT_contra]):
    """KIP-950's remote log manager as the replicas see it. Methods run on the loop thread."""

    def on_leader(self, partition: ReplicaT_contra) -> None:
        """This replica leads in a new epoch: claim, copy and expire."""

    def on_follower(self, partition: ReplicaT_contra) -> None:
        """This replica follows: stop what a leader does."""

    def on_stop(self, partition: ReplicaT_contra) -> None:
        """The replica goes (or its log is closed): end every task of it, waiting for none."""

    def on_tiering_change(self, partition: ReplicaT_contra) -> None:
        """``partition.tiering`` is another one now."""

    async def read(
        self, partition: ReplicaT_contra, offset: int, max_bytes: int, deadline_s: float
    ) -> RemoteRead:
        """Raises :class:`RemoteOffsetOutOfRange` or :class:`RemoteUnavailable`; ``deadline_s`` is
        monotonic."""

    async def offset_by_timestamp(
        self, partition: ReplicaT_contra, timestamp_ms: int
    ) -> RemoteOffset | None:
        """First record of the tier at or after a time; None: the tier has none."""

    async def newest_offset(self, partition: ReplicaT_contra) -> RemoteOffset | None:
        """Return the tier's first record with the largest timestamp, None if it has no record."""

    async def bytes_below(self, partition: ReplicaT_contra, offset: int) -> int:
        """Log bytes of the tier's segments that lie wholly below an offset. Raises
        :class:`RemoteUnavailable`."""

    async def disable(self, partition: ReplicaT_contra, disabling: Tiering) -> None:
        """This replica's part of a disablement; returns when it may be acknowledged."""

    async def delete_topic(
        self, topic_id: uuid.UUID, name: str, partitions: int, tiered_epoch: int
    ) -> int:
        """Remove a deleted topic's objects; how much of it still remains."""

    async def claimed_end(self, partition: ReplicaT_contra) -> TierEnd:
        """The tier's end, after a claim of the head in the partition's leader epoch, so that no
        former leader adds to it. Raises :class:`RemoteUnavailable`, also where a later one has it.
        May be cancelled at any time; the claim may still come about then."""

    async def bootstrap(self, partition: ReplicaT_contra, up_to_offset: int) -> BootstrapPoint:
        """Where to start a log that needs all from ``up_to_offset`` (the leader's local start).
        May be cancelled at any time."""

    def summary(self, partition: ReplicaT_contra) -> RemoteSummary:
        """Figures for the status report; no I/O."""

    def configure(self, remote_storage: str, store_id: str, cluster_id: str) -> None:
        """The accepted storage configuration (JSON, "" for none) and the identity it must have."""

    def status(self) -> RemoteStatus:
        """Health of the store."""

    def collector(self) -> Collector:
        """Figures for the broker's metrics."""

    async def close(self, timeout_s: float) -> bool:
        """End every task and every pool, the log folder stays open; False where something goes on
        because the store does not answer."""
