"""Which offsets a RecordDeletion (KIP-107) means: asked of the leaders once, then frozen.

"-1" and "no record that late" become the high watermark of that moment. The numbers are persisted
before anything is deleted, so a re-apply, a restart or a topic made again never deletes more.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tidemark.logfiles.leader_epochs import EpochEnd
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.deletion_values import (
    EARLIEST,
    HIGH_WATERMARK,
    LATEST,
    DeletionInfo,
    DeletionTarget,
    Finished,
    ListedOffset,
    OffsetQuery,
    Progress,
    Resolve,
    ResolvedOffset,
    Step,
    Waiting,
)
from tidemark_operator.controller.events import count, numbers
from tidemark_operator.controller.model import NO_LEADER, PartitionRow, TopicInfo

#: By (partition, timestamp).
Answers: TypeAlias = Mapping[tuple[int, int], ListedOffset]


def _points(topic: TopicInfo, view: DeletionInfo) -> dict[int, DeletionTarget]:
    """The point of each partition that the spec names. A time that had not come when the object was
    made is that of its making: what is written later was never meant."""
    points: dict[int, DeletionTarget] = {}
    for target in view.targets:
        named = range(topic.partitions_placed) if target.partition is None else (target.partition,)
        time_ms = target.before_time_ms
        if time_ms is not None:
            target = dataclasses.replace(target, before_time_ms=min(time_ms, view.created_ms))
        points.update(dict.fromkeys(named, target))
    return points


def queries(state: ControllerState, topic: TopicInfo, view: DeletionInfo) -> Step:
    """What the leaders are asked first; Waiting or Finished where that cannot be."""
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
    asked = (query for part in sorted(points) for query in _query(rows[part], points[part]))
    return Resolve(topic_id=topic.id, topic_name=topic.name, queries=tuple(asked))


def _query(row: PartitionRow, target: DeletionTarget) -> Iterable[OffsetQuery]:
    for timestamp in _timestamps(target):
        yield OffsetQuery(
            partition=row.partition,
            node_id=row.leader,
            leader_epoch=row.leader_epoch,
            timestamp=timestamp,
        )


def _timestamps(target: DeletionTarget) -> tuple[int, ...]:
    """What a leader is asked of a partition: where it begins and ends, and the time, if one is
    meant."""
    time_ms = target.before_time_ms
    return (EARLIEST, LATEST) if time_ms is None else (EARLIEST, LATEST, time_ms)


class EpochSearch:
    """In which epoch the last record before each offset was written: the smallest one that ends at
    the offset or behind it, in the log of the leader that named the offset. Each round halves what
    is left, with one OffsetForLeaderEpoch per leader."""

    def __init__(self, queries: Iterable[OffsetQuery], offsets: Mapping[int, int]) -> None:
        """``offsets`` by partition, of those that have records below them."""
        self._offsets = offsets
        self._leaders: dict[int, OffsetQuery] = {}
        for query in queries:
            if query.partition in offsets:
                self._leaders[query.partition] = query
        self._low = dict.fromkeys(self._leaders, 0)
        self._high = {part: query.leader_epoch for part, query in self._leaders.items()}

    @property
    def questions(self) -> dict[int, dict[int, int]]:
        """By node id: the epoch to ask for, by partition; empty at the end."""
        asked: dict[int, dict[int, int]] = {}
        for part, query in self._leaders.items():
            if self._low[part] < self._high[part]:
                asked.setdefault(query.node_id, {})[part] = self._middle(part)
        return asked

    def take(self, part: int, end: EpochEnd) -> None:
        """A leader's answer to the present question."""
        middle = self._middle(part)
        if end.end_offset < 0 or end.end_offset >= self._offsets[part]:
            self._high[part] = middle
        else:
            self._low[part] = middle + 1

    def _middle(self, part: int) -> int:
        return (self._low[part] + self._high[part]) // 2

    @property
    def found(self) -> Mapping[int, int]:
        """By partition, once no question is left."""
        return self._low


def search_epochs(
    view: DeletionInfo, topic: TopicInfo, step: Resolve, answers: Answers
) -> EpochSearch:
    """Of the partitions that have something to delete; those that did not answer are left out."""
    offsets: dict[int, int] = {}
    for part, point in _points(topic, view).items():
        if _answered(part, point, answers):
            offset = _offset(part, point, answers)
            if answers[part, EARLIEST].offset < offset <= answers[part, LATEST].offset:
                offsets[part] = offset
    return EpochSearch(step.queries, offsets)


def freeze(
    state: ControllerState,
    view: DeletionInfo,
    step: Resolve,
    answers: Answers,
    epochs: Mapping[int, int],
    *,
    now_ms: int,
) -> DeletionInfo | Waiting:
    """The view with its numbers, to be persisted before anything is deleted; ``epochs``: of the
    records before the offsets (:class:`EpochSearch`). Waiting if a leader did not answer, or
    another was elected meanwhile, or it is another topic by now: everything is asked again."""
    topic = state.topics.get(view.topic_key)
    if topic is None:
        return Waiting(reason="TopicNotFound", message=f"there is no Topic {view.topic_key}")
    if view.resolved is not None:
        return view
    if topic.id != step.topic_id:
        return Waiting(reason="Resolving", message=f"{view.topic_key} was made again meanwhile")
    rows, points = state.rows_of(topic.id), _points(topic, view)
    asked = {(query.partition, query.leader_epoch) for query in step.queries}
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
        epoch = epochs.get(part, rows[part].leader_epoch)
        resolved[part] = ResolvedOffset(offset=offset, leader_epoch=epoch)
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


def _answered(partition: int, target: DeletionTarget, answers: Answers) -> bool:
    found = [answers.get((partition, timestamp)) for timestamp in _timestamps(target)]
    return all(answer is not None and answer.error_code == 0 for answer in found)


def _offset(partition: int, target: DeletionTarget, answers: Answers) -> int:
    """The number that a point means now. A time's answer is limited by the high watermark."""
    high_watermark = answers[partition, LATEST].offset
    if target.before_time_ms is not None:
        found = answers[partition, target.before_time_ms].offset
        return high_watermark if found < 0 else min(found, high_watermark)
    offset = HIGH_WATERMARK if target.before_offset is None else target.before_offset
    return high_watermark if offset == HIGH_WATERMARK else offset
