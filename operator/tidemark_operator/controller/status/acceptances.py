"""Consents that a person gave by annotation, as recorded in a status: the latest few."""

from collections.abc import Mapping, Sequence

from tidemark_operator.controller.model import ACCEPTED_CHARS_MAX, Acceptance
from tidemark_operator.controller.status.conditions import time_text

#: Maximum of the schema.
ACCEPTED_MAX = 16


def recorded(
    status: Mapping[str, object], accepted: Sequence[Acceptance], *, now_ms: int
) -> list[object]:
    """Return a status's records with the new ones added."""
    kept = status.get("accepted")
    former = list(kept) if isinstance(kept, list | tuple) else []
    return [*former, *(_record(acceptance, now_ms) for acceptance in accepted)][-ACCEPTED_MAX:]


def _record(accepted: Acceptance, now_ms: int) -> dict[str, object]:
    return {
        "annotation": accepted.annotation,
        "value": accepted.value[:ACCEPTED_CHARS_MAX],
        "effect": accepted.effect[:ACCEPTED_CHARS_MAX],
        "time": time_text(now_ms),
    }
