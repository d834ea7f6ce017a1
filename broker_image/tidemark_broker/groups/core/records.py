"""Records of ``__consumer_offsets``, byte for byte as Kafka 4.3 writes them.

Kafka's DumpLogSegments can therefore read this log with ``--offsets-decoder``. A key begins with
its type (int16), a value with its version: 3 for GroupMetadataValue, 4 for OffsetCommitValue, or 1
if a client set the expiry (OffsetCommit below version 5), and 0 for consumer-protocol groups
(:mod:`.consumer_records`). Records of unknown types are ignored, as in Kafka.
"""

import struct
import uuid
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from tidemark.wire.entity import wire
from tidemark.wire.framing import FrameError, decode, encode
from tidemark_broker.coordinators.log import CoordinatorRecord
from tidemark_broker.groups.core import consumer_records as consumer
from tidemark_broker.groups.core.consumer_records import Entity

_INT16 = struct.Struct(">h")
GROUP_METADATA_VERSION = 3
OFFSET_COMMIT_VERSION = 4
EXPIRING_OFFSET_COMMIT_VERSION = 1
NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey(Entity):
    """Key of a GroupMetadataValue."""

    group: str = wire("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey(Entity):
    """Key of an offset: group and partition."""

    group: str = wire("string")
    topic: str = wire("string")
    partition: int = wire("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata(Entity):
    """One member at the start of its generation. Timeouts in ms."""

    member_id: str = wire("string")
    group_instance_id: str | None = wire("string")
    client_id: str = wire("string")
    client_host: str = wire("string")
    rebalance_timeout: int = wire("int32")
    session_timeout: int = wire("int32")
    subscription: bytes = wire("bytes")
    assignment: bytes = wire("bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue(Entity):
    """Version 3: a generation with its members; without members the group is empty.

    The state's timestamp is in ms since the epoch, -1 if unknown.
    """

    protocol_type: str = wire("string")
    generation: int = wire("int32")
    protocol: str | None = wire("string")
    leader: str | None = wire("string")
    current_state_timestamp: int = wire("int64")
    members: tuple[MemberMetadata, ...] = wire(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue(Entity):
    """Version 4. Times in ms since the epoch. ``topic_id`` None means unknown."""

    __flexible__: ClassVar = True
    offset: int = wire("int64")
    leader_epoch: int = wire("int32")
    metadata: str = wire("string")
    commit_timestamp: int = wire("int64")
    topic_id: uuid.UUID | None = wire("uuid", default=None, tag=0)  # noqa: RUF009


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringOffsetCommitValue(Entity):
    """Version 1. Times in ms since the epoch."""

    offset: int = wire("int64")
    metadata: str = wire("string")
    commit_timestamp: int = wire("int64")
    expire_timestamp: int = wire("int64")


Key: TypeAlias = GroupMetadataKey | OffsetCommitKey | consumer.Key
Value: TypeAlias = (
    GroupMetadataValue | OffsetCommitValue | ExpiringOffsetCommitValue | consumer.Value
)

#: Types of records: number of the key, its class, version of the value, and its class.
_TYPES: tuple[tuple[int, type[Key], int, type[Value]], ...] = (
    (1, OffsetCommitKey, OFFSET_COMMIT_VERSION, OffsetCommitValue),
    (1, OffsetCommitKey, EXPIRING_OFFSET_COMMIT_VERSION, ExpiringOffsetCommitValue),
    (2, GroupMetadataKey, GROUP_METADATA_VERSION, GroupMetadataValue),
    *((number, key, consumer.VALUE_VERSION, value) for number, key, value in consumer.TYPES),
)
_TYPE_OF = {key_type: kind for kind, key_type, _, _ in _TYPES}
#: Type 0 is an OffsetCommit key as Kafka's first versions wrote it.
_KEYS: dict[int, type[Key]] = {0: OffsetCommitKey, **{kind: key for key, kind in _TYPE_OF.items()}}
_VALUES = {(key_type, version): value_type for _, key_type, version, value_type in _TYPES}
_VERSION_OF: dict[type[Value], int] = {kind: version for (_, version), kind in _VALUES.items()}


def record_of(key: Key, value: Value | None) -> CoordinatorRecord:
    """Return the encoded record, a tombstone without ``value``."""
    written = None
    if value is not None:
        written = _INT16.pack(_VERSION_OF[type(value)]) + encode(value)
    return CoordinatorRecord(_INT16.pack(_TYPE_OF[type(key)]) + encode(key), written)


def read_record(record: CoordinatorRecord) -> tuple[Key, Value | None] | None:
    """Return a record's key and value; the value is None for a tombstone.

    None for a type of record that this version does not know. Raises ``ValueError`` for bytes that
    do not fit their type.
    """
    # Another program may write to the topic, so nothing is assumed about its records.
    if len(record.key) < _INT16.size:
        raise FrameError(f"a key of {len(record.key)} bytes has no type")
    (kind,) = _INT16.unpack_from(record.key)
    key_type = _KEYS.get(kind)
    # A newer broker may write other types. Skipping them allows a downgrade, as in Kafka.
    if key_type is None:
        return None
    key = decode(key_type, record.key, _INT16.size)
    if record.value is None:
        return key, None
    if len(record.value) < _INT16.size:
        raise FrameError(f"a value of {len(record.value)} bytes has no version")
    (version,) = _INT16.unpack_from(record.value)
    value_type = _VALUES.get((key_type, version))
    if value_type is None:
        raise FrameError(f"{key_type.__name__} with a value of version {version}")
    return key, decode(value_type, record.value, _INT16.size)
