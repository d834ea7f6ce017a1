"""What clients ask of topics, and of the configuration of all brokers, through Kafka's admin API,
as a broker passes it on to the controller.

``ChangeTopics`` is a request like those of :mod:`tidemark.wire.control`, over a connection of its
own: what has to be written to the API server takes longer than a proposal for an ISR. One message
carries changes of one kind or of several; each is answered for itself, in the order of the request,
with Kafka's error codes and a sentence. Who asked is told along, for the audit.
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
    """What is to become of a topic."""

    CREATE = 0
    GROW = 1
    DELETE = 2
    CONFIGURE = 3
    ELECT = 4
    REASSIGN = 5
    #: No topic's: the Cluster's configuration.
    CONFIGURE_CLUSTER = 6
    #: A consumer group's, by its name, in the Cluster's.
    CONFIGURE_GROUP = 7


class SettingOperation(enum.IntEnum):
    """Kafka's ``AlterConfigOp.OpType``."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@entity(_nested, CHANGE_TOPICS)
class Setting:
    """A configuration key; ``value`` None where there is none. ``operation``: a
    :class:`SettingOperation`."""

    name: str = wire("string")
    value: str | None = wire("string")
    operation: int = wire("int8")


@entity(_nested, CHANGE_TOPICS)
class Assignment:
    """The brokers of one partition, the preferred leader first."""

    partition: int = wire("int32")
    replicas: tuple[int, ...] = wire("int32")


@entity(_nested, CHANGE_TOPICS)
class TopicChange:
    """``kind``: a :class:`ChangeKind`. ``name`` None: the topic of ``topic_id``. ``partitions`` is
    their number afterwards and ``replication_factor`` that of a new topic, -1 the Cluster's
    default. ``is_whole``: the settings replace all that there are (AlterConfigs). ``automatic``:
    nobody asked for it by name, a broker needs it or a client wanted to use it. ``assignments``
    name the partitions of an election, too, which may be ``unclean``; and those that move, where no
    replicas end a move. ``keeps_factor``: a move to another number of replicas is refused."""

    kind: int = wire("int8")
    name: str | None = wire("string")
    topic_id: uuid.UUID | None = wire("uuid")
    partitions: int = wire("int32", default=i32(-1))
    replication_factor: int = wire("int32", default=i32(-1))
    assignments: tuple[Assignment, ...] = ()
    settings: tuple[Setting, ...] = ()
    is_whole: bool = wire("bool", default=False)
    automatic: bool = wire("bool", default=False)
    unclean: bool = wire("bool", default=False)
    keeps_factor: bool = wire("bool", default=False)


@entity(EntityType.request, CHANGE_TOPICS)
class ChangeTopicsRequest:
    """At most ``CHANGES_MAX`` changes. ``principal``: who asks (``User:name``), ``host``: from
    where. ``validate_only``: nothing is changed."""

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    principal: str = wire("string")
    host: str = wire("string")
    validate_only: bool = wire("bool")
    changes: tuple[TopicChange, ...]
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)


@entity(_nested, CHANGE_TOPICS)
class PartitionResult:
    """Of one partition, where they are answered for themselves."""

    partition: int = wire("int32")
    error_code: int = wire("int16")
    error_message: str | None = wire("string")


@entity(_nested, CHANGE_TOPICS)
class TopicChangeResult:
    """``error_code`` 0: the Topic object says so now, and brokers hear of it soon. ``partitions``
    and ``replication_factor`` as they are asked for now, -1 with an error. ``parts``: one for each
    partition of an election or a move."""

    error_code: int = wire("int16")
    error_message: str | None = wire("string")
    topic_id: uuid.UUID | None = wire("uuid")
    partitions: int = wire("int32", default=i32(-1))
    replication_factor: int = wire("int32", default=i32(-1))
    parts: tuple[PartitionResult, ...] = ()


@entity(EntityType.response, CHANGE_TOPICS)
class ChangeTopicsResponse:
    """``error_code``: 0, NOT_CONTROLLER (41), STALE_BROKER_EPOCH (77). One result per change."""

    error_code: int = wire("int16")
    results: tuple[TopicChangeResult, ...]
