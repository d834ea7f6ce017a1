"""Events for people, as data; the caller creates the Kubernetes Events.

One event per decision, never one per partition: partitions are counted.
"""

import dataclasses
import enum


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
