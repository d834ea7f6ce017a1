"""One Spark task: a run of remote segments, or a piece of the local tail.

This module does no I/O. A plan uses only pinned values (the manifest's ranges and the end offset),
so that exactly one task reads each offset between start and end (invariants 5 and 26).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemark.tier.metadata.queries import SegmentRange


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """Remote segments that one Spark task reads, in offset order.

    ``ranges``: each segment with the offsets to read.
    """

    partition: int
    ranges: tuple[SegmentRange, ...]


@dataclass(frozen=True, slots=True)
class TailTask:
    """Offsets that are on brokers only; ``end_offset`` is exclusive."""

    partition: int
    start_offset: int
    end_offset: int


Task = RemoteTask | TailTask


class MissingOffsets(ValueError):
    """The tier lacks an offset between start and end, and no brokers are read."""


def cut(
    partition: int,
    start: int,
    end: int,
    ranges: Sequence[SegmentRange],
    *,
    brokers: bool,
    task_bytes: int,
    since_ms: int | None = None,
    over_ms: int | None = None,
) -> Iterator[Task]:
    """Divide the offsets from ``start`` to ``end`` (exclusive) of a partition into tasks.

    ``ranges``: the tier's segments between the two, in order. Offsets before and after them are
    read from ``brokers`` if there are any. ``task_bytes``: target size of a remote task. Segments
    without a record of ``since_ms`` or later are left out, as is everything after the first segment
    with a record later than ``over_ms`` (None: no bound). Otherwise each offset is in exactly one
    task. Raises :class:`MissingOffsets`.
    """
    # The tier covers the offsets from ``first`` to ``behind`` (exclusive). Without ranges both are
    # the end, so brokers read everything.
    first = ranges[0].from_offset if ranges else end
    behind = _end_of(ranges, first)
    # Without brokers the tier must have every offset; a shorter result would be silent loss.
    if not brokers and (first > start or behind < end):
        missing = start if first > start else behind
        raise MissingOffsets(
            f"partition {partition}: the tier does not have offset {missing}, and no brokers are "
            "named: give 'bootstrap'"
        )
    # Offsets below the tier's first one are on brokers only.
    if start < first:
        yield TailTask(partition, start, first)
    # The segment that exceeds over_ms is still read: it may contain records within the limit.
    over = next((n for n, part in enumerate(ranges, 1) if _is_over(part, over_ms)), None)
    selected = [
        part
        for part in ranges[:over]
        if since_ms is None or part.entry.max_timestamp_ms >= since_ms
    ]
    yield from split_remote(partition, selected, task_bytes)
    # Brokers have only later records than a segment that already exceeds over_ms.
    if behind < end and over is None:
        yield TailTask(partition, behind, end)


def split_remote(
    partition: int, ranges: Sequence[SegmentRange], task_bytes: int
) -> Iterator[RemoteTask]:
    """Group consecutive ranges until a task has at least ``task_bytes`` to read."""
    group: list[SegmentRange] = []
    size = 0
    for part in ranges:
        group.append(part)
        size += bytes_of(part)
        if size >= task_bytes:
            yield RemoteTask(partition, tuple(group))
            group, size = [], 0
    if group:
        yield RemoteTask(partition, tuple(group))


def bytes_of(part: SegmentRange) -> int:
    """Return the approximate number of bytes that are read of the range's segment."""
    entry = part.entry
    offsets = part.to_offset_inclusive + 1 - part.from_offset
    # Records are assumed to be of equal size, since the indexes are not read for a plan.
    return entry.size_bytes * offsets // (entry.end_offset_inclusive + 1 - entry.start_offset)


def _is_over(part: SegmentRange, over_ms: int | None) -> bool:
    return over_ms is not None and part.entry.max_timestamp_ms > over_ms


def _end_of(ranges: Sequence[SegmentRange], first: int) -> int:
    """Return the offset after the last range.

    Raises :class:`MissingOffsets` unless the ranges follow each other without gap or overlap.
    """
    expected = first
    for part in ranges:
        if part.from_offset != expected:
            raise MissingOffsets(
                f"the manifest answers for offset {part.from_offset} where {expected} was expected"
            )
        expected = part.to_offset_inclusive + 1
    return expected
