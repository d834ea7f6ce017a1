"""State of a Kafka cluster as its brokers report it: plain values."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

# The special timestamps are also used where Kafka's schema is not loaded.
if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

#: (topic, partition)
TopicPartition: TypeAlias = tuple[str, int]

#: Resources that have a configuration (Kafka's ``ConfigResource.Type``).
TOPIC, BROKER = 2, 4
#: Origin of a value (``EffectiveConfig.ConfigSource``): set for this topic, or this broker.
DYNAMIC_TOPIC, DYNAMIC_BROKER = 1, 2

#: Special timestamps of ListOffsets (KIP-405, KIP-1005). The first two are also the numbers of
#: Spark's options.
LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Failure of one item of a request; the other items were executed."""

    code: "ErrorCode"
    message: str = ""

    def __str__(self) -> str:
        """Return Kafka's name of the error, and its message."""
        name = self.code.name.upper()
        return f"{name}: {self.message}" if self.message else name


@dataclass(frozen=True, slots=True)
class Node:
    """Registered broker; a fenced one is down, or not caught up."""

    node_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Cluster.

    ``controller_id``: with KRaft any broker, which forwards requests to the controller.
    """

    cluster_id: str
    controller_id: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Partition.

    ``leader`` -1: none. ``replicas``: in order of preference, those being added included.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """Topic with all of its partitions."""

    name: str
    topic_id: uuid.UUID
    internal: bool
    partitions: tuple[PartitionView, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """Topic to create. ``assignment``: the brokers of each partition."""

    name: str
    assignment: tuple[tuple[int, ...], ...]
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """Value in force (None: sensitive, or none).

    ``own`` False: a default of the cluster or of Kafka.
    """

    value: str | None
    own: bool


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Keys of one topic or broker to set, and own values to remove; other keys stay."""

    kind: int
    name: str
    set: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reassignment:
    """Reassignment in progress: the target replicas, and those of them that join or leave."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offset:
    """Answer of ListOffsets: -1 where there is none."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
