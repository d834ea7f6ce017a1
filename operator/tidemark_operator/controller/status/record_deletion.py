"""Status of a RecordDeletion: frozen offsets, low watermarks, Succeeded (Unknown while it runs)."""

from tidemark.ids import id_text
from tidemark.message_text import numbered
from tidemark.reasons import Reason
from tidemark.wire.deletions import DeletionPoint
from tidemark_operator.controller.record_deletion import (
    DeletionInfo,
    DeletionProgress,
    DeletionWait,
    Finished,
    Resolve,
    Step,
)
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.status.conditions import (
    ConditionValue,
    StatusResult,
    condition,
    render,
    time_text,
)


def deletion_status(
    state: ControllerState, view: DeletionInfo, step: Step, *, now_ms: int
) -> StatusResult:
    """Return the status of a RecordDeletion at a step.

    ``completionTime`` is the stored one, or now if the step finishes the deletion.
    """
    conditions = _conditions(step)
    status: dict[str, object] = dict(view.status)
    status["observedGeneration"] = view.generation
    status["controllerEpoch"] = state.controller_epoch
    # Offsets are shown only once they are frozen, together with their topic.
    if view.resolved is not None and view.topic_id is not None:
        status["topicId"] = id_text(view.topic_id)
        status.update(_numbers(view))
    if view.started_ms is not None:
        status["startTime"] = time_text(view.started_ms)
    if isinstance(step, Finished):
        end_ms = now_ms if view.finished_ms is None else view.finished_ms
        status["completionTime"] = time_text(end_ms)
    status["conditions"] = render(
        conditions, view.status, generation=view.generation, now_ms=now_ms
    )
    sentence = f"record deletion {view.key}: {conditions[0].message or conditions[0].reason}"
    return StatusResult(status=status, sentence=sentence)


def _numbers(view: DeletionInfo) -> dict[str, object]:
    resolved = view.resolved or {}
    body: dict[str, object] = {"records": view.records or 0}
    if view.size_bytes is not None:
        body["bytes"] = view.size_bytes
    body["resolved"] = [_resolved(resolved[part]) for part in sorted(resolved)]
    body["partitions"] = [
        _progress(part, view.progress.get(part, DeletionProgress())) for part in sorted(resolved)
    ]
    return body


def _resolved(point: DeletionPoint) -> dict[str, object]:
    """Return a frozen offset; values that an earlier version did not record stay absent."""
    body: dict[str, object] = {
        "partition": point.partition,
        "offset": point.offset,
        "leaderEpoch": point.last_epoch,
    }
    if point.log_start_offset >= 0:
        body["records"] = point.offset - point.log_start_offset
    if point.size_bytes >= 0:
        body["bytes"] = point.size_bytes
    return body


def _progress(partition: int, progress: DeletionProgress) -> dict[str, object]:
    body: dict[str, object] = {"partition": partition}
    if progress.low_watermark is not None:
        body["lowWatermark"] = progress.low_watermark
    if progress.error:
        body["error"] = progress.error
    return body


def _conditions(step: Step) -> list[ConditionValue]:
    """Return Succeeded, Reconciling and Stalled of a RecordDeletion.

    For kstatus, Reconciling means in progress and Stalled means failed.
    """
    if isinstance(step, Finished):
        failed = not step.succeeded
        return [
            condition("Succeeded", step.succeeded, step.reason, step.message),
            condition("Reconciling", False, Reason.FINISHED),
            condition("Stalled", failed, step.reason, step.message if failed else ""),
        ]
    reason, text = _running(step)
    return [
        condition("Succeeded", None, reason, text),
        condition("Reconciling", True, reason, text),  # paused as well: it is not finished
        condition("Stalled", False, Reason.PROGRESSING),
    ]


def _running(step: Step) -> tuple[str, str]:
    if isinstance(step, DeletionWait):
        return step.reason, step.message
    if isinstance(step, Resolve):
        return Reason.RESOLVING, "waiting for the leaders' offsets"
    if isinstance(step, Finished):
        return step.reason, step.message
    text = f"waiting for the low watermark of {numbered('partition', step.pending)}"
    return Reason.DELETING, f"{text}; {step.problem}" if step.problem else text
