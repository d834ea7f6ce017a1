"""RecordDeletion (KIP-107): resolve once, freeze into numbers, delete, wait for the low watermark.

Resolution asks the leaders where each partition stands and turns "-1" and "no record that late"
into the high watermark of that moment. The numbers are persisted before anything is deleted, so a
re-apply, a restart or a topic made again never deletes more. A partition is done when its low
watermark has reached its number (a log start already beyond is success; idempotent, invariants
12 to 14).
"""

import dataclasses
import uuid
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.events import count, numbers
from tidemark_operator.controller.model import NO_LEADER, Json, PartitionRow, TopicInfo

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
    """The frozen meaning of the spec for one partition: records below ``offset`` go, as they were
    in ``leader_epoch``."""

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
    """Ask these, then :func:`freeze` the answers and persist the result."""

    topic_name: str
    queries: tuple[OffsetQuery, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """A leader's answer; ``offset`` -1 where no record is that late."""

    error_code: int
    offset: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCommand:
    """DeleteRecords for the partitions that one broker leads: offset by partition.

    ``epochs``: the frozen leader epoch, of partitions that have another now. Those are to be asked
    about first, and :func:`check_ends` says which of them may be deleted."""

    node_id: int
    topic_name: str
    offsets: Mapping[int, int]
    epochs: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Send these, :func:`record` the answers; ``pending``: partitions that are not done."""

    commands: tuple[DeleteCommand, ...]
    pending: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Nothing is left to do; the condition ``Succeeded`` says how it went."""

    succeeded: bool
    reason: str
    message: str


Step: TypeAlias = Waiting | Resolve | Delete | Finished


def next_step(state: ControllerState, view: DeletionInfo, *, now_ms: int) -> Step:
    """What a RecordDeletion needs next. Not to be called for one that has finished."""
    topic = state.topics.get(view.topic_key)
    if view.resolved is not None and (topic is None or topic.id != view.topic_id):
        text = f"{view.topic_key} is no longer the topic that was resolved; nothing more is deleted"
        return Finished(succeeded=False, reason="TopicReplaced", message=text)
    if view.resolved is not None and topic is not None:
        outcome = _outcome(state, view)
        return outcome or _late(view, now_ms) or _commands(state, topic, view)
    late = _late(view, now_ms)
    if late is not None:
        return late
    if topic is None or topic.deletion_ms is not None:
        return Waiting(reason="TopicNotFound", message=f"there is no Topic {view.topic_key}")
    return _queries(state, topic, view)


def _late(view: DeletionInfo, now_ms: int) -> Finished | None:
    begun_ms = view.created_ms if view.started_ms is None else view.started_ms
    if view.timeout_ms is None or now_ms < begun_ms + view.timeout_ms:
        return None
    left = "before the offsets were resolved; nothing was deleted"
    if view.resolved is not None:
        left = f"waiting for the low watermark of partitions {numbers(_open(view))}"
    return Finished(succeeded=False, reason="Timeout", message=f"timed out {left}")


# ---------------------------------------------------------------- resolving


def _points(topic: TopicInfo, view: DeletionInfo) -> dict[int, DeletionTarget]:
    """The point of each partition that the spec names."""
    points: dict[int, DeletionTarget] = {}
    for target in view.targets:
        named = range(topic.partitions_placed) if target.partition is None else (target.partition,)
        points.update(dict.fromkeys(named, target))
    return points


def _queries(state: ControllerState, topic: TopicInfo, view: DeletionInfo) -> Step:
    points = _points(topic, view)
    unknown = [partition for partition in points if partition >= topic.partitions]
    if unknown:
        text = (
            f"topic {topic.name} has {count(topic.partitions, 'partition')}: {numbers(unknown)} "
            "unknown; nothing was deleted"
        )
        return Finished(succeeded=False, reason="PartitionUnknown", message=text)
    rows = state.rows_of(topic.id)
    absent = [partition for partition in points if partition not in rows]
    if absent or not points:
        return Waiting(reason="TopicNotReady", message=f"topic {topic.name} is not placed yet")
    offline = [partition for partition in points if rows[partition].leader == NO_LEADER]
    if offline:
        text = f"partitions {numbers(offline)} of topic {topic.name} have no leader"
        return Waiting(reason="PartitionsOffline", message=text)
    queries = (query for part in sorted(points) for query in _query(rows[part], points[part]))
    return Resolve(topic_name=topic.name, queries=tuple(queries))


def _query(row: PartitionRow, target: DeletionTarget) -> Iterable[OffsetQuery]:
    timestamps = [EARLIEST, LATEST]
    if target.before_time_ms is not None:
        timestamps.append(target.before_time_ms)
    for timestamp in timestamps:
        yield OffsetQuery(
            partition=row.partition,
            node_id=row.leader,
            leader_epoch=row.leader_epoch,
            timestamp=timestamp,
        )


def freeze(
    state: ControllerState,
    view: DeletionInfo,
    queries: Iterable[OffsetQuery],
    answers: Mapping[tuple[int, int], ListedOffset],
    *,
    now_ms: int,
) -> DeletionInfo | Waiting:
    """The view with its numbers, to be persisted before anything is deleted; ``answers`` to the
    ``queries`` by (partition, timestamp). Waiting if a leader did not answer, or another was
    elected meanwhile: everything is asked again."""
    topic = state.topics.get(view.topic_key)
    if topic is None or view.resolved is not None:
        return view if topic is not None else Waiting(reason="TopicNotFound", message="")
    rows, points = state.rows_of(topic.id), _points(topic, view)
    asked = {(query.partition, query.leader_epoch) for query in queries}
    late = [
        part
        for part in points
        if part not in rows
        or (part, rows[part].leader_epoch) not in asked
        or not _answered(part, points[part], answers)
    ]
    if late or not points:
        text = f"the leaders of partitions {numbers(late)} have not said where they stand"
        return Waiting(reason="Resolving", message=text)
    resolved: dict[int, ResolvedOffset] = {}
    progress: dict[int, Progress] = {}
    records = 0
    for part in sorted(points):
        high_watermark = answers[part, LATEST].offset
        offset = _offset(part, points[part], answers)
        resolved[part] = ResolvedOffset(offset=offset, leader_epoch=rows[part].leader_epoch)
        if offset > high_watermark:
            error = f"OFFSET_OUT_OF_RANGE: {offset} is beyond the high watermark {high_watermark}"
            progress[part] = Progress(error=error)
        else:
            records += max(0, offset - answers[part, EARLIEST].offset)
    return dataclasses.replace(
        view,
        topic_id=topic.id,
        resolved=resolved,
        progress=progress,
        records=records,
        started_ms=now_ms,
    )


def _answered(
    partition: int, target: DeletionTarget, answers: Mapping[tuple[int, int], ListedOffset]
) -> bool:
    timestamps = [EARLIEST, LATEST]
    if target.before_time_ms is not None:
        timestamps.append(target.before_time_ms)
    found = [answers.get((partition, timestamp)) for timestamp in timestamps]
    return all(answer is not None and answer.error_code == 0 for answer in found)


def _offset(
    partition: int, target: DeletionTarget, answers: Mapping[tuple[int, int], ListedOffset]
) -> int:
    """The number that a point means now. A time's answer is limited by the high watermark."""
    high_watermark = answers[partition, LATEST].offset
    if target.before_time_ms is not None:
        found = answers[partition, target.before_time_ms].offset
        return high_watermark if found < 0 else min(found, high_watermark)
    offset = HIGH_WATERMARK if target.before_offset is None else target.before_offset
    return high_watermark if offset == HIGH_WATERMARK else offset


# ---------------------------------------------------------------- deleting


def _done(view: DeletionInfo, partition: int) -> bool:
    resolved = view.resolved or {}
    reached = view.progress.get(partition, Progress()).low_watermark
    return reached is not None and reached >= resolved[partition].offset


def _open(view: DeletionInfo) -> tuple[int, ...]:
    """Partitions that are neither done nor beyond help."""
    return tuple(
        partition
        for partition in sorted(view.resolved or {})
        if not _done(view, partition) and not view.progress.get(partition, Progress()).fatal
    )


def _outcome(state: ControllerState, view: DeletionInfo) -> Finished | None:
    resolved = view.resolved or {}
    failed = [part for part in resolved if view.progress.get(part, Progress()).fatal]
    if view.dry_run:
        text = (
            f"dry run: {count(view.records or 0, 'record')} in {count(len(resolved), 'partition')} "
            "would go"
        )
        return Finished(succeeded=not failed, reason="DryRun", message=text)
    if _open(view):
        return None
    if failed:
        first = view.progress[failed[0]].error
        text = f"partitions {numbers(failed)} failed ({first}); the others are done"
        return Finished(succeeded=False, reason="PartitionsFailed", message=text)
    text = f"{count(view.records or 0, 'record')} deleted in {count(len(resolved), 'partition')}"
    return Finished(succeeded=True, reason="Deleted", message=text)


def _commands(state: ControllerState, topic: TopicInfo, view: DeletionInfo) -> Step:
    waiting = _open(view)
    rows, resolved = state.rows_of(topic.id), view.resolved or {}
    by_leader: dict[int, list[PartitionRow]] = {}
    for part in waiting:
        row = rows.get(part)
        if row is not None and row.leader != NO_LEADER:
            by_leader.setdefault(row.leader, []).append(row)
    commands = tuple(
        _command(node_id, topic, led, resolved) for node_id, led in sorted(by_leader.items())
    )
    if not commands:
        text = f"partitions {numbers(waiting)} of topic {topic.name} have no leader"
        return Waiting(reason="PartitionsOffline", message=text)
    return Delete(commands=commands, pending=waiting)


def _command(
    node_id: int, topic: TopicInfo, led: list[PartitionRow], resolved: Mapping[int, ResolvedOffset]
) -> DeleteCommand:
    return DeleteCommand(
        node_id=node_id,
        topic_name=topic.name,
        offsets={row.partition: resolved[row.partition].offset for row in led},
        epochs={
            row.partition: resolved[row.partition].leader_epoch
            for row in led
            if row.leader_epoch > resolved[row.partition].leader_epoch
        },
    )


def check_ends(
    view: DeletionInfo, command: DeleteCommand, ends: Mapping[int, int]
) -> tuple[DeletionInfo, dict[int, int]]:
    """Take the answers of OffsetForLeaderEpoch for ``command.epochs``: where the frozen epoch ends
    in the present leader's log (-1: it knows of no epoch, so it has no records). What an unclean
    election lost below the frozen offset is never deleted: other records may stand there by now.
    Gives the offsets that may be deleted; a partition that did not answer is asked again."""
    resolved, progress, offsets = view.resolved or {}, dict(view.progress), dict(command.offsets)
    for part in command.epochs:
        end = ends.get(part)
        if end is None or 0 <= end < resolved[part].offset:
            del offsets[part]
        if end is not None and 0 <= end < resolved[part].offset:
            error = _lost(end, resolved[part].offset)
            progress[part] = dataclasses.replace(progress.get(part, Progress()), error=error)
    return dataclasses.replace(view, progress=progress), offsets


def record(
    view: DeletionInfo, results: Mapping[int, tuple[int, int]], message: str = ""
) -> DeletionInfo:
    """Take the answers of DeleteRecords: (error code, low watermark) by partition. A low watermark
    never goes back here; errors that repeating cures are kept only until the next answer. A leader
    that is behind what was resolved (just elected) is one of those."""
    progress = dict(view.progress)
    for part, (code, low_watermark) in results.items():
        if view.resolved is None or part not in view.resolved or _done(view, part):
            continue
        old = progress.get(part, Progress())
        reached = max(low_watermark, -1 if old.low_watermark is None else old.low_watermark)
        error = "" if code == 0 else _error_text(code, message)
        if code == ErrorCode.offset_out_of_range.value:
            error = (
                f"HIGH_WATERMARK_BEHIND: the leader has not reached {view.resolved[part].offset} "
                "yet"
            )
        progress[part] = Progress(low_watermark=None if reached < 0 else reached, error=error)
    return dataclasses.replace(view, progress=progress)


def observe(state: ControllerState, view: DeletionInfo) -> DeletionInfo:
    """Take from the leaders' reports what has been reached, which need not be asked for (after a
    restart, or when another request deleted more), and what never can be: a log that ends below
    the frozen offset lost those records to an unclean election, and others will take their
    place."""
    if view.resolved is None or view.topic_id is None:
        return view
    low_watermarks: dict[int, tuple[int, int]] = {}
    progress = dict(view.progress)
    for part in _open(view):
        report, row = state.reports.get((view.topic_id, part)), state.row((view.topic_id, part))
        if report is None or row is None or report.leader_epoch != row.leader_epoch:
            continue
        frozen = view.resolved[part]
        # The leader of the frozen epoch may have reported before it had those records.
        is_later = report.leader_epoch > frozen.leader_epoch
        if report.low_watermark >= frozen.offset:
            low_watermarks[part] = (0, report.low_watermark)
        elif (
            is_later
            and report.next_offset < frozen.offset
            and not (report.offline or row.recovering)
        ):
            error = _lost(report.next_offset, frozen.offset)
            progress[part] = dataclasses.replace(progress.get(part, Progress()), error=error)
    if progress != view.progress:
        view = dataclasses.replace(view, progress=progress)
    return record(view, low_watermarks) if low_watermarks else view


def _lost(end: int, offset: int) -> str:
    return (
        f"{ErrorCode.offset_out_of_range.name.upper()}: records below {offset} were lost in an "
        f"unclean election, from {end} on; what is written there now is kept: make another "
        "RecordDeletion to delete it"
    )


def finish(view: DeletionInfo, *, now_ms: int) -> DeletionInfo:
    """The view with its end."""
    return dataclasses.replace(view, finished_ms=now_ms)


def expires_ms(view: DeletionInfo) -> int | None:
    """When the finished object is to be removed; None: never, or not finished."""
    if view.finished_ms is None or view.ttl_after_finished_ms is None:
        return None
    return view.finished_ms + view.ttl_after_finished_ms


def _error_text(code: int, message: str) -> str:
    try:
        name = ErrorCode(code).name.upper()
    except ValueError:
        name = f"ERROR_{code}"
    return f"{name}: {message}" if message else name
