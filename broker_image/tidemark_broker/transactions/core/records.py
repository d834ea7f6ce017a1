"""Records of ``__transaction_state`` in Kafka's format, readable by Kafka's tools.

``TransactionLogKey`` version 0 and ``TransactionLogValue`` version 1 (KIP-890: flexible), each
behind its version as int16. A null value deletes the id. A key of another version was written by a
later release and is ignored (KIP-915). A value of another version is an error, since skipping it
would lose a transaction.
"""

import struct
from collections.abc import Iterable

from kio.static.constants import EntityType

from tidemark.wire.entity import entity, wire
from tidemark.wire.framing import FrameError, decode, encode
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core.metadata import (
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)

_KEY_VERSION = 0
_VALUE_VERSION = 1
_VERSION = struct.Struct(">h")
_KEY_HEAD = struct.Struct(">hh")
#: Records belong to no Api, but kio requires a number.
_NO_API = -1


class BadTransactionRecord(ValueError):
    """An unreadable record of ``__transaction_state``."""


@entity(EntityType.nested, _NO_API, _VALUE_VERSION)
class _TopicEntry:
    topic: str = wire("string")
    partition_ids: tuple[int, ...] = wire("int32")


@entity(EntityType.nested, _NO_API, _VALUE_VERSION)
class _Value:
    producer_id: int = wire("int64")
    previous_producer_id: int = wire("int64", tag=0, default=NO_PRODUCER_ID)
    next_producer_id: int = wire("int64", tag=1, default=NO_PRODUCER_ID)
    producer_epoch: int = wire("int16")
    transaction_timeout_ms: int = wire("int32")
    transaction_status: int = wire("int8")
    transaction_partitions: tuple[_TopicEntry, ...] | None
    transaction_last_update_timestamp_ms: int = wire("int64")
    transaction_start_timestamp_ms: int = wire("int64")
    client_transaction_version: int = wire("int16", tag=2, default=0)


def key_of(transactional_id: str) -> bytes:
    """Return the key of an id."""
    name = transactional_id.encode()
    return _KEY_HEAD.pack(_KEY_VERSION, len(name)) + name


def value_of(metadata: TransactionMetadata) -> bytes:
    """Return the value of the id's record in ``__transaction_state``.

    All fields of the metadata except ``last_epoch``, which Kafka does not store either.
    """
    # Kafka writes null instead of an empty list in the Empty state.
    is_empty = metadata.state is TransactionState.EMPTY
    value = _Value(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if is_empty else _topics(metadata.partitions),
        transaction_last_update_timestamp_ms=metadata.updated_ms,
        transaction_start_timestamp_ms=metadata.started_ms,
        client_transaction_version=metadata.version,
    )
    return _VERSION.pack(_VALUE_VERSION) + encode(value)


def _topics(partitions: Iterable[TopicPartition]) -> tuple[_TopicEntry, ...]:
    by_topic: dict[str, list[int]] = {}
    # Grouped by topic, as the record's format requires.
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return tuple(
        _TopicEntry(topic=topic, partition_ids=tuple(numbers))
        for topic, numbers in by_topic.items()
    )


def read_key(key: bytes) -> str | None:
    """Return the transactional id, None for a key of another version.

    Raises :class:`BadTransactionRecord`.
    """
    try:
        (version,) = _VERSION.unpack_from(key)
        if version != _KEY_VERSION:
            return None
        # After the version: length of the name as int16, then the name.
        _, length = _KEY_HEAD.unpack_from(key)
        name = key[_KEY_HEAD.size :]
        if len(name) != length:
            raise BadTransactionRecord(f"the key declares {length} bytes and has {len(name)}")
        return name.decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise BadTransactionRecord(f"the key is not readable: {error}") from error


def read_value(value: bytes) -> TransactionMetadata:
    """Convert a value of :func:`value_of`. Raises :class:`BadTransactionRecord`."""
    try:
        (version,) = _VERSION.unpack_from(value)
        if version != _VALUE_VERSION:
            raise BadTransactionRecord(
                f"the value has version {version}, supported is {_VALUE_VERSION}: a newer broker "
                "wrote it, so use that release"
            )
        # Unknown tagged fields are skipped by the decoder.
        read = decode(_Value, value, _VERSION.size)
        return _metadata(read)
    except (struct.error, FrameError, ValueError) as error:
        raise BadTransactionRecord(f"the value is not readable: {error}") from error


def _metadata(read: _Value) -> TransactionMetadata:
    """Return the state from a decoded TransactionLogValue; the inverse of ``value_of``."""
    return TransactionMetadata(
        producer_id=read.producer_id,
        previous_producer_id=read.previous_producer_id,
        next_producer_id=read.next_producer_id,
        producer_epoch=read.producer_epoch,
        timeout_ms=read.transaction_timeout_ms,
        state=TransactionState(read.transaction_status),
        partitions=frozenset(
            TopicPartition(topic.topic, partition)
            for topic in read.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        updated_ms=read.transaction_last_update_timestamp_ms,
        started_ms=read.transaction_start_timestamp_ms,
        version=read.client_transaction_version,
    )
