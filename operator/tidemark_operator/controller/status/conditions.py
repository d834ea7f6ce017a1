"""Conditions in Kubernetes' JSON form.

``lastTransitionTime`` changes only with ``status``, so that repeated computation yields the same
status. kstatus reads the list: the first of ``Stalled=True`` (failed) and ``Reconciling=True`` (in
progress) decides, and ``Ready=False`` alone also means in progress. All three are always written,
with the generation that was observed.
"""

import dataclasses
import datetime
from collections.abc import Collection, Mapping, Sequence

from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark_operator.controller.state.model import ACCEPTED_CHARS_MAX, Acceptance, Json

READY = "Ready"
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
MESSAGE_CHARS_MAX = 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConditionValue:
    """A condition; ``status`` is True, False or Unknown as text."""

    type: str
    status: str
    reason: str
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatusResult:
    """A whole status, to be written by PUT when :class:`Pacer` allows it, and its summary
    sentence.
    """

    status: dict[str, object]
    sentence: str


def condition(type_: str, value: bool | None, reason: str, message: str = "") -> ConditionValue:
    status = UNKNOWN if value is None else (TRUE if value else FALSE)
    return ConditionValue(type=type_, status=status, reason=reason, message=message)


def summary(
    *, ready: bool, reason: str, message: str, reconciling: bool = False, stalled: bool = False
) -> list[ConditionValue]:
    """Return Ready, Reconciling and Stalled; those that apply have ``reason`` and ``message``.

    Ready=False goes with Reconciling=True (resolves itself) or Stalled=True (a person has to act),
    as kstatus requires.
    """
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


def with_cause(
    conditions: list[ConditionValue],
    cause: ConditionValue,
    *,
    reconciling: Collection[str],
    stalled: Collection[str],
) -> list[ConditionValue]:
    """Add a condition that may be the cause of Reconciling or Stalled, by its reason.

    The first three of ``conditions`` are Ready, Reconciling and Stalled. Another reason of the
    object itself has precedence.
    """
    found = list(conditions)
    for place, name, reasons in ((1, "Reconciling", reconciling), (2, "Stalled", stalled)):
        if cause.reason in reasons and found[place].status != TRUE:
            found[place] = condition(name, True, cause.reason, cause.message)
    return [*found, cause]


def render(
    conditions: list[ConditionValue], previous: Json, *, generation: int, now_ms: int
) -> list[dict[str, object]]:
    """Return the ``conditions`` list of a status, given the status that it replaces."""
    rendered = [_render(item, find(previous, item.type), generation, now_ms) for item in conditions]
    return stalled_first(rendered)


def stalled_first(rendered: list[dict[str, object]]) -> list[dict[str, object]]:
    """Order rendered conditions for kstatus, so that a stalled object counts as failed.

    That matters while other parts of it are reconciled. The order changes only if both are True: an
    upgrade must not rewrite every status.
    """
    true = {str(item["type"]) for item in rendered if item["status"] == TRUE}
    if not {"Stalled", "Reconciling"} <= true:
        return rendered
    return sorted(rendered, key=lambda item: item["type"] == "Reconciling")


def _render(
    item: ConditionValue, old: Json | None, generation: int, now_ms: int
) -> dict[str, object]:
    """Return a condition as it is written to a status.

    ``old`` is the condition of the same type in the present status, None without one.
    """
    # lastTransitionTime changes with the status of the condition, not with its message.
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
    """Return a condition of a status as it was read; None if it is missing."""
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
    """Format a time as RFC 3339 in whole seconds."""
    time = datetime.datetime.fromtimestamp(ms // 1000, datetime.UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def approximate_bytes(size: int) -> str:
    """Format a size rounded to a power of two, so that a message does not change with every
    segment.
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"about {1 << (size.bit_length() - 1 - power)} {unit}"
    return count(size, "byte")


#: Maximum of the schema.
ACCEPTED_MAX = 16


def with_acceptances(
    status: Mapping[str, object], accepted: Sequence[Acceptance], *, now_ms: int
) -> list[object]:
    """Return a status's records with the new ones added."""
    kept = status.get("accepted")
    former = list(kept) if isinstance(kept, list | tuple) else []
    return [*former, *(_acceptance(acceptance, now_ms) for acceptance in accepted)][-ACCEPTED_MAX:]


def _acceptance(accepted: Acceptance, now_ms: int) -> dict[str, object]:
    return {
        "annotation": accepted.annotation,
        "value": accepted.value[:ACCEPTED_CHARS_MAX],
        "effect": accepted.effect[:ACCEPTED_CHARS_MAX],
        "time": time_text(now_ms),
    }
