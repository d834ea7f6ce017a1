"""Changes of topics and configuration by clients of Kafka's admin API, as a broker forwards them to
the controller.

``ChangeTopics`` is a request like those of :mod:`tidemark.wire.control`, on a connection of its
own, because writing to the API server takes longer than an ISR change. One message has changes of
one or several kinds. Each change has its own answer, in the order of the request, with Kafka's
error codes and a message. The client's principal is included for the audit.
"""

import enum
import uuid

from kio.static.constants import EntityType
from kio.static.primitive import i32

from tidemark.wire.entity import entity, wire

CHANGE_TOPICS = 10007

#: Changes of one message; a broker sends more of them one after another.
CHANGES_MAX = 100

#: TIERED_STORAGE_DISABLEMENT_IN_PROGRESS (KIP-950): Kafka's releases have no such error, so the
#: number is our own, far above theirs.
DISABLEMENT_IN_PROGRESS = 950

_nested = EntityType.nested


class ChangeKind(enum.IntEnum):
    """Kinds of changes that clients request."""

    CREATE = 0
    GROW = 1
    DELETE = 2
    CONFIGURE = 3
    ELECT = 4
    REASSIGN = 5
    #: The Cluster's configuration instead of a topic's.
    CONFIGURE_CLUSTER = 6
    #: The configuration of a consumer group, which is part of the Cluster.
    CONFIGURE_GROUP = 7


class SettingOperation(enum.IntEnum):
    """Operations of Kafka's ``AlterConfigOp.OpType``."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@entity(_nested, CHANGE_TOPICS)
class Setting:
    """Configuration key with its value, None if it has none.

    ``operation``: a :class:`SettingOperation`.
    """

    name: str = wire("string")
    value: str | None = wire("string")
    operation: int = wire("int8")


@entity(_nested, CHANGE_TOPICS)
class Assignment:
    """Brokers of one partition, the preferred leader first."""

    partition: int = wire("int32")
    replicas: tuple[int, ...] = wire("int32")


@entity(_nested, CHANGE_TOPICS)
class TopicChange:
    """Change of one topic.

    - ``kind``: a :class:`ChangeKind`.
    - ``name``: None for the topic of ``topic_id``.
    - ``partitions``: number of partitions after the change.
    - ``replication_factor``: of a new topic; -1 for the Cluster's default.
    - ``assignments``: replicas of each partition. They also name the partitions of an election, and
      of moves. A move without replicas is cancelled.
    - ``replaces_all``: the settings replace all existing ones (AlterConfigs).
    - ``automatic``: no client requested the topic by name. A broker needs it, or a client used it.
    - ``unclean``: the election may choose a replica that is not in sync.
    - ``keeps_factor``: a move to another number of replicas is refused.
    """

    kind: int = wire("int8")
    name: str | None = wire("string")
    topic_id: uuid.UUID | None = wire("uuid")
    partitions: int = wire("int32", default=i32(-1))
    replication_factor: int = wire("int32", default=i32(-1))
    assignments: tuple[Assignment, ...] = ()
    settings: tuple[Setting, ...] = ()
    replaces_all: bool = wire("bool", default=False)
    automatic: bool = wire("bool", default=False)
    unclean: bool = wire("bool", default=False)
    keeps_factor: bool = wire("bool", default=False)


@entity(EntityType.request, CHANGE_TOPICS)
class ChangeTopicsRequest:
    """Request with at most ``CHANGES_MAX`` changes.

    ``principal``: the client's (``User:name``), ``host``: its address. ``validate_only``: nothing
    is changed.
    """

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    principal: str = wire("string")
    host: str = wire("string")
    validate_only: bool = wire("bool")
    changes: tuple[TopicChange, ...]
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)


@entity(_nested, CHANGE_TOPICS)
class PartitionResult:
    """Result of one partition, for changes that are answered by partition."""

    partition: int = wire("int32")
    error_code: int = wire("int16")
    error_message: str | None = wire("string")


@entity(_nested, CHANGE_TOPICS)
class TopicChangeResult:
    """Result of one change.

    ``error_code`` 0: the Topic object has been changed, and brokers receive it soon. ``partitions``
    and ``replication_factor`` of the changed spec, -1 with an error. ``parts``: one result for each
    partition of an election or a move.
    """

    error_code: int = wire("int16")
    error_message: str | None = wire("string")
    topic_id: uuid.UUID | None = wire("uuid")
    partitions: int = wire("int32", default=i32(-1))
    replication_factor: int = wire("int32", default=i32(-1))
    parts: tuple[PartitionResult, ...] = ()


@entity(EntityType.response, CHANGE_TOPICS)
class ChangeTopicsResponse:
    """One result for each change.

    ``error_code``: 0, NOT_CONTROLLER (41), STALE_BROKER_EPOCH (77).
    """

    error_code: int = wire("int16")
    results: tuple[TopicChangeResult, ...]
