"""An object in every state that the table of reasons knows, as the operator would write it."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tidemark.reason_table import TABLE
from tidemark_operator.controller.status.conditions import (
    ConditionValue,
    condition,
    render,
    summary,
)
from tools.argocd_files import KINDS

GENERATION = 3
NOW_MS = 1_800_000_000_000


def in_every_state(heading: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return (reason, object) for each reason under a heading of the table, and each of its kinds.

    Conditions that the reason does not occur in are good.
    """
    kinds = [
        kind for kind in KINDS if heading == "Every kind" or re.search(rf"\b{kind}\b", heading)
    ]
    for reason, entry in TABLE[heading].items():
        conditions = _of_row(entry.conditions, reason)
        for kind in kinds:
            foreign = "Ready" if kind == "RecordDeletion" else "Succeeded"
            ours = [item for item in conditions if item.type != foreign]
            yield reason, body(kind, status(kind, ours))


def status(
    kind: str, conditions: Sequence[ConditionValue], *, generation: int = GENERATION
) -> dict[str, Any]:
    """A good status, with these conditions instead of its own."""
    good = summary(ready=True, reason="Serving", message="well")
    if kind == "RecordDeletion":
        good[0] = condition("Succeeded", True, "Deleted", "gone")
    merged = {item.type: item for item in [*good, *conditions]}
    rendered = render(list(merged.values()), {}, generation=generation, now_ms=NOW_MS)
    return {"observedGeneration": generation, "conditions": rendered}


def body(kind: str, its_status: Any, *, generation: int = GENERATION) -> dict[str, Any]:
    """An object, as JSON would have it."""
    metadata = {"name": "it", "namespace": "ns", "generation": generation}
    made = {"apiVersion": "tidemark.dev/v1alpha1", "kind": kind, "metadata": metadata}
    plain: dict[str, Any] = json.loads(
        json.dumps(made | ({} if its_status is None else {"status": its_status}))
    )
    return plain


def _of_row(text: str, reason: str) -> list[ConditionValue]:
    """Return the conditions of a reason from its row of the table."""
    values = {"True": True, "False": False, "Unknown": None}
    named = re.findall(r"\b([A-Z][A-Za-z]+)(?:=(True|False|Unknown))?(?=[,; ]|$)", text)
    found = [
        condition(name, values[value or "True"], reason, "said")
        for name, value in named
        if value or name == "Succeeded"
    ]
    if not found:
        raise ValueError(f"no condition can be read out of {text!r}")
    return found
