"""What one Spark task reads: a run of remote segments, or a piece of the local tail.

Pure: the plan of a read is made from what was pinned (the manifest's ranges and the end offset),
so that every offset between start and end is read by exactly one task (invariants 5 and 26).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemark.tier.queries import SegmentRange


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """Segments that one task reads, in offset order, with the version that they were planned by."""

    partition: int
    head_version: int
    ranges: tuple[SegmentRange, ...]


@dataclass(frozen=True, slots=True)
class TailTask:
    """Offsets that are on brokers only; ``end_offset`` is exclusive."""

    partition: int
    start_offset: int
    end_offset: int


Task = RemoteTask | TailTask


class HoleInPlan(ValueError):
    """The tier does not answer for every offset between start and end; nothing was read."""


def split_remote(
    partition: int, head_version: int, ranges: Sequence[SegmentRange], task_bytes: int
) -> Iterator[RemoteTask]:
    """Group consecutive ranges until a task has at least ``task_bytes`` to read."""
    group: list[SegmentRange] = []
    size = 0
    for part in ranges:
        group.append(part)
        size += part.entry.size_bytes
        if size >= task_bytes:
            yield RemoteTask(partition, head_version, tuple(group))
            group, size = [], 0
    if group:
        yield RemoteTask(partition, head_version, tuple(group))


def remote_end(ranges: Sequence[SegmentRange], start: int) -> int:
    """The offset behind the last range; ``start`` where there is none.

    Raises :class:`HoleInPlan` unless the ranges follow each other without gap or overlap.
    """
    expected = start
    for part in ranges:
        if part.from_offset != expected:
            raise HoleInPlan(
                f"the manifest answers for offset {part.from_offset} where {expected} was expected"
            )
        expected = part.to_offset_inclusive + 1
    return expected
