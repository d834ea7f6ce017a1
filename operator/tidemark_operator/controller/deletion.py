"""RecordDeletion (KIP-107): resolve once, freeze the offsets, delete, wait for the low watermark.

:mod:`deletion_offsets` freezes the offsets. A partition is done when its low watermark has reached
its offset. A log start that is already beyond it is success (idempotent, invariants 12 to 14).
"""

import dataclasses
from collections.abc import Iterable, Sequence

from kio.schema.errors import ErrorCode

from tidemark.message_text import count, numbered
from tidemark.reasons import Reason
from tidemark.wire.deletions import PartitionDeletion, PartitionDeletionResult
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.deletion_offsets import queries
from tidemark_operator.controller.deletion_values import (
    TOPIC_TIMEOUT_MS,
    Delete,
    DeletionInfo,
    DeletionProgress,
    DeletionWait,
    Finished,
    Step,
    error_name,
)
from tidemark_operator.controller.model import NO_LEADER, TopicInfo

#: A time-out is no error: some replicas need longer, and the low watermark shows their progress.
_NO_ERROR = frozenset({ErrorCode.none.value, ErrorCode.request_timed_out.value})


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
