"""The values that go in and out of a log. Offsets are absolute, times are ms since the epoch.

Those of each append and each read are named tuples, which are made in a third of the time.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tidemark.records.batch import NO_TIMESTAMP


class AppendInfo(NamedTuple):
    """What an append did."""

    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    #: The stamp that LogAppendTime gave, or -1.
    log_append_time_ms: int
    size_bytes: int
    #: Whether a new segment was begun: the old one may now be flushed and copied.
    rolled: bool

    @property
    def next_offset(self) -> int:
        """The log's end behind this append."""
        return self.last_offset + 1


class ReadResult(NamedTuple):
    """Whole batches; ``next_offset`` is where to go on (the offset asked for when empty)."""

    data: bytes
    next_offset: int


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """The first record not older than a timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment as it stood; ``next_base_offset`` is exclusive (the log's end for the active
    one)."""

    base_offset: int
    next_base_offset: int
    size_bytes: int
    #: Largest timestamp of its records, or -1 when they have none.
    largest_timestamp_ms: int
    #: When it was appended to last.
    modified_ms: int
    is_active: bool
    #: Largest timestamp of its first batch, or -1.
    first_timestamp_ms: int = NO_TIMESTAMP

    @property
    def age_timestamp_ms(self) -> int:
        """What retention by time counts from, as Kafka's ``LogSegment.largestTimestamp`` does: of
        records without timestamps it is not known how old they are, only when they came."""
        return self.largest_timestamp_ms if self.largest_timestamp_ms >= 0 else self.modified_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """What is copied of a closed segment; the snapshot is the one at its end."""

    log: Path
    offset_index: Path
    time_index: Path
    producer_snapshot: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredRetention:
    """What local retention must know of the tier.

    ``copy_enabled`` false (disabled with Retain): the topic-wide limits hold and the log start
    moves, which condemns the remote part too; so set ``suspended`` while the tier holds anything.
    ``suspended`` (disabling, or the tier unavailable): nothing goes.
    """

    #: Last offset that is safely in the tier (inclusive), or -1.
    highest_remote_offset: int
    copy_enabled: bool = True
    suspended: bool = False
