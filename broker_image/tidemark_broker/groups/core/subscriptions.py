"""Embedded protocol of classic consumer groups (Kafka's ConsumerProtocol).

Assignment is the clients' task. The coordinator only reads the subscribed topics, so that offsets
of a consumed topic do not expire. In a group with members of both protocols it reads the whole
subscription and writes the assignments.
"""

import struct
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from kio.schema.consumer_protocol_assignment.v0.data import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.schema.consumer_protocol_subscription.v1 import data as v1
from kio.schema.consumer_protocol_subscription.v3 import data as v3

from tidemark.wire.bounds import STRING_BYTES_MAX, MessageBounds
from tidemark.wire.framing import FrameError, decode, encode

_VERSION = struct.Struct(">h")
_VERSION_MAX = 3
#: Owned partitions from version 1 (KIP-429), the rack from version 3 (KIP-881).
_OWNED_SINCE, _RACK_SINCE = 1, 3
#: Limit of topics and partitions of one member.
_ELEMENTS_MAX = 100_000


class Subscribed(NamedTuple):
    """Subscription of one member.

    ``owned`` is empty if the client does not report it: it then gives up everything before it
    joins.
    """

    topics: tuple[str, ...]
    owned: Mapping[str, AbstractSet[int]]
    rack_id: str | None


def subscribed_topics(metadata: bytes, most: int) -> tuple[str, ...]:
    """Return the topics of one member. Fields of later versions follow them and are ignored.

    Raises :class:`FrameError`, also for more than ``most`` topics, since the bytes come from the
    client.
    """
    version_of(metadata)
    value = decode(ConsumerProtocolSubscription, metadata, _VERSION.size, _bounds(most))
    return tuple(value.topics)


def version_of(metadata: bytes) -> int:
    """Return the version of a subscription or assignment. Raises :class:`FrameError`."""
    if len(metadata) < _VERSION.size:
        raise FrameError("a subscription without a version")
    (version,) = _VERSION.unpack_from(metadata)
    if version < 0:
        raise FrameError(f"version {version} of a subscription")
    return int(version)


def subscribed(metadata: bytes) -> Subscribed:
    """Return the whole subscription. Raises :class:`FrameError`."""
    version = version_of(metadata)
    if version < _OWNED_SINCE:
        return Subscribed(subscribed_topics(metadata, _ELEMENTS_MAX), {}, None)
    kind: Any = v3 if version >= _RACK_SINCE else v1
    bounds = _bounds(_ELEMENTS_MAX)
    value = decode(kind.ConsumerProtocolSubscription, metadata, _VERSION.size, bounds)
    owned: dict[str, set[int]] = {}
    # A client may list a topic more than once.
    for entry in value.owned_partitions:
        owned.setdefault(entry.topic, set()).update(entry.partitions)
    rack_id = value.rack_id if version >= _RACK_SINCE else None
    return Subscribed(tuple(value.topics), owned, rack_id or None)


def assigned(assignment: bytes) -> Mapping[str, AbstractSet[int]]:
    """Return the assigned partitions by topic from a classic member's assignment.

    Empty before the first assignment. Raises :class:`FrameError`, also for data that only a
    client's own assignor can read.
    """
    if not assignment:
        return {}
    version_of(assignment)
    value = decode(ConsumerProtocolAssignment, assignment, _VERSION.size, _bounds(_ELEMENTS_MAX))
    # The data would be lost in an upgrade, so such a group must not be upgraded.
    if value.user_data:
        raise FrameError("its assignor keeps data of its own in the assignments")
    found: dict[str, set[int]] = {}
    for entry in value.assigned_partitions:
        found.setdefault(entry.topic, set()).update(entry.partitions)
    return found


def assignment_bytes(partitions: Mapping[str, AbstractSet[int]], metadata: bytes) -> bytes:
    """Return the encoded assignment, in the version of the member's subscription."""
    kind: Any = TopicPartition  # its types are kio's own
    named = tuple(
        kind(topic=topic, partitions=tuple(sorted(numbers)))
        for topic, numbers in partitions.items()
        if numbers
    )
    value = ConsumerProtocolAssignment(assigned_partitions=named, user_data=None)
    # A client reads only versions up to its own.
    return _VERSION.pack(min(version_of(metadata), _VERSION_MAX)) + encode(value)


def _bounds(elements: int) -> MessageBounds:
    return MessageBounds(elements=elements, string_bytes=STRING_BYTES_MAX)
