"""Values that pass between a partition, the api handlers and the purgatory."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import EpochEnd
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.split_bytes import SplitBytes
from tidemark_broker.log import RecordError

#: In a variable, because Python calls a function to read a member of an enumeration.
NO_ERROR = ErrorCode.none
#: A partition by its topic's id; names may be reused, ids never are.
TopicIdPartition = tuple[uuid.UUID, int]


class TopicPartition(NamedTuple):
    """A partition by name, the key under which operations wait in the purgatory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProduceResult(NamedTuple):
    """Result of a Produce for one partition; offsets are -1 after most errors.

    The log start is set with some errors too. ``records`` are those at fault. The batch is
    committed once the leader of ``leader_epoch`` has a high watermark of ``end_offset``.
    """

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
    """Read that only the tier can serve: at most ``max_bytes`` from ``offset``."""

    offset: int
    max_bytes: int


class DiskReadNeed(NamedTuple):
    """Read that is likely not in memory, so that a thread serves it.

    ``read_committed``: up to the last stable offset only.
    """

    offset: int
    max_bytes: int
    min_one: bool
    read_committed: bool = False


class FetchResult(NamedTuple):
    """Result of a Fetch for one partition.

    ``data``: whole batches as stored in the log. ``preferred_read_replica``: replica to fetch from
    instead (KIP-392). ``aborted``: transactions whose records in ``data`` a read_committed client
    skips.
    """

    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    last_stable_offset: int = -1
    data: bytes | memoryview | SplitBytes = b""
    diverging: EpochEnd | None = None
    remote: RemoteFetchNeed | None = None
    from_disk: DiskReadNeed | None = None
    leader_id: int = -1
    leader_epoch: int = -1
    preferred_read_replica: int = -1
    aborted: Sequence[AbortedTxn] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResult:
    """Result of a ListOffsets for one partition; -1 if nothing matches."""

    error: ErrorCode
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Result of a DeleteRecords for one partition before any wait.

    ``offset``: the requested one, with -1 resolved to the current high watermark. ``lost_from``:
    end of the intended records in this log, -1 if they are present or their end is unknown.
    """

    error: ErrorCode
    offset: int
    low_watermark: int
    lost_from: int = -1


# ------------------------------------------------------------ fetch sessions

# Ids and epochs of fetch sessions (KIP-227, Kafka's ``FetchMetadata``), for followers and clients.

#: Session id of a fetch without a session.
NO_SESSION = 0
#: Epoch of a full fetch that requests a session, and of a full fetch that requests none.
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
#: Idle time after which a session may be evicted (Kafka: two minutes).
IDLE_S = 120.0
SESSION_ID_MAX = 2**31 - 1
_EPOCH_MAX = 2**31 - 1


def is_full(epoch: int) -> bool:
    """Return whether a request of that epoch names every partition, whatever its session."""
    return epoch in (INITIAL_EPOCH, FINAL_EPOCH)


def after(epoch: int) -> int:
    """Return the epoch of a session's next request (Kafka's ``FetchMetadata.nextEpoch``)."""
    return 1 if epoch >= _EPOCH_MAX else epoch + 1
