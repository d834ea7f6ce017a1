"""Counts of the conditions in objects, updated as objects change.

There are thousands of objects, and the metrics page is read every few seconds, so counting on each
read would cost too much.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tidemark.reasons import Reason
from tidemark_operator.kube.kinds import RECORD_DELETION, Json, Key, key_of

#: (kind, type, status, reason) of a condition.
ConditionValue = tuple[str, str, str, str]


class ObjectCounts:
    """Counts of one store.

    ``conditions``: number of objects with each condition. ``under_way``: creation times of the
    RecordDeletions that have not ended and are not paused.
    """

    def __init__(self) -> None:
        self.conditions: Counter[ConditionValue] = Counter()
        self.under_way: dict[Key, str] = {}

    def change(self, before: Json | None, now: Json | None) -> None:
        """Count the change of an object from ``before`` to ``now``; None: it does not exist."""
        if before is not None:
            self._count(before, -1)
        if now is not None:
            self._count(now, 1)
        body = now or before
        if body is not None and body["kind"] == RECORD_DELETION.kind:
            self.under_way.pop(key_of(body), None)
            if now is not None and _is_under_way(now):
                self.under_way[key_of(now)] = str(now["metadata"]["creationTimestamp"])

    def _count(self, body: Json, step: int) -> None:
        for value in _values(body):
            self.conditions[value] += step
            # Without this, reasons that no object has any more would stay in memory.
            if not self.conditions[value]:
                del self.conditions[value]


def _conditions(body: Json) -> list[Any]:
    return (body.get("status") or {}).get("conditions") or []


def _values(body: Json) -> Iterator[ConditionValue]:
    for condition in _conditions(body):
        yield (
            body["kind"],
            condition.get("type", ""),
            condition.get("status", ""),
            condition.get("reason", ""),
        )


def _is_under_way(deletion: Json) -> bool:
    conditions = _conditions(deletion)
    found = next((item for item in conditions if item.get("type") == "Succeeded"), None)
    return found is None or (found["status"] == "Unknown" and found["reason"] != Reason.PAUSED)
