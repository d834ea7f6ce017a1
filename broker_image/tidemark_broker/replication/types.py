"""Values that pass between a partition, the api handlers and the purgatory."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import EpochEnd
from tidemark.logfiles.transaction_index import AbortedTransaction
from tidemark_broker.log import RecordError

#: A partition by its topic's id; names are given again, ids never are.
TopicIdPartition = tuple[uuid.UUID, int]


class TopicPartition(NamedTuple):
    """A partition by name, the key under which operations wait in the purgatory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProduceResult(NamedTuple):
    """Answer to one partition of a Produce; offsets are -1 unless ``error`` is none, but for the
    log start, which is told with some errors, too; ``records``: those at fault. It is committed
    once the leader of ``leader_epoch`` has ``end_offset`` as its high watermark."""

    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    records: tuple[RecordError, ...] = ()
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFetchNeed:
    """What a consumer asked for lies in the tier only; at most ``max_bytes`` from ``offset``."""

    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class DiskReadNeed:
    """What a consumer asked for is likely not in memory: it is read in a thread.
    ``read_committed``: up to the last stable offset only."""

    offset: int
    max_bytes: int
    min_one: bool
    read_committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """Answer to one partition of a Fetch. ``data`` holds whole batches as they lie in the log;
    ``preferred_read_replica``: who is to be asked instead (KIP-392); ``aborted``: transactions of
    which ``data`` may hold records that a reader with read_committed leaves out."""

    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    last_stable_offset: int = -1
    data: bytes = b""
    diverging: EpochEnd | None = None
    remote: RemoteFetchNeed | None = None
    from_disk: DiskReadNeed | None = None
    leader_id: int = -1
    leader_epoch: int = -1
    preferred_read_replica: int = -1
    aborted: Sequence[AbortedTransaction] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResult:
    """Answer to one partition of a ListOffsets; -1 where nothing matches."""

    error: ErrorCode
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Answer to one partition of a DeleteRecords before any waiting. ``offset`` is what was asked
    for, -1 resolved to the high watermark of this moment. ``lost_from``: where the records that
    were meant end in this log, -1 where they are there or that is not known."""

    error: ErrorCode
    offset: int
    low_watermark: int
    lost_from: int = -1
