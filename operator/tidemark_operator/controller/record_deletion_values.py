"""RecordDeletion objects (KIP-107) as the core sees them, and the steps of one."""

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from tidemark.reasons import Reason
from tidemark.wire.deletions import DeletionPoint, DeletionPointQuery, PartitionDeletion
from tidemark_operator.controller.state.model import Json

#: Errors of DeleteRecords that a retry cannot fix; any other is retried.
_FATAL = frozenset(
    {
        ErrorCode.offset_out_of_range,
        ErrorCode.policy_violation,
        ErrorCode.topic_authorization_failed,
        ErrorCode.invalid_topic_exception,
    }
)
_FATAL_NAMES = frozenset(code.name.upper() for code in _FATAL)


#: Time to wait for a missing Topic without a time-out in the spec: objects that are applied
#: together arrive in any order.
TOPIC_TIMEOUT_MS = 5 * 60 * 1000


def is_fatal(code: int) -> bool:
    """Return whether a retry cannot fix an error."""
    return code in {error.value for error in _FATAL}


def error_name(code: int) -> str:
    """Return Kafka's name of an error code."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"ERROR_{code}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletionTarget:
    """An entry of the spec.

    ``partition`` None stands for all. One of the two points is set. ``leader_epoch``: the records
    to delete have this epoch or an earlier one.
    """

    partition: int | None
    before_offset: int | None = None
    before_time_ms: int | None = None
    leader_epoch: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletionProgress:
    """Progress of one partition; ``error`` starts with Kafka's error name, "" for none."""

    low_watermark: int | None = None
    error: str = ""

    @property
    def fatal(self) -> bool:
        return self.error.partition(":")[0] in _FATAL_NAMES


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletionInfo:
    """A ``RecordDeletion`` object.

    ``expected_topic_id`` is the only topic that may lose records; None: whichever has the name.
    ``resolved`` has the frozen offset of each partition, with the leader epoch of the last record
    below it and where deletion starts; None before the offsets are frozen. ``topic_id`` is set with
    it.
    """

    key: str
    uid: uuid.UUID
    generation: int
    topic_key: str
    targets: tuple[DeletionTarget, ...]
    created_ms: int
    expected_topic_id: uuid.UUID | None = None
    timeout_ms: int | None = None
    dry_run: bool = False
    paused: bool = False
    ttl_after_finished_ms: int | None = None
    topic_id: uuid.UUID | None = None
    resolved: Mapping[int, DeletionPoint] | None = None
    progress: Mapping[int, DeletionProgress] = dataclasses.field(default_factory=dict)
    records: int | None = None
    size_bytes: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    status: Json = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletionWait:
    """Nothing can be sent now; look again when the topic changes, or in a few seconds."""

    reason: Reason
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """Send the queries, pass the answers to :func:`deletion.freeze`, and persist the
    result.

    ``queries`` are by the node id of the leader.
    """

    topic_id: uuid.UUID
    queries: Mapping[int, Sequence[DeletionPointQuery]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Send the commands and pass the answers to :func:`deletion.record`.

    ``commands`` are by the node id of the leader. ``pending`` are the partitions that are not done.
    ``problem`` says why a broker could not be reached.
    """

    topic_id: uuid.UUID
    commands: Mapping[int, Sequence[PartitionDeletion]]
    pending: tuple[int, ...]
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Nothing is left to do; the condition ``Succeeded`` has the result."""

    succeeded: bool
    reason: Reason
    message: str


Step: TypeAlias = DeletionWait | Resolve | Delete | Finished
