"""Offsets of a RecordDeletion (KIP-107): queried from the leaders once, then frozen.

"-1" and "no record that late" become the high watermark of that moment. The numbers are persisted
before anything is deleted, so a re-apply, a restart or a topic that is created again never deletes
more.
"""

import dataclasses
from collections.abc import Iterable

from tidemark.message_text import count, numbered, numbers
from tidemark.reasons import Reason
from tidemark.wire.deletions import HIGH_WATERMARK, NO_TIME, DeletionPoint, DeletionPointQuery
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.deletion_values import (
    DeletionInfo,
    DeletionProgress,
    DeletionTarget,
    DeletionWait,
    Finished,
    Resolve,
    Step,
    error_name,
    is_fatal,
)
from tidemark_operator.controller.model import NO_LEADER, PartitionRow, TopicInfo


def _points(
    state: ControllerState, topic: TopicInfo, view: DeletionInfo
) -> dict[int, DeletionTarget]:
    """Return the target (offset or time) of each partition that the RecordDeletion names.

    A time after the object's creation is reduced to the creation time: records that were written
    later are not meant.
    """
    points: dict[int, DeletionTarget] = {}
    for target in view.targets:
        # Without a partition, the target is for all partitions.
        every = range(state.partitions_of(topic))
        named = every if target.partition is None else (target.partition,)
        time_ms = target.before_time_ms
        if time_ms is not None:
            target = dataclasses.replace(target, before_time_ms=min(time_ms, view.created_ms))
        points.update(dict.fromkeys(named, target))
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
        by_leader.setdefault(rows[part].leader, []).append(_query(rows[part], points[part]))
    return Resolve(topic_id=topic.id, queries=by_leader)


def _query(row: PartitionRow, target: DeletionTarget) -> DeletionPointQuery:
    return DeletionPointQuery(
        partition=row.partition,
        leader_epoch=row.leader_epoch,
        before_offset=HIGH_WATERMARK if target.before_offset is None else target.before_offset,
        before_time_ms=NO_TIME if target.before_time_ms is None else target.before_time_ms,
    )


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
    resolved = {part: _resolved(answers[part], points[part]) for part in sorted(points)}
    # The size is only shown if it is known for every partition.
    sizes = [point.size_bytes for point in resolved.values() if point.size_bytes >= 0]
    return dataclasses.replace(
        view,
        topic_id=topic.id,
        resolved=resolved,
        progress={
            part: DeletionProgress(error=error)
            for part in resolved
            if (error := _refused(answers[part], points[part]))
        },
        records=sum(point.offset - point.log_start_offset for point in resolved.values()),
        size_bytes=sum(sizes) if len(sizes) == len(resolved) else None,
        started_ms=now_ms,
    )


def _resolved(answer: DeletionPoint, target: DeletionTarget) -> DeletionPoint:
    """Return the point to freeze: a refused partition has no records to delete, and none below its
    log start.
    """
    if _refused(answer, target):
        return dataclasses.replace(answer, log_start_offset=answer.offset, size_bytes=0)
    start = min(answer.log_start_offset, answer.offset)
    return dataclasses.replace(answer, log_start_offset=start)


def _refused(answer: DeletionPoint, target: DeletionTarget) -> str:
    """Return why no record of a partition is deleted, "" if they are."""
    if answer.offset > answer.high_watermark:
        beyond = f"{answer.offset} is beyond the high watermark {answer.high_watermark}"
        return f"OFFSET_OUT_OF_RANGE: {beyond}"
    if target.leader_epoch is not None and answer.last_epoch > target.leader_epoch:
        return (
            f"OFFSET_OUT_OF_RANGE: the last record below {answer.offset} has "
            f"leader epoch {answer.last_epoch}, later than leaderEpoch "
            f"{target.leader_epoch}. The topic was restored from its tier, or a "
            "leader was elected uncleanly, so these are other records. To "
            "delete them, create another RecordDeletion"
        )
    return ""
