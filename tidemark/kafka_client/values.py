"""What a Kafka cluster says of itself, as plain values."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kio.schema.errors import ErrorCode

#: (topic, partition)
TopicPartition: TypeAlias = tuple[str, int]

#: Kinds of things that have a configuration (Kafka's ``ConfigResource.Type``).
TOPIC, BROKER = 2, 4
#: Where a value comes from (``ConfigEntry.ConfigSource``): set for this topic, or this broker.
DYNAMIC_TOPIC, DYNAMIC_BROKER = 1, 2

#: What ListOffsets is asked for beside times (KIP-405, KIP-1005).
LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing of a request could not be done; the rest of it was."""

    code: ErrorCode
    message: str = ""

    def __str__(self) -> str:
        """Kafka's name of the error, and its sentence."""
        name = self.code.name.upper()
        return f"{name}: {self.message}" if self.message else name


@dataclass(frozen=True, slots=True)
class Node:
    """A broker that is registered; one that is fenced is down, or not caught up."""

    node_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


@dataclass(frozen=True, slots=True)
class ClusterView:
    """``controller_id``: of KRaft any broker, which hands on what it is asked."""

    cluster_id: str
    controller_id: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """``leader`` -1: none. ``replicas`` in order of preference, those that are being added
    included."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """By partition, all that there are."""

    name: str
    topic_id: uuid.UUID
    internal: bool
    partitions: tuple[PartitionView, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """``assignment``: the brokers of each partition."""

    name: str
    assignment: tuple[tuple[int, ...], ...]
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A value in force (None: sensitive, or none), and whether it is the topic's or broker's own.
    ``own`` False: a default, of the cluster's or of Kafka's."""

    value: str | None
    own: bool


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Keys of one topic or broker to set, and own values to take away; no other is touched."""

    kind: int
    name: str
    set: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reassignment:
    """One that is under way."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offset:
    """An answer of ListOffsets: -1 where there is none."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
