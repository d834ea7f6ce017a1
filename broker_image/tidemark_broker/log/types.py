"""Arguments and results of a log's operations. Offsets are absolute, times are ms since the epoch.

Results of each append and each read are named tuples, which are created in a third of the time of a
frozen dataclass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tidemark.records.batch import NO_TIMESTAMP


class AppendInfo(NamedTuple):
    """Result of an append."""

    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    #: The stamp that LogAppendTime gave, or -1.
    log_append_time_ms: int
    size_bytes: int
    #: Whether a new segment was started: the old one may now be flushed and copied.
    rolled: bool

    @property
    def next_offset(self) -> int:
        """Log end after this append."""
        return self.last_offset + 1


class ReadResult(NamedTuple):
    """Whole batches and the next offset to read, which is the requested offset when empty.

    ``data`` is a view only if it was read for a socket.
    """

    data: bytes | memoryview
    next_offset: int


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """First record that is not older than a timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """Snapshot of one segment.

    ``next_base_offset`` is exclusive, the log end for the active segment.
    """

    base_offset: int
    next_base_offset: int
    size_bytes: int
    #: Largest timestamp of its records, or -1 when they have none.
    largest_timestamp_ms: int
    #: Time of the last append.
    modified_ms: int
    is_active: bool
    #: Largest timestamp of its first batch, or -1.
    first_timestamp_ms: int = NO_TIMESTAMP
    #: Time of the first append, or -1 if the segment was opened with records.
    first_append_ms: int = NO_TIMESTAMP

    @property
    def age_timestamp_ms(self) -> int:
        """Timestamp that retention by time uses, as Kafka's ``LogSegment.largestTimestamp``.

        The age of records without timestamps is unknown, so the time of the last append replaces
        it.
        """
        return self.largest_timestamp_ms if self.largest_timestamp_ms >= 0 else self.modified_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """Part of a closed segment that is copied.

    ``producer_snapshot``: of its end. ``open_before``: first offset of each producer's transaction
    that is open at its start.
    """

    log: Path
    producer_snapshot: bytes
    open_before: Mapping[int, int]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredRetention:
    """State of the tier that local retention depends on.

    ``copy_enabled`` false (disabled with policy Retain, KIP-950): ``retention.*`` applies instead
    of ``local.retention.*``, and a deletion moves the log start offset, which would delete remote
    segments too. Therefore ``suspended`` must be set while the tier contains anything.
    ``suspended`` (disabling, or the tier unavailable): nothing is deleted.
    """

    #: Last offset that is durable in the tier (inclusive), or -1.
    highest_remote_offset: int
    copy_enabled: bool = True
    suspended: bool = False
