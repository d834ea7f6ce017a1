"""RecordDeletion (KIP-107): resolve once, freeze into numbers, delete, wait for the low watermark.

What is to go is frozen by :mod:`deletion_offsets`. A partition is done when its low watermark has
reached its number (a log start already beyond is success; idempotent, invariants 12 to 14).
"""

import dataclasses
from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import EpochEnd
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.deletion_offsets import queries
from tidemark_operator.controller.deletion_values import (
    Delete,
    DeleteCommand,
    DeletionInfo,
    Finished,
    ListedOffset,
    Progress,
    ResolvedOffset,
    Step,
    Waiting,
)
from tidemark_operator.controller.events import count, numbers
from tidemark_operator.controller.model import NO_LEADER, PartitionRow, TopicInfo


def next_step(state: ControllerState, view: DeletionInfo, *, now_ms: int) -> Step:
    """What a RecordDeletion needs next. Not to be called for one that has finished."""
    if view.paused:
        text = "nothing is deleted meanwhile: remove the annotation tidemark.dev/paused to go on"
        return Waiting(reason="Paused", message=text)
    topic = state.topics.get(view.topic_key)
    if view.resolved is not None:
        outcome = _outcome(state, view)
        if outcome is not None:
            return outcome
        if topic is None or topic.id != view.topic_id:
            text = (
                f"{view.topic_key} is no longer the topic that was resolved; nothing more is "
                "deleted"
            )
            return Finished(succeeded=False, reason="TopicReplaced", message=text)
        return _late(view, now_ms) or _commands(state, topic, view)
    late = _late(view, now_ms)
    if late is not None:
        return late
    if topic is None or topic.deletion_ms is not None:
        return Waiting(reason="TopicNotFound", message=f"there is no Topic {view.topic_key}")
    return queries(state, topic, view)


def _late(view: DeletionInfo, now_ms: int) -> Finished | None:
    begun_ms = view.created_ms if view.started_ms is None else view.started_ms
    if view.timeout_ms is None or now_ms < begun_ms + view.timeout_ms:
        return None
    left = "before the offsets were resolved; nothing was deleted"
    if view.resolved is not None:
        left = f"waiting for the low watermark of partitions {numbers(_open(view))}"
    return Finished(succeeded=False, reason="Timeout", message=f"timed out {left}")


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
        topic_id=topic.id,
        topic_name=topic.name,
        offsets={row.partition: resolved[row.partition].offset for row in led},
        leader_epochs={row.partition: row.leader_epoch for row in led},
        epochs={
            row.partition: resolved[row.partition].leader_epoch
            for row in led
            if row.leader_epoch > resolved[row.partition].leader_epoch
        },
    )


def command_for(
    state: ControllerState, view: DeletionInfo, node_id: int, *, now_ms: int
) -> DeleteCommand | None:
    """What that broker is to be sent by now: an answer of another one may have taken its time."""
    step = next_step(state, view, now_ms=now_ms)
    commands = step.commands if isinstance(step, Delete) else ()
    return next((each for each in commands if each.node_id == node_id), None)


def check_ends(
    view: DeletionInfo,
    command: DeleteCommand,
    starts: Mapping[int, ListedOffset],
    ends: Mapping[int, EpochEnd],
) -> tuple[DeletionInfo, dict[int, int]]:
    """Take the present leader's answers for ``command.epochs``: where its log begins (ListOffsets),
    and where the frozen epoch ends in it (OffsetForLeaderEpoch). Deleted is only what is still
    there: the last record that was meant is in the frozen epoch, or all of them are gone already.
    Where an unclean election lost them, other records may stand in their place, and are kept. Gives
    the offsets that may be deleted; a partition that did not answer is asked again."""
    resolved, progress, offsets = view.resolved or {}, dict(view.progress), dict(command.offsets)
    for part in command.epochs:
        frozen, start, end = resolved[part], starts.get(part), ends.get(part)
        if start is None or start.error_code or end is None:
            del offsets[part]
        elif start.offset < frozen.offset and not _holds(end, frozen):
            del offsets[part]
            lost_from = end.end_offset if end.epoch == frozen.leader_epoch else None
            error = _lost(lost_from, frozen.offset)
            progress[part] = dataclasses.replace(progress.get(part, Progress()), error=error)
    return dataclasses.replace(view, progress=progress), offsets


def _holds(end: EpochEnd, frozen: ResolvedOffset) -> bool:
    return end.epoch == frozen.leader_epoch and end.end_offset >= frozen.offset


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


def _lost(lost_from: int | None, offset: int) -> str:
    """``lost_from`` None: it is not known from where on."""
    return (
        f"{ErrorCode.offset_out_of_range.name.upper()}: records below {offset} were lost in an "
        f"unclean election{'' if lost_from is None else f', from {lost_from} on'}; what is written "
        "there now is kept: make another RecordDeletion to delete it"
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
