"""Errors of a log. Each has the Kafka error code that a client receives."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

from kio.schema.errors import ErrorCode


class RecordError(NamedTuple):
    """Record of a batch that is at fault, counted from 0 (KIP-467)."""

    batch_index: int
    message: str


class LogError(Exception):
    """Base of the log's errors."""

    error_code: ClassVar[ErrorCode] = ErrorCode.unknown_server_error

    def __init__(self, message: str = "", records: tuple[RecordError, ...] = ()) -> None:
        super().__init__(message)
        self.records = records


class OffsetOutOfRange(LogError):
    """An offset below the local log start, above the log end, or (log start) above the HW."""

    error_code = ErrorCode.offset_out_of_range


class CorruptRecords(LogError):
    """Bytes that are no record batches, fail their CRC, or do not continue the log."""

    error_code = ErrorCode.corrupt_message


class InvalidRecords(LogError):
    """Well-formed bytes that a client may not send (several batches, control records, ...)."""

    error_code = ErrorCode.invalid_record


class NoBatch(InvalidRecords):
    """Bytes that do not hold exactly one record batch of version 2."""


class UnsupportedCompression(LogError):
    """A codec that does not exist, or that the client's request version may not use."""

    error_code = ErrorCode.unsupported_compression_type


class InvalidTimestamp(LogError):
    """A timestamp outside what ``message.timestamp.*`` allows."""

    error_code = ErrorCode.invalid_timestamp


class RecordTooLarge(LogError):
    """A batch above ``max.message.bytes``, or one that cannot be looked into."""

    error_code = ErrorCode.message_too_large


class BatchTooLarge(LogError):
    """A batch above ``segment.bytes``."""

    error_code = ErrorCode.record_list_too_large


class OutOfOrderSequence(LogError):
    """A producer's batch whose sequence does not follow its last one."""

    error_code = ErrorCode.out_of_order_sequence_number


class InvalidProducerEpoch(LogError):
    """A producer or a marker with a superseded epoch."""

    error_code = ErrorCode.invalid_producer_epoch


class TooManyProducers(LogError):
    """A batch of a new producer beyond the number of producers that a broker remembers.

    Kafka has no such limit and no error for it. Every client retries NOT_ENOUGH_REPLICAS, and none
    takes the batch for written.
    """

    error_code = ErrorCode.not_enough_replicas


class InvalidTransactionState(LogError):
    """A batch that is part of no open transaction here."""

    error_code = ErrorCode.invalid_txn_state


class TransactionCoordinatorFenced(LogError):
    """A marker of a superseded coordinator."""

    error_code = ErrorCode.transaction_coordinator_fenced


class StorageError(LogError):
    """The disk refused (full, unwritable, failing) or contains data that this log cannot have
    written.
    """

    error_code = ErrorCode.kafka_storage_error


class RecordsMissing(StorageError):
    """A log lacks records that were not deleted: only another replica or a backup has them."""


#: Advice about missing segments. Printed only when a broker starts: a directory that disappears
#: under a running broker is not recreated, since its loss cannot be told apart from a mishap.
RESTORE_OR_COPY = (
    "nothing was deleted. Once another replica leads, this broker sets the directory aside and "
    "copies the records from it. If no other replica has them, restore them; to give them up, stop "
    "this broker, remove this replica's directory and start the broker"
)


@contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """Turn an ``OSError``, or text that cannot be decoded, into a :class:`StorageError` with
    ``action``.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"{action}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StorageError(f"{action}: it is damaged ({error})") from error
