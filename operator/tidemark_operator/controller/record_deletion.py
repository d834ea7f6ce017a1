"""RecordDeletion (KIP-107): resolve once, freeze the offsets, delete, wait for the low watermark.

A partition is done when its low watermark has reached its offset. A log start that is already
beyond it is success (idempotent, invariants 12 to 14).

"-1" and "no record that late" become the high watermark of that moment. The numbers are persisted
before anything is deleted, so a re-apply, a restart or a topic that is created again never deletes
more.
"""

import dataclasses
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from tidemark.message_text import count, numbered, numbers
from tidemark.reasons import Reason
from tidemark.wire.deletions import (
    DeletionPoint,
    DeletionPointQuery,
    PartitionDeletion,
    PartitionDeletionResult,
)
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import NO_LEADER, Json, TopicInfo

#: A time-out is no error: some replicas need longer, and the low watermark shows their progress.
_NO_ERROR = frozenset({ErrorCode.none.value, ErrorCode.request_timed_out.value})

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
#: Partition of a target that is for all partitions.
ALL_PARTITIONS = -1
#: Leader epoch of a target, whose leader is not known yet. Brokers refuse it.
NO_LEADER_EPOCH = -1
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

    ``targets``: the points of the spec, as queries without their leader's epoch.
    ``latest_epochs``: leader epoch of the spec, by partition. The records to delete have this epoch
    or an earlier one.
    ``expected_topic_id`` is the only topic that may lose records; None: whichever has the name.
    ``resolved`` has the frozen offset of each partition, with the leader epoch of the last record
    below it and where deletion starts; None before the offsets are frozen. ``topic_id`` is set with
    it.
    """

    key: str
    uid: uuid.UUID
    generation: int
    topic_key: str
    targets: tuple[DeletionPointQuery, ...]
    created_ms: int
    latest_epochs: Mapping[int, int] = dataclasses.field(default_factory=dict)
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
    """Send the queries, pass the answers to :func:`freeze`, and persist the result.

    ``queries`` are by the node id of the leader.
    """

    topic_id: uuid.UUID
    queries: Mapping[int, Sequence[DeletionPointQuery]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Send the commands and pass the answers to :func:`record`.

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


def next_step(state: ControllerState, view: DeletionInfo, *, now_ms: int) -> Step:
    """Return the next step of a RecordDeletion that has not finished.

    The order is: wait for the Topic, resolve the offsets at the leaders, delete, finish. ``now_ms``
    is compared with the deletion's timeout.
    """
    if view.paused:
        text = (
            "nothing is deleted while it is paused. To continue, remove the "
            "annotation tidemark.dev/paused"
        )
        return DeletionWait(reason=Reason.PAUSED, message=text)
    # Completion is checked first: it does not need the Topic, which may be deleted by now.
    topic = state.topics.get(view.topic_key)
    if view.resolved is not None:
        outcome = _outcome(state, view)
        if outcome is not None:
            return outcome
        # A topic of the same name with another id has other records at these offsets.
        if topic is None or topic.id != view.topic_id:
            text = (
                f"{view.topic_key} is no longer the topic that was resolved. "
                "Nothing more is deleted"
            )
            return Finished(succeeded=False, reason=Reason.TOPIC_REPLACED, message=text)
        return _timed_out(view, topic, now_ms) or _commands(state, topic, view)
    # Nothing is resolved yet, so a request that times out now has deleted nothing.
    late = _timed_out(view, topic, now_ms)
    if late is not None:
        return late
    if topic is None or topic.deletion_ms is not None:
        return DeletionWait(
            reason=Reason.TOPIC_NOT_FOUND, message=f"Topic {view.topic_key} does not exist"
        )
    # spec.topicId protects a topic that was created again under the same name.
    if view.expected_topic_id not in (None, topic.id):
        if topic.topic_id is None:
            text = f"the id of topic {topic.name} is not known yet"
            return DeletionWait(reason=Reason.TOPIC_NOT_READY, message=text)
        text = f"{view.topic_key} does not have the id in spec.topicId. Nothing was deleted"
        return Finished(succeeded=False, reason=Reason.TOPIC_REPLACED, message=text)
    return queries(state, topic, view)


def _timed_out(view: DeletionInfo, topic: TopicInfo | None, now_ms: int) -> Finished | None:
    """Return the end of a RecordDeletion whose timeout has passed, else None."""
    # The time-out starts with the frozen offsets, or before that with the object.
    begun_ms = view.created_ms if view.started_ms is None else view.started_ms
    timeout_ms = view.timeout_ms
    if timeout_ms is None and topic is None and view.resolved is None:
        timeout_ms = TOPIC_TIMEOUT_MS
    if timeout_ms is None or now_ms < begun_ms + timeout_ms:
        return None
    left = "before the offsets were resolved. Nothing was deleted"
    if topic is None:
        left = f"waiting for Topic {view.topic_key}, which does not exist. Nothing was deleted"
    if view.resolved is not None:
        left = f"waiting for the low watermark of {numbered('partition', _open(view))}"
    return Finished(succeeded=False, reason=Reason.TIMEOUT, message=f"timed out {left}")


def _done(view: DeletionInfo, partition: int) -> bool:
    resolved = view.resolved or {}
    reached = view.progress.get(partition, DeletionProgress()).low_watermark
    return reached is not None and reached >= resolved[partition].offset


def _open(view: DeletionInfo) -> tuple[int, ...]:
    """Return the partitions that are neither done nor failed for good."""
    return tuple(
        partition
        for partition in sorted(view.resolved or {})
        if not _done(view, partition) and not view.progress.get(partition, DeletionProgress()).fatal
    )


def _outcome(state: ControllerState, view: DeletionInfo) -> Finished | None:
    """Return the outcome if every partition is complete or has failed, or for a dry run.

    Else None.
    """
    # A dry run ends as soon as the offsets are resolved.
    resolved = view.resolved or {}
    failed = [part for part in resolved if view.progress.get(part, DeletionProgress()).fatal]
    if view.dry_run:
        size = "" if view.size_bytes is None else f" ({count(view.size_bytes, 'byte')})"
        where = count(len(resolved), "partition")
        text = f"dry run: {count(view.records or 0, 'record')}{size} in {where} would be deleted"
        return Finished(succeeded=not failed, reason=Reason.DRY_RUN, message=text)
    if _open(view):
        return None
    if failed:
        first = view.progress[failed[0]].error
        others = ". The others are complete" if len(failed) < len(resolved) else ""
        text = f"{numbered('partition', failed)} failed ({first}){others}"
        return Finished(succeeded=False, reason=Reason.PARTITIONS_FAILED, message=text)
    text = f"{count(view.records or 0, 'record')} deleted in {count(len(resolved), 'partition')}"
    return Finished(succeeded=True, reason=Reason.DELETED, message=text)


def _commands(state: ControllerState, topic: TopicInfo, view: DeletionInfo) -> Step:
    """Return the deletions to send to the leaders of all partitions that are not complete."""
    waiting = _open(view)
    rows, resolved = state.rows_of(topic.id), view.resolved or {}
    by_leader: dict[int, list[PartitionDeletion]] = {}
    # A partition without a leader stays pending; the others are deleted meanwhile.
    for part in waiting:
        row = rows.get(part)
        if row is not None and row.leader != NO_LEADER:
            # The leader epoch lets a former leader refuse, and the last epoch proves that the
            # offset is of the same log.
            deletion = PartitionDeletion(
                partition=part,
                leader_epoch=row.leader_epoch,
                offset=resolved[part].offset,
                last_epoch=resolved[part].last_epoch,
            )
            by_leader.setdefault(row.leader, []).append(deletion)
    if not by_leader:
        text = f"topic {topic.name}: {numbered('partition', waiting, 'has')} no leader"
        return DeletionWait(reason=Reason.PARTITIONS_OFFLINE, message=text)
    return Delete(topic_id=topic.id, commands=dict(sorted(by_leader.items())), pending=waiting)


def command_for(
    state: ControllerState, view: DeletionInfo, node_id: int, *, now_ms: int
) -> Sequence[PartitionDeletion]:
    """Return the deletions for a broker as of now, because another broker's answer may have taken
    long.
    """
    step = next_step(state, view, now_ms=now_ms)
    return step.commands.get(node_id, ()) if isinstance(step, Delete) else ()


def record(view: DeletionInfo, answers: Iterable[PartitionDeletionResult]) -> DeletionInfo:
    """Return the RecordDeletion with the leaders' responses added to its progress.

    A low watermark never decreases. Errors that a retry can fix, for example of a newly elected
    leader that is behind the offset, are shown until the next response. A leader whose log has
    other records at that offset (after an unclean election) deletes nothing, and the partition
    fails.
    """
    progress = dict(view.progress)
    for answer in answers:
        part = answer.partition
        if view.resolved is None or part not in view.resolved or _done(view, part):
            continue
        # Answers may overtake each other, so the highest low watermark counts.
        old = progress.get(part, DeletionProgress())
        reached = max(answer.low_watermark, -1 if old.low_watermark is None else old.low_watermark)
        error = _error_text(answer, view.resolved[part].offset)
        progress[part] = DeletionProgress(
            low_watermark=None if reached < 0 else reached, error=error
        )
    return dataclasses.replace(view, progress=progress)


def observe(state: ControllerState, view: DeletionInfo) -> DeletionInfo:
    """Return the RecordDeletion with the progress that leaders' regular reports show.

    A low watermark may be reached without a request, by another request or after a restart. If a
    log ends below the resolved offset, the records were lost in an unclean election; the partition
    fails, because other records will take their place.
    """
    if view.resolved is None or view.topic_id is None:
        return view
    low_watermarks: list[PartitionDeletionResult] = []
    progress = dict(view.progress)
    for part in _open(view):
        report, row = state.reports.get((view.topic_id, part)), state.row((view.topic_id, part))
        # A report of a former leader says nothing about the present log.
        if report is None or row is None or report.leader_epoch != row.leader_epoch:
            continue
        frozen = view.resolved[part]
        # A report in the epoch of the resolution may be older than the resolution itself.
        is_later = report.leader_epoch > frozen.last_epoch
        if report.low_watermark >= frozen.offset:
            low_watermarks.append(
                PartitionDeletionResult(partition=part, low_watermark=report.low_watermark)
            )
        elif (
            is_later
            and report.next_offset < frozen.offset
            and not (report.offline or row.recovering)
        ):
            error = _lost_records_text(report.next_offset, frozen.offset)
            progress[part] = dataclasses.replace(
                progress.get(part, DeletionProgress()), error=error
            )
    if progress != view.progress:
        view = dataclasses.replace(view, progress=progress)
    return record(view, low_watermarks) if low_watermarks else view


def _lost_records_text(lost_from: int, offset: int) -> str:
    """Return the error of lost records; ``lost_from`` -1: the first lost offset is not known."""
    return (
        f"{ErrorCode.offset_out_of_range.name.upper()}: records below {offset} "
        "were lost in an unclean "
        f"election{'' if lost_from < 0 else f', from {lost_from} on'}. The "
        "new records are kept. To delete them, create another RecordDeletion"
    )


def finish(view: DeletionInfo, *, now_ms: int) -> DeletionInfo:
    """Return the view with its end time."""
    return dataclasses.replace(view, finished_ms=now_ms)


def expires_ms(view: DeletionInfo) -> int | None:
    """Return when the finished object is removed; None: never, or not finished."""
    if view.finished_ms is None or view.ttl_after_finished_ms is None:
        return None
    return view.finished_ms + view.ttl_after_finished_ms


def _error_text(answer: PartitionDeletionResult, offset: int) -> str:
    code = answer.error_code
    if code in _NO_ERROR:
        return ""
    if code == ErrorCode.offset_out_of_range.value:
        return _lost_records_text(answer.lost_from_offset, offset)
    if code == ErrorCode.offset_not_available.value:
        return f"HIGH_WATERMARK_BEHIND: the leader has not reached offset {offset} yet"
    return error_name(code)


def _points(
    state: ControllerState, topic: TopicInfo, view: DeletionInfo
) -> dict[int, DeletionPointQuery]:
    """Return the query (offset or time) of each partition that the RecordDeletion names, without
    its leader's epoch.

    A time after the object's creation is reduced to the creation time: records that were written
    later are not meant.
    """
    points: dict[int, DeletionPointQuery] = {}
    for target in view.targets:
        is_for_all = target.partition == ALL_PARTITIONS
        named = range(state.partitions_of(topic)) if is_for_all else (target.partition,)
        time_ms = min(target.before_time_ms, view.created_ms)
        for part in named:
            points[part] = dataclasses.replace(target, partition=part, before_time_ms=time_ms)
    return points


def queries(state: ControllerState, topic: TopicInfo, view: DeletionInfo) -> Step:
    """Return the queries for the leaders that resolve the offsets to delete up to.

    Returns ``DeletionWait`` if a partition has no leader yet, and ``Finished`` (failed) if one does
    not exist.
    """
    points, present = _points(state, topic, view), max(topic.partitions, state.partitions_of(topic))
    unknown = [partition for partition in points if partition >= present]
    if unknown:
        text = (
            f"topic {topic.name} has {count(present, 'partition')}. Unknown: "
            f"{numbers(unknown)}. Nothing was deleted"
        )
        return Finished(succeeded=False, reason=Reason.PARTITION_UNKNOWN, message=text)
    # All partitions are resolved at the same time, so each of them needs a leader first.
    rows = state.rows_of(topic.id)
    absent = [partition for partition in points if partition not in rows]
    if absent or not points:
        return DeletionWait(
            reason=Reason.TOPIC_NOT_READY, message=f"topic {topic.name} is not placed yet"
        )
    offline = [partition for partition in points if rows[partition].leader == NO_LEADER]
    if offline:
        text = f"topic {topic.name}: {numbered('partition', offline, 'has')} no leader"
        return DeletionWait(reason=Reason.PARTITIONS_OFFLINE, message=text)
    by_leader: dict[int, list[DeletionPointQuery]] = {}
    for part in sorted(points):
        query = dataclasses.replace(points[part], leader_epoch=rows[part].leader_epoch)
        by_leader.setdefault(rows[part].leader, []).append(query)
    return Resolve(topic_id=topic.id, queries=by_leader)


def freeze(
    state: ControllerState,
    view: DeletionInfo,
    step: Resolve,
    found: Iterable[DeletionPoint],
    *,
    now_ms: int,
) -> DeletionInfo | DeletionWait | Finished:
    """Return the RecordDeletion with the resolved offsets, to be persisted before the deletion.

    ``found`` are the leaders' answers to the queries of ``step``. Returns
    ``DeletionWait`` if a response is missing, a leader has changed, or the Topic was recreated; all
    partitions are then queried again. Returns ``Finished`` (failed) if leaders would refuse the
    deletion, so that a dry run fails where the real run does.
    """
    topic = state.topics.get(view.topic_key)
    if topic is None:
        return DeletionWait(
            reason=Reason.TOPIC_NOT_FOUND, message=f"Topic {view.topic_key} does not exist"
        )
    if view.resolved is not None:
        return view
    # The Topic may have been deleted and created again while the leaders were queried.
    if topic.id != step.topic_id:
        return DeletionWait(reason=Reason.RESOLVING, message=f"{view.topic_key} was recreated")
    rows, points = state.rows_of(topic.id), _points(state, topic, view)
    answers = {point.partition: point for point in found}
    queried = {
        (query.partition, query.leader_epoch) for led in step.queries.values() for query in led
    }
    # An answer counts only if its leader still leads in the same epoch.
    late = [
        part
        for part in points
        if part not in rows
        or (part, rows[part].leader_epoch) not in queried
        or part not in answers
        or answers[part].error_code
    ]
    # An error that a retry cannot fix ends the deletion.
    refused = [part for part in late if part in answers and is_fatal(answers[part].error_code)]
    if refused:
        code = error_name(answers[refused[0]].error_code)
        text = f"{numbered('partition', refused)} failed ({code}). Nothing was deleted"
        return Finished(succeeded=False, reason=Reason.PARTITIONS_FAILED, message=text)
    if late or not points:
        text = f"waiting for the offsets of the leaders of {numbered('partition', late)}"
        codes = {answers[part].error_code for part in late if part in answers} - {0}
        if codes:
            text += f" ({', '.join(sorted(map(error_name, codes)))})"
        return DeletionWait(reason=Reason.RESOLVING, message=text)
    refusals = {
        part: error
        for part in sorted(points)
        if (error := _refusal(answers[part], view.latest_epochs.get(part)))
    }
    resolved = {part: _resolved(answers[part], part in refusals) for part in sorted(points)}
    # The size is only shown if it is known for every partition.
    sizes = [point.size_bytes for point in resolved.values() if point.size_bytes >= 0]
    return dataclasses.replace(
        view,
        topic_id=topic.id,
        resolved=resolved,
        progress={part: DeletionProgress(error=error) for part, error in refusals.items()},
        records=sum(point.offset - point.log_start_offset for point in resolved.values()),
        size_bytes=sum(sizes) if len(sizes) == len(resolved) else None,
        started_ms=now_ms,
    )


def _resolved(answer: DeletionPoint, is_refused: bool) -> DeletionPoint:
    """Return the point to freeze: a refused partition has no records to delete, and none below its
    log start.
    """
    if is_refused:
        return dataclasses.replace(answer, log_start_offset=answer.offset, size_bytes=0)
    start = min(answer.log_start_offset, answer.offset)
    return dataclasses.replace(answer, log_start_offset=start)


def _refusal(answer: DeletionPoint, latest_epoch: int | None) -> str:
    """Return why no record of a partition is deleted, "" if they are.

    ``latest_epoch``: leader epoch in the spec, None for none.
    """
    if answer.offset > answer.high_watermark:
        beyond = f"{answer.offset} is beyond the high watermark {answer.high_watermark}"
        return f"OFFSET_OUT_OF_RANGE: {beyond}"
    if latest_epoch is not None and answer.last_epoch > latest_epoch:
        return (
            f"OFFSET_OUT_OF_RANGE: the last record below {answer.offset} has "
            f"leader epoch {answer.last_epoch}, later than leaderEpoch "
            f"{latest_epoch}. The topic was restored from its tier, or a "
            "leader was elected uncleanly, so these are other records. To "
            "delete them, create another RecordDeletion"
        )
    return ""
