"""Conditions of a query's WHERE on partitions, offsets and times, which reduce what is read.

This module does no I/O. A filter only narrows the plan: Spark receives every filter back and
applies it to the rows again. So a filter may be understood partly or not at all, which costs only
time. An upper bound of the timestamp narrows only if the options state how far records are out of
order, as a segment's manifest entry has its largest timestamp but not its smallest.
"""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS = datetime.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Bounds of the rows that pass; None: no bound.

    ``first_offset`` and ``last_offset`` are inclusive. ``since_ms``: this time or later.
    ``until_ms``: this time or earlier.
    """

    topics: frozenset[object] | None = None
    partitions: frozenset[object] | None = None
    first_offset: int = 0
    last_offset: int = 2**63 - 2
    since_ms: int | None = None
    until_ms: int | None = None

    def has(self, topic: str, partition: int) -> bool:
        """Return whether a row of this partition can pass."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )


NO_NARROWING = Narrowing()


def narrow(filters: Iterable[object]) -> Narrowing:
    """Return the narrowing of Spark's filters, all of which a row must pass.

    Filters that compare a column have ``attribute`` (its path) and ``value``, a list for ``In``.
    """
    narrowing = NO_NARROWING
    for pushed in filters:
        column: tuple[str, ...] = getattr(pushed, "attribute", ())
        # Filters on nested fields and those without a value do not narrow anything.
        if len(column) == 1 and hasattr(pushed, "value"):
            narrowing = _narrow(narrowing, column[0].lower(), type(pushed).__name__, pushed.value)
    return narrowing


def _narrow(narrowing: Narrowing, column: str, kind: str, value: object) -> Narrowing:
    """Return the bounds after one more filter of the query's WHERE.

    ``column``: name of the compared column. ``kind``: class name of Spark's filter, such as
    ``GreaterThan``. An unknown filter changes nothing, because Spark applies all filters again.
    """
    # Spark's column names are case-insensitive. Filters are combined with AND, so bounds only
    # tighten.
    match column:
        case "topic":
            return replace(narrowing, topics=_among(narrowing.topics, kind, value))
        case "partition":
            return replace(narrowing, partitions=_among(narrowing.partitions, kind, value))
        case "offset":
            # A missing bound leaves the one that is already found.
            least, most = _bounds(kind, value, 1)
            return replace(
                narrowing,
                first_offset=max(narrowing.first_offset, least or 0),
                last_offset=narrowing.last_offset
                if most is None
                else min(narrowing.last_offset, most),
            )
        case "timestamp":
            # Both bounds are inclusive, also for strict comparisons: Spark removes the rows in
            # excess.
            since, until = _bounds(kind, value, 0)
            return replace(
                narrowing,
                since_ms=max(_known(narrowing.since_ms, since), default=None),
                until_ms=min(_known(narrowing.until_ms, until), default=None),
            )
    return narrowing


def _among(allowed: frozenset[object] | None, kind: str, value: object) -> frozenset[object] | None:
    values: frozenset[object]
    if kind in {"EqualTo", "EqualNullSafe"}:
        values = frozenset((value,))
    elif kind == "In" and isinstance(value, (list, tuple)):
        values = frozenset(value)
    else:
        return allowed
    return values if allowed is None else allowed & values


def _bounds(kind: str, value: object, step: int) -> tuple[int | None, int | None]:
    """Return the least and the greatest number that pass a filter; None means no bound.

    ``step``: what a strict comparison excludes, 1 for offsets. It is 0 for times, as a time is
    rounded down to the record's millisecond and Spark compares the microseconds itself.
    """
    if kind == "In" and isinstance(value, (list, tuple)):
        numbers = [number for item in value if (number := _number(item)) is not None]
        # Values of another type never equal an offset or a time.
        return (min(numbers), max(numbers)) if numbers else (None, None)
    number = _number(value)
    if number is None:
        return None, None
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return number, number
        case "GreaterThan":
            return number + step, None
        case "GreaterThanOrEqual":
            return number, None
        case "LessThan":
            return None, number - step
        case "LessThanOrEqual":
            return None, number
    return None, None


def _number(value: object) -> int | None:
    """Return an offset, or a time in milliseconds; None for other types."""
    if not isinstance(value, datetime.datetime):
        return value if isinstance(value, int) else None
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.UTC)
    # Rounded down, as records have whole milliseconds.
    return (value - _EPOCH) // _MS


def _known(*times: int | None) -> list[int]:
    return [time for time in times if time is not None]
