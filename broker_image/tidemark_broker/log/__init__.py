"""One replica's log in Kafka's on-disk format, appended to and read as opaque bytes.

A log is complete after any crash: recovery checks every byte that may be in doubt.
"""

from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.directory_files import read_state, write_state
from tidemark_broker.log.errors import (
    BatchTooLarge,
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    LogError,
    NoBatch,
    OffsetOutOfRange,
    RecordError,
    RecordsMissing,
    RecordTooLarge,
    StorageError,
    TooManyProducers,
    UnsupportedCompression,
)
from tidemark_broker.log.files import NotCached, probe_room
from tidemark_broker.log.log_manager import LogManager
from tidemark_broker.log.open_logs import OpenFailure
from tidemark_broker.log.opening import create_log
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.producer_entry import AppendOrigin, ProducerBatch, producer_batch
from tidemark_broker.log.producer_states import ActiveProducer, VerificationGuard
from tidemark_broker.log.types import (
    AppendInfo,
    ReadResult,
    SegmentFiles,
    SegmentInfo,
    TieredRetention,
    TimestampOffset,
)
from tidemark_broker.log.validation import (
    FEW_RECORDS,
    FIRST_BATCHES,
    BatchContents,
    RecordsInDoubt,
    batch_contents,
    is_quickly_read,
    is_sampled,
    unpack_limits,
)

__all__ = [
    "FEW_RECORDS",
    "FIRST_BATCHES",
    "ActiveProducer",
    "AppendInfo",
    "AppendOrigin",
    "BatchContents",
    "BatchTooLarge",
    "CorruptRecords",
    "InvalidRecords",
    "InvalidTimestamp",
    "LogConfig",
    "LogError",
    "LogManager",
    "NoBatch",
    "NotCached",
    "OffsetOutOfRange",
    "OpenFailure",
    "PartitionLog",
    "ProducerBatch",
    "ReadResult",
    "RecordError",
    "RecordTooLarge",
    "RecordsInDoubt",
    "RecordsMissing",
    "SegmentFiles",
    "SegmentInfo",
    "StorageError",
    "TieredRetention",
    "TimestampOffset",
    "TooManyProducers",
    "UnsupportedCompression",
    "VerificationGuard",
    "batch_contents",
    "create_log",
    "is_quickly_read",
    "is_sampled",
    "probe_room",
    "producer_batch",
    "read_state",
    "unpack_limits",
    "write_state",
]
