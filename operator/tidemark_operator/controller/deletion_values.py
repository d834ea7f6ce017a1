"""What a RecordDeletion (KIP-107) is to the core, and the steps that carry it out."""

import dataclasses
import uuid
from collections.abc import Mapping
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from tidemark.reasons import Reason
from tidemark_operator.controller.model import Json

#: ``before_offset``: all that is committed at the moment of asking.
HIGH_WATERMARK = -1

#: Errors of DeleteRecords that repeating does not cure; any other is tried again.
_FATAL = frozenset(
    {
        ErrorCode.offset_out_of_range,
        ErrorCode.policy_violation,
        ErrorCode.topic_authorization_failed,
        ErrorCode.invalid_topic_exception,
    }
)
_FATAL_NAMES = frozenset(code.name.upper() for code in _FATAL)


#: So long a Topic that is not there is waited for where no time-out is given: what is applied at
#: once arrives in any order.
TOPIC_TIMEOUT_MS = 5 * 60 * 1000


def is_fatal(code: int) -> bool:
    """Whether an error is not cured by repeating."""
    return code in {each.value for each in _FATAL}


def error_name(code: int) -> str:
    """Kafka's name of an error code."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"ERROR_{code}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletionTarget:
    """An entry of the spec. ``partition``: None for all. One of the two points is set.
    ``leader_epoch``: the records to delete have this epoch or an earlier one."""

    partition: int | None
    before_offset: int | None = None
    before_time_ms: int | None = None
    leader_epoch: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOffset:
    """The frozen meaning of the spec for one partition: records below ``offset`` go. The last of
    them was written in ``leader_epoch``: a log that has it has all before it, too. ``records`` are
    offsets, ``size_bytes`` the segments that lie wholly below; None where that is not known."""

    offset: int
    leader_epoch: int
    records: int | None = None
    size_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """``error`` begins with Kafka's name of the error; empty while all is well."""

    low_watermark: int | None = None
    error: str = ""

    @property
    def fatal(self) -> bool:
        return self.error.partition(":")[0] in _FATAL_NAMES


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletionInfo:
    """A ``RecordDeletion`` object. ``meant``: the only topic that is to lose records; None:
    whichever has the name. ``resolved`` None: not frozen yet; with it ``topic_id``."""

    key: str
    uid: uuid.UUID
    generation: int
    topic_key: str
    targets: tuple[DeletionTarget, ...]
    created_ms: int
    meant: uuid.UUID | None = None
    timeout_ms: int | None = None
    dry_run: bool = False
    paused: bool = False
    ttl_after_finished_ms: int | None = None
    topic_id: uuid.UUID | None = None
    resolved: Mapping[int, ResolvedOffset] | None = None
    progress: Mapping[int, Progress] = dataclasses.field(default_factory=dict)
    records: int | None = None
    size_bytes: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    status: Json = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Nothing can be asked now; look again when the topic changes, or in a few seconds."""

    reason: Reason
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PointQuery:
    """What the leader of a partition is asked, in the epoch in which it leads: which offset
    ``before_time_ms`` means, or where that is None ``before_offset``."""

    partition: int
    node_id: int
    leader_epoch: int
    before_offset: int = HIGH_WATERMARK
    before_time_ms: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PointAnswer:
    """Where a partition stands, and the offset that is meant; offsets are -1 with an error.
    ``last_epoch``: of the last record below it. ``size_bytes``: -1 where that is not known."""

    error_code: int
    log_start_offset: int = -1
    high_watermark: int = -1
    offset: int = -1
    last_epoch: int = -1
    size_bytes: int = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """Ask these, then have :func:`deletion_offsets.freeze` take the answers, and persist the
    result."""

    topic_id: uuid.UUID
    queries: tuple[PointQuery, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletePoint:
    """What one leader is to delete: the records below ``offset``, if it leads in ``leader_epoch``
    and the last of them was written in ``last_epoch``."""

    offset: int
    leader_epoch: int
    last_epoch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCommand:
    """For the partitions of a topic that one broker leads."""

    node_id: int
    topic_id: uuid.UUID
    points: Mapping[int, DeletePoint]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletionAnswer:
    """A partition's answer: its low watermark, -1 when unknown. ``lost_from``: from where on the
    records that were meant are missing in the leader's log, -1 when unknown."""

    error_code: int = 0
    low_watermark: int = -1
    lost_from: int = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Send these, have :func:`deletion.record` take the answers; ``pending``: partitions that are
    not done. ``problem``: why a broker could not be told."""

    commands: tuple[DeleteCommand, ...]
    pending: tuple[int, ...]
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Nothing is left to do; the condition ``Succeeded`` says how it went."""

    succeeded: bool
    reason: Reason
    message: str


Step: TypeAlias = Waiting | Resolve | Delete | Finished
