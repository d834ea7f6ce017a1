"""Conditions in Kubernetes' JSON form.

``lastTransitionTime`` moves only with ``status``, so that a status computed twice is the same
twice. kstatus reads them: of ``Stalled=True`` (failed) and ``Reconciling=True`` (in progress) the
first in the list decides, and ``Ready=False`` alone is in progress too; all three are always
written, and all carry the generation that was looked at.
"""

import dataclasses
import datetime

from tidemark.reasons import Reason
from tidemark_operator.controller.model import Json

READY = "Ready"
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
MESSAGE_CHARS_MAX = 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One observation; ``status`` is True, False or Unknown as text."""

    type: str
    status: str
    reason: str
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatusResult:
    """A whole status to be written by PUT where :class:`Pacer` says so, and one sentence for people
    (log line, ``tidemark status``)."""

    status: dict[str, object]
    sentence: str


def condition(type_: str, value: bool | None, reason: str, message: str = "") -> Condition:
    status = UNKNOWN if value is None else (TRUE if value else FALSE)
    return Condition(type=type_, status=status, reason=reason, message=message)


def summary(
    *, ready: bool, reason: str, message: str, reconciling: bool = False, stalled: bool = False
) -> list[Condition]:
    """Ready, Reconciling and Stalled of one story: the reason stands where it applies."""
    # Reconciling=False of a stalled object refers to Stalled, which has the cause.
    quiet = Reason.STALLED if stalled else Reason.SETTLED
    return [
        condition(READY, ready, reason, message),
        condition(
            "Reconciling",
            reconciling,
            reason if reconciling else quiet,
            message if reconciling else "",
        ),
        condition(
            "Stalled",
            stalled,
            reason if stalled else Reason.PROGRESSING,
            message if stalled else "",
        ),
    ]


def render(
    conditions: list[Condition], previous: Json, *, generation: int, now_ms: int
) -> list[dict[str, object]]:
    """The ``conditions`` list of a status, given the status that it replaces."""
    rendered = [_render(item, find(previous, item.type), generation, now_ms) for item in conditions]
    return stalled_first(rendered)


def stalled_first(rendered: list[dict[str, object]]) -> list[dict[str, object]]:
    """Order rendered conditions for kstatus, so that a stalled object counts as failed even while
    other parts of it are reconciled. The order changes only if both are True: an upgrade must not
    rewrite every status."""
    true = {str(item["type"]) for item in rendered if item["status"] == TRUE}
    if not {"Stalled", "Reconciling"} <= true:
        return rendered
    return sorted(rendered, key=lambda item: item["type"] == "Reconciling")


def _render(item: Condition, old: Json | None, generation: int, now_ms: int) -> dict[str, object]:
    since: object = time_text(now_ms)
    if old is not None and old.get("status") == item.status and old.get("lastTransitionTime"):
        since = old["lastTransitionTime"]
    return {
        "type": item.type,
        "status": item.status,
        "observedGeneration": generation,
        "lastTransitionTime": since,
        "reason": str(item.reason),
        "message": shorten(item.message),
    }


def find(status: Json, type_: str) -> dict[str, object] | None:
    """A condition of a status as it was read; None if it is not there."""
    conditions = status.get("conditions")
    if not isinstance(conditions, list | tuple):
        return None
    known = (item for item in conditions if isinstance(item, dict))
    return next((item for item in known if item.get("type") == type_), None)


def shorten(text: str) -> str:
    if len(text) <= MESSAGE_CHARS_MAX:
        return text
    return text[: MESSAGE_CHARS_MAX - 3] + "..."


def time_text(ms: int) -> str:
    """RFC 3339, whole seconds."""
    time = datetime.datetime.fromtimestamp(ms // 1000, datetime.UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def approximate_bytes(size: int) -> str:
    """Rounded to powers of two, so that a message does not move with every segment."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"about {1 << (size.bit_length() - 1 - power)} {unit}"
    return f"{size} bytes"
