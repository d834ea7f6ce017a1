"""Records of a consumer-protocol group (KIP-848): epoch, members, targets and current assignments.

Types 3, 5 to 8 and 16 of ``__consumer_offsets``, byte for byte as Kafka 4.3 writes them. Type 4 was
written before Kafka 4.1 (KIP-1101) and is not read.
"""

import uuid
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from kio.static.constants import EntityType
from kio.static.primitive import i16

from tidemark.wire.entity import wire

VALUE_VERSION = 0
#: Kafka's states of a member between two assignments.
STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS = 0, 1, 2


class Entity:
    """Attributes that kio expects of an entity that is not a request."""

    __slots__ = ()
    __type__: ClassVar = EntityType.data
    __version__: ClassVar = i16(0)
    __flexible__: ClassVar = False


class _Flexible(Entity):
    __slots__ = ()
    __flexible__: ClassVar = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataKey(Entity):
    """Key of a ConsumerGroupMetadataValue."""

    group_id: str = wire("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataValue(_Flexible):
    """Epoch of a group.

    ``metadata_hash`` covers its topics; if it changes, targets are recomputed.
    """

    epoch: int = wire("int32")
    metadata_hash: int = wire("int64", default=0, tag=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataKey(Entity):
    """Key of a ConsumerGroupMemberMetadataValue."""

    group_id: str = wire("string")
    member_id: str = wire("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicProtocol(_Flexible):
    """An assignor that a classic member supports, with its subscription."""

    name: str = wire("string")
    metadata: bytes = wire("bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberMetadata(_Flexible):
    """Additional data of a classic member.

    ``is_there`` is 1, or -1 for null: the marker of a nullable structure.
    """

    is_there: int = wire("int8")
    session_timeout_ms: int = wire("int32")
    supported_protocols: tuple[ClassicProtocol, ...] = wire(None)


_NOT_CLASSIC = ClassicMemberMetadata(is_there=-1, session_timeout_ms=0, supported_protocols=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataValue(_Flexible):
    """Description of a member by itself. The timeout is in ms."""

    instance_id: str | None = wire("string")
    rack_id: str | None = wire("string")
    client_id: str = wire("string")
    client_host: str = wire("string")
    subscribed_topic_names: tuple[str, ...] = wire("string")
    subscribed_topic_regex: str | None = wire("string")
    rebalance_timeout_ms: int = wire("int32", default=-1)
    server_assignor: str | None = wire("string")
    classic_member_metadata: ClassicMemberMetadata = wire(  # noqa: RUF009
        None, default=_NOT_CLASSIC, tag=0
    )

    @property
    def classic(self) -> ClassicMemberMetadata | None:
        """Data of a classic member, None for a member of the consumer protocol."""
        classic = self.classic_member_metadata
        return classic if classic.is_there == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataKey(Entity):
    """Key of a ConsumerGroupTargetAssignmentMetadataValue."""

    group_id: str = wire("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue(_Flexible):
    """Epoch of the targets, and their time in ms since the epoch."""

    assignment_epoch: int = wire("int32")
    assignment_timestamp: int = wire("int64", default=0, tag=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberKey(Entity):
    """Key of a ConsumerGroupTargetAssignmentMemberValue."""

    group_id: str = wire("string")
    member_id: str = wire("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTopicPartition(_Flexible):
    """Partitions of one topic."""

    topic_id: uuid.UUID | None = wire("uuid")  # noqa: RUF009
    partitions: tuple[int, ...] = wire("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue(_Flexible):
    """Target assignment of a member."""

    topic_partitions: tuple[TargetTopicPartition, ...] = wire(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentKey(Entity):
    """Key of a ConsumerGroupCurrentMemberAssignmentValue."""

    group_id: str = wire("string")
    member_id: str = wire("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTopicPartitions(_Flexible):
    """Partitions of one topic, with the epoch in which each was assigned (KIP-1251)."""

    topic_id: uuid.UUID | None = wire("uuid")  # noqa: RUF009
    partitions: tuple[int, ...] = wire("int32")
    assignment_epochs: tuple[int, ...] | None = wire("int32", default=None, tag=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue(_Flexible):
    """Current assignment of a member."""

    member_epoch: int = wire("int32")
    previous_member_epoch: int = wire("int32")
    state: int = wire("int8")
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = wire(None)
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...] = wire(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionKey(Entity):
    """Key of a ConsumerGroupRegularExpressionValue."""

    group_id: str = wire("string")
    regular_expression: str = wire("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionValue(_Flexible):
    """Topics that match the expression; ``timestamp`` in ms since the epoch."""

    topics: tuple[str, ...] = wire("string")
    version: int = wire("int64")
    timestamp: int = wire("int64")


Key: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
Value: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)

#: Types of records: number of the key, its class, and the class of the value.
TYPES: tuple[tuple[int, type[Key], type[Value]], ...] = (
    (3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    (5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    (6, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    (7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    (8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    (16, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
)
