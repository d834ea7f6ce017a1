"""Events of a broker that delay requests, and which of the slowest requests overlap them."""

import bisect
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_NS_PER_MS = 1e6
#: Groups that are printed for a measure.
LARGEST = 5


class StallEvent(NamedTuple):
    """Something that took long in a broker, in nanoseconds of CLOCK_MONOTONIC.

    Turns of the event loop also have its thread's processor time (``cpu_ns``), the time in which it
    was ready to run without a core (``queued_ns``), and the number of ``callbacks``.
    """

    kind: str
    label: str
    began_ns: int
    ended_ns: int
    cpu_ns: int = 0
    queued_ns: int = 0
    callbacks: int = 0


@dataclass(slots=True)
class StallGroup:
    """Events of the same kind and label, and how many slow requests overlap any of them."""

    kind: str
    label: str
    events: list[StallEvent] = field(default_factory=list)
    slow: int = 0

    @property
    def total_ms(self) -> float:
        """Duration of all events together."""
        return sum(event.ended_ns - event.began_ns for event in self.events) / _NS_PER_MS

    def line(self, slow_requests: int) -> str:
        """Return one line of the report."""
        longest = max(event.ended_ns - event.began_ns for event in self.events) / _NS_PER_MS
        text = f"{self.kind}, {self.label}: {len(self.events)} x, {self.total_ms:,.0f} ms"
        text += f" (longest {longest:,.1f})"
        if callbacks := sum(event.callbacks for event in self.events):
            cpu = sum(event.cpu_ns for event in self.events) / _NS_PER_MS
            queued = sum(event.queued_ns for event in self.events) / _NS_PER_MS
            blocked = max(0.0, self.total_ms - cpu - queued)
            text += f", {cpu:,.0f} on a core, {queued:,.0f} without one, {blocked:,.0f} blocked"
            text += f", {callbacks / len(self.events):,.0f} callbacks each"
        return f"{text}; {self.slow} of {slow_requests} slow requests"


def groups(
    events: Iterable[StallEvent], window: tuple[int, int], slow: Sequence[tuple[int, int]]
) -> list[StallGroup]:
    """Return the groups of events within ``window``, the one with the longest total first.

    ``slow``: (begin, end) of the requests to be explained.
    """
    found: dict[tuple[str, str], StallGroup] = {}
    for event in events:
        if event.ended_ns >= window[0] and event.began_ns <= window[1]:
            key = event.kind, event.label
            found.setdefault(key, StallGroup(*key)).events.append(event)
    for group in found.values():
        group.slow = overlapping(slow, group.events)
    return sorted(found.values(), key=lambda group: group.total_ms, reverse=True)


def overlapping(spans: Sequence[tuple[int, int]], events: Iterable[StallEvent]) -> int:
    """Return how many of the spans overlap any event. Events that touch a span do not overlap."""
    joined = list(_joined(events))
    begins = [began for began, _ in joined]
    count = 0
    for began, ended in spans:
        # The last event that begins before the span ends: earlier ones end before it does.
        index = bisect.bisect_left(begins, ended) - 1
        count += index >= 0 and joined[index][1] > began
    return count


def _joined(events: Iterable[StallEvent]) -> Iterator[tuple[int, int]]:
    """Join events that overlap, in order."""
    current: tuple[int, int] | None = None
    for event in sorted(events, key=lambda item: item.began_ns):
        if current is not None and event.began_ns <= current[1]:
            current = current[0], max(current[1], event.ended_ns)
            continue
        if current is not None:
            yield current
        current = event.began_ns, event.ended_ns
    if current is not None:
        yield current


def report(
    events: Sequence[StallEvent], window: tuple[int, int], slow: Sequence[tuple[int, int]]
) -> list[str]:
    """Return the lines of a measure: its largest groups, and the slow requests without an event."""
    ranked = groups(events, window, slow)
    within = [event for group in ranked for event in group.events]
    lines = [group.line(len(slow)) for group in ranked[:LARGEST]]
    return [
        *lines,
        f"no event: {len(slow) - overlapping(slow, within)} of {len(slow)} slow requests",
    ]


def write_events(path: Path, events: Iterable[StallEvent], dropped: int) -> None:
    """Write events for :func:`read_events`. ``dropped``: number of older ones that are missing."""
    path.write_text(json.dumps({"dropped": dropped, "events": list(events)}), encoding="utf-8")


def read_events(path: Path) -> list[StallEvent]:
    """Read the events of a broker. Raises ValueError if some are missing."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    if stored["dropped"]:
        raise ValueError(f"{path.name}: {stored['dropped']} events did not fit")
    return [StallEvent(*event) for event in stored["events"]]
