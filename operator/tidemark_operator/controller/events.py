"""Events for people, as data; the caller creates the Kubernetes Events.

One event per decision, never one per partition: partitions are counted.
"""

import dataclasses
import enum
from collections.abc import Iterable


class EventType(enum.Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Event about one object.

    ``kind`` and ``key`` ("namespace/name") name it. ``reason`` is CamelCase, ``message`` is one
    sentence.
    """

    kind: str
    key: str
    reason: str
    message: str
    type: EventType = EventType.NORMAL


def normal(kind: str, key: str, reason: str, message: str) -> Event:
    return Event(kind=kind, key=key, reason=reason, message=message)


def warning(kind: str, key: str, reason: str, message: str) -> Event:
    return Event(kind=kind, key=key, reason=reason, message=message, type=EventType.WARNING)


def numbers(values: Iterable[int], *, shown: int = 8) -> str:
    """Format numbers as ``1, 2, 3 and 4 more``, short however many there are."""
    ordered = sorted(values)
    head = ", ".join(map(str, ordered[:shown]))
    rest = len(ordered) - shown
    return f"{head} and {rest} more" if rest > 0 else head


def quoted(text: str, *, shown: int = 80) -> str:
    """Return a person's text, short enough to be part of a message."""
    return text if len(text) <= shown else f"{text[:shown]}… ({len(text)} characters)"


def count(number: int, noun: str) -> str:
    """Format ``1 partition``, ``2 partitions``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
