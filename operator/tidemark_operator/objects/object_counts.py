"""What objects say of themselves, counted as they change: there are thousands of them, and whoever
asks for the page of metrics does so every few seconds.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tidemark.reasons import Reason
from tidemark_operator.kube.kinds import RECORD_DELETION, Json, Key, key_of

#: (kind, type, status, reason) of a condition.
Said = tuple[str, str, str, str]


class Tally:
    """Of the objects of one store. ``conditions``: how many objects say each of them;
    ``under_way``: when the RecordDeletions were made that have not ended, and are not paused."""

    def __init__(self) -> None:
        self.conditions: Counter[Said] = Counter()
        self.under_way: dict[Key, str] = {}

    def change(self, before: Json | None, now: Json | None) -> None:
        """An object was ``before`` and is ``now``; None: it is not there."""
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
        for said in _said(body):
            self.conditions[said] += step
            if not self.conditions[said]:
                del self.conditions[said]


def _conditions(body: Json) -> list[Any]:
    return (body.get("status") or {}).get("conditions") or []


def _said(body: Json) -> Iterator[Said]:
    for each in _conditions(body):
        yield body["kind"], each.get("type", ""), each.get("status", ""), each.get("reason", "")


def _is_under_way(deletion: Json) -> bool:
    found = next((each for each in _conditions(deletion) if each.get("type") == "Succeeded"), None)
    return found is None or (found["status"] == "Unknown" and found["reason"] != Reason.PAUSED)
