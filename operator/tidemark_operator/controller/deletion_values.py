"""What a RecordDeletion (KIP-107) is to the core, and the steps that carry it out."""

import dataclasses
import uuid
from collections.abc import Mapping
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from tidemark_operator.controller.model import Json

LATEST = -1
EARLIEST = -2
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletionTarget:
    """An entry of the spec; ``partition`` None stands for all. One of the two points is set."""

    partition: int | None
    before_offset: int | None = None
    before_time_ms: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOffset:
    """The frozen meaning of the spec for one partition: records below ``offset`` go. The last of
    them was written in ``leader_epoch``: a log that has it has all before it, too."""

    offset: int
    leader_epoch: int


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
    """A ``RecordDeletion`` object. ``resolved`` None: not frozen yet; with it ``topic_id``."""

    key: str
    uid: uuid.UUID
    generation: int
    topic_key: str
    targets: tuple[DeletionTarget, ...]
    created_ms: int
    timeout_ms: int | None = None
    dry_run: bool = False
    paused: bool = False
    ttl_after_finished_ms: int | None = None
    topic_id: uuid.UUID | None = None
    resolved: Mapping[int, ResolvedOffset] | None = None
    progress: Mapping[int, Progress] = dataclasses.field(default_factory=dict)
    records: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    status: Json = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Nothing can be asked now; look again when the topic changes, or in a few seconds."""

    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OffsetQuery:
    """ListOffsets to a leader: ``timestamp`` in ms, or :data:`LATEST` or :data:`EARLIEST`."""

    partition: int
    node_id: int
    leader_epoch: int
    timestamp: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """Ask these, then have :func:`deletion_offsets.freeze` take the answers, and persist the
    result."""

    topic_id: uuid.UUID
    topic_name: str
    queries: tuple[OffsetQuery, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """A leader's answer; ``offset`` -1 where no record is that late."""

    error_code: int
    offset: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCommand:
    """DeleteRecords for the partitions that one broker leads: offset by partition, and in which
    leader epochs it does.

    ``epochs``: the frozen leader epoch, of partitions that have a later one now. Those are to be
    asked about first, and :func:`deletion.check_ends` says which of them may be deleted."""

    node_id: int
    topic_id: uuid.UUID
    topic_name: str
    offsets: Mapping[int, int]
    leader_epochs: Mapping[int, int]
    epochs: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Send these, have :func:`deletion.record` take the answers; ``pending``: partitions that are
    not done."""

    commands: tuple[DeleteCommand, ...]
    pending: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Nothing is left to do; the condition ``Succeeded`` says how it went."""

    succeeded: bool
    reason: str
    message: str


Step: TypeAlias = Waiting | Resolve | Delete | Finished
