"""Grace period of a Topic's deletion (``spec.deletionGracePeriod``).

Kubernetes cannot cancel a deletion, but the object stays as long as it has a finalizer. Until the
grace period ends, the operator serves the topic as before, and ``deletionPolicy: Orphan`` keeps it.

The end is the deletion timestamp plus the period, so every operator computes the same. The start of
the deletion is recorded in the status before anything is deleted. A clock that is set back later
therefore does not turn a half-deleted topic into one that is served.
"""

import uuid

from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.ids import id_text
from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event, warning
from tidemark_operator.controller.state.model import Json, TopicInfo
from tidemark_operator.controller.status.conditions import approximate_bytes, time_text

#: Field of the status.
DELETION = "deletion"
#: Longest time until the clock is read again, because it may be set.
_RECHECK_MAX_MS = 60_000
_RECHECK_MIN_MS = 1_000


def pending_text(topic: TopicInfo) -> str:
    """Return the conditions' message of a Topic in its grace period, "" for any other."""
    if topic.deletion_due_ms is None:
        return ""
    return (
        f"the topic and its data are deleted at {time_text(topic.deletion_due_ms)}, when "
        f"spec.deletionGracePeriod ({topic.deletion_grace}) ends. Until then it is served. To keep "
        "the topic, set deletionPolicy: Orphan. To delete it now, set deletionGracePeriod: 0s"
    )


def status_field(topic: TopicInfo, *, now_ms: int) -> Json | None:
    """Return ``status.deletion``; None if there is no grace period.

    ``started`` lets the deletion start, as soon as the operator reads it from the object.
    """
    former = topic.status.get(DELETION)
    if topic.deletion_due_ms is None:
        # A deletion that has started stays so, although a protection may hold it back. A restored
        # status may be of another object.
        is_deleted = topic.deletion_ms is not None or topic.deletion_blocked
        if is_deleted and isinstance(former, dict) and former.get("started"):
            return former
        return None
    field: dict[str, object] = {"due": time_text(topic.deletion_due_ms)}
    if now_ms >= topic.deletion_due_ms:
        field["started"] = True
    return field


def recheck_s(topic: TopicInfo, delay_s: float | None, *, now_ms: int) -> float | None:
    """Return the seconds until the next reconciliation: ``delay_s``, or sooner if a grace period
    ends."""
    # A pause ends with a change of the object.
    if topic.deletion_due_ms is None or topic.paused:
        return delay_s
    # At the end the status is written, and the object is read with it a moment later.
    left_ms = min(topic.deletion_due_ms - now_ms, _RECHECK_MAX_MS)
    due_s = max(left_ms, _RECHECK_MIN_MS) / 1000
    return due_s if delay_s is None else min(delay_s, due_s)


class GraceAnnouncements:
    """Events of the grace periods that one term has announced.

    Each term announces every pending deletion once: its predecessor may have stopped between the
    write of the status and that of the Event, and Kubernetes deletes Events after an hour.
    """

    def __init__(self) -> None:
        #: Announced ends by the uid of the Topic.
        self._due: dict[uuid.UUID, str] = {}

    def news(self, state: ControllerState, topic: TopicInfo, status: Json) -> tuple[Event, ...]:
        """Return the Event of a grace period that is new in this term, or has another end."""
        field = status.get(DELETION)
        due = field.get("due") if isinstance(field, dict) and not field.get("started") else None
        if due is None:
            self._due.pop(topic.uid, None)
            return ()
        if self._due.get(topic.uid) == due:
            return ()
        self._due[topic.uid] = due
        return (_event(state, topic, due),)


def _event(state: ControllerState, topic: TopicInfo, due: str) -> Event:
    namespace, _, name = topic.key.rpartition("/")
    orphan = '{"spec":{"deletionPolicy":"Orphan"}}'
    text = (
        f"topic {topic.name} is deleted at {due} (spec.deletionGracePeriod "
        f"{topic.deletion_grace}): {_extent(state, topic)}. To keep it: kubectl --namespace "
        f"{namespace} patch topics.tidemark.dev {name} --type merge --patch '{orphan}'. Then "
        f"apply its manifest again with the annotation {ADOPT_TOPIC_ID}: {id_text(topic.id)}"
    )
    return warning("Topic", topic.key, Reason.DELETION_PENDING, text)


def _extent(state: ControllerState, topic: TopicInfo) -> str:
    """Describe the data that a deletion removes, as far as leaders have reported it."""
    rows = state.rows_of(topic.id)
    partitions = count(max(len(rows), topic.partitions_placed), "partition")
    reports = [report for part in rows if (report := state.reports.get((topic.id, part)))]
    if not reports:
        return partitions
    # Offsets without a record (of transactions, or compacted ones) count as well.
    records = sum(
        max(report.high_watermark - report.log_start_offset, 0)
        for report in reports
        if not report.offline
    )
    local = approximate_bytes(sum(report.local_bytes for report in reports))
    text = f"{partitions}, at most {count(records, 'record')}, {local} in the leaders' logs"
    if topic.tiering.ever_tiered:
        remote = approximate_bytes(sum(report.remote_bytes for report in reports))
        text += f" and {remote} in the remote tier"
    return text
