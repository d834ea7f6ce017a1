"""The broker's log: Kafka's files, appended to and read as opaque bytes, whole after any crash."""

from tidemark_broker.log.compaction.choosing import Dirtiness
from tidemark_broker.log.compaction.cleaner import CleanerSettings, CleaningStats
from tidemark_broker.log.compaction.pace import CleaningAborted
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.errors import (
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    LogError,
    OffsetOutOfRange,
    RecordTooLarge,
    StorageError,
    UnsupportedCompression,
)
from tidemark_broker.log.files import probe_room
from tidemark_broker.log.log_manager import LogManager
from tidemark_broker.log.open_logs import OpenFailure
from tidemark_broker.log.opening import create_log
from tidemark_broker.log.page_cache import NotCached
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.partition_state import read_state, write_state
from tidemark_broker.log.producer_entry import AppendOrigin
from tidemark_broker.log.producer_states import ActiveProducer, VerificationGuard
from tidemark_broker.log.timestamps import (
    RecordTimes,
    TimestampsInDoubt,
    record_times,
    unpack_limits,
)
from tidemark_broker.log.types import (
    AppendInfo,
    ReadResult,
    SegmentFiles,
    SegmentInfo,
    TieredRetention,
    TimestampOffset,
)

__all__ = [
    "ActiveProducer",
    "AppendInfo",
    "AppendOrigin",
    "CleanerSettings",
    "CleaningAborted",
    "CleaningStats",
    "CorruptRecords",
    "Dirtiness",
    "InvalidRecords",
    "InvalidTimestamp",
    "LogConfig",
    "LogError",
    "LogManager",
    "NotCached",
    "OffsetOutOfRange",
    "OpenFailure",
    "PartitionLog",
    "ReadResult",
    "RecordTimes",
    "RecordTooLarge",
    "SegmentFiles",
    "SegmentInfo",
    "StorageError",
    "TieredRetention",
    "TimestampOffset",
    "TimestampsInDoubt",
    "UnsupportedCompression",
    "VerificationGuard",
    "create_log",
    "probe_room",
    "read_state",
    "record_times",
    "unpack_limits",
    "write_state",
]
