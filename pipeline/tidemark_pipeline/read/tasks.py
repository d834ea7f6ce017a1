"""One Spark task: a run of remote segments, or a piece of the local tail.

This module does no I/O. A plan uses only pinned values (the manifest's ranges and the end offset),
so that exactly one task reads each offset between start and end (invariants 5 and 26). Ranges are
consumed as they are read and kept compressed, because a manifest may have a million segments.
"""

import itertools
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import cramjam

from tidemark.tier.metadata.queries import SegmentRange
from tidemark.tier.metadata.segment import DigestAlgorithm, Digests, SegmentEntry, SegmentState

#: Least bytes of a part of a segment that is a task: each part also reads the segment's indexes.
LEAST_PART_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """Remote segments that one Spark task reads, in offset order.

    ``packed``: each segment with the offsets to read, see :meth:`of`. ``size_bytes``: approximate
    bytes to read.
    """

    partition: int
    packed: bytes
    size_bytes: int

    @classmethod
    def of(cls, partition: int, ranges: Sequence[SegmentRange]) -> "RemoteTask":
        """Return the task that reads these ranges, which it keeps in about 150 bytes each."""
        rows = tuple(map(_row_of, ranges))
        packed = bytes(cramjam.zstd.compress(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL), 1))
        return cls(partition, packed, sum(map(bytes_of, ranges)))

    @property
    def ranges(self) -> tuple[SegmentRange, ...]:
        """Return each segment with the offsets to read."""
        return tuple(_range_of(*row) for row in pickle.loads(cramjam.zstd.decompress(self.packed)))


def _row_of(part: SegmentRange) -> tuple[object, ...]:
    # Plain values are pickled ten times as fast as objects.
    entry = part.entry
    return (
        part.from_offset,
        part.to_offset_inclusive,
        entry.segment_id.bytes,
        entry.start_offset,
        entry.end_offset_inclusive,
        entry.from_offset,
        entry.max_timestamp_ms,
        entry.size_bytes,
        entry.broker_id,
        entry.event_time_ms,
        entry.leader_epochs,
        entry.leader_epoch,
        entry.tiered_epoch,
        entry.key,
        int(entry.state),
        entry.custom_metadata,
        entry.marked_at_ms,
        None
        if entry.digests is None
        else (str(entry.digests.algorithm), entry.digests.log, entry.digests.aux),
    )


def _range_of(
    from_offset: int,
    to_offset_inclusive: int,
    segment_id: bytes,
    start_offset: int,
    end_offset_inclusive: int,
    entry_from_offset: int,
    max_timestamp_ms: int,
    size_bytes: int,
    broker_id: int,
    event_time_ms: int,
    leader_epochs: tuple[tuple[int, int], ...],
    leader_epoch: int,
    tiered_epoch: int,
    key: str,
    state: int,
    custom_metadata: bytes | None,
    marked_at_ms: int | None,
    digests: tuple[str, bytes, bytes] | None,
) -> SegmentRange:
    """Return the range of a row of :func:`_row_of`."""
    # The fields of the manifest's entry, whose ``from_offset`` is not that of the range.
    entry = SegmentEntry(
        segment_id=uuid.UUID(bytes=segment_id),
        start_offset=start_offset,
        end_offset_inclusive=end_offset_inclusive,
        from_offset=entry_from_offset,
        max_timestamp_ms=max_timestamp_ms,
        size_bytes=size_bytes,
        broker_id=broker_id,
        event_time_ms=event_time_ms,
        leader_epochs=leader_epochs,
        leader_epoch=leader_epoch,
        tiered_epoch=tiered_epoch,
        key=key,
        state=SegmentState(state),
        custom_metadata=custom_metadata,
        marked_at_ms=marked_at_ms,
        digests=None if digests is None else Digests(DigestAlgorithm(digests[0]), *digests[1:]),
    )
    # The offsets that the task reads of this segment.
    return SegmentRange(entry, from_offset, to_offset_inclusive)


@dataclass(frozen=True, slots=True)
class TailTask:
    """Offsets that are on brokers only; ``end_offset`` is exclusive."""

    partition: int
    start_offset: int
    end_offset: int


Task = RemoteTask | TailTask


def _has_digests(entry: SegmentEntry) -> bool:
    # Without digests a part cannot be verified alone, so its reader would read the whole segment.
    return entry.digests is not None


class MissingOffsets(ValueError):
    """The tier lacks an offset between start and end, and no brokers are read."""


def cut(
    partition: int,
    start: int,
    end: int,
    ranges: Iterable[SegmentRange],
    *,
    brokers: bool,
    task_bytes: int,
    reads_parts: Callable[[SegmentEntry], bool] = _has_digests,
    since_ms: int | None = None,
    over_ms: int | None = None,
) -> Iterator[Task]:
    """Divide the offsets from ``start`` to ``end`` (exclusive) of a partition into tasks.

    ``ranges``: the tier's segments between the two, in order. Offsets before and after them are
    read from ``brokers`` if there are any. ``task_bytes``: target size of a remote task.
    ``reads_parts``: whether several tasks may read a segment. Segments without a record of
    ``since_ms`` or later are left out, as is everything after the first segment with a record later
    than ``over_ms`` (None: no bound). Otherwise each offset is in exactly one task. Raises
    :class:`MissingOffsets`.
    """
    # The tier covers the offsets from ``first``. Without ranges that is the end, so brokers read
    # everything.
    line = _Line(ranges, over_ms)
    first = end if line.first is None else line.first.from_offset
    if start < first:
        # Without brokers the tier must have every offset; a shorter result would be silent loss.
        if not brokers:
            raise _missing(partition, start)
        # Offsets below the tier's first one are on brokers only.
        yield TailTask(partition, start, first)
    selected = (
        part for part in line if since_ms is None or part.entry.max_timestamp_ms >= since_ms
    )
    yield from split_remote(partition, selected, task_bytes, reads_parts)
    # Brokers have only later records than a segment that already exceeds over_ms.
    behind = first if line.behind is None else line.behind
    if behind < end and not line.is_over:
        if not brokers:
            raise _missing(partition, behind)
        yield TailTask(partition, behind, end)


class _Line:
    """Ranges up to the first one with a record later than ``over_ms``, checked to be contiguous.

    ``behind``: offset after the last one that was consumed.
    """

    def __init__(self, ranges: Iterable[SegmentRange], over_ms: int | None) -> None:
        self._ranges, self._over_ms = iter(ranges), over_ms
        self.first = next(self._ranges, None)
        self.behind: int | None = None
        self.is_over = False

    def __iter__(self) -> Iterator[SegmentRange]:
        """Yield the ranges. Raises :class:`MissingOffsets` at a gap or an overlap."""
        if self.first is None:
            return
        for part in itertools.chain([self.first], self._ranges):
            if self.behind is not None and part.from_offset > self.behind:
                raise MissingOffsets(
                    "segments of the tier are missing: offset "
                    f"{part.from_offset} follows where {self.behind} was expected. Restore their "
                    f"objects, or start to read at {part.from_offset} (startingOffsets)"
                )
            if self.behind is not None and part.from_offset < self.behind:
                raise MissingOffsets(
                    f"the manifest answers for offset {part.from_offset} where {self.behind} was "
                    "expected"
                )
            self.behind = part.to_offset_inclusive + 1
            yield part
            # The segment that exceeds over_ms is still read: it may contain records within the
            # limit.
            if self._over_ms is not None and part.entry.max_timestamp_ms > self._over_ms:
                self.is_over = True
                return


def _missing(partition: int, offset: int) -> MissingOffsets:
    return MissingOffsets(
        f"partition {partition}: the tier does not have offset {offset}, and no brokers are "
        "named: give 'bootstrap'"
    )


def split_remote(
    partition: int,
    ranges: Iterable[SegmentRange],
    task_bytes: int,
    reads_parts: Callable[[SegmentEntry], bool] = _has_digests,
) -> Iterator[RemoteTask]:
    """Group consecutive ranges until a task has at least ``task_bytes`` to read.

    A larger segment is divided, so that several tasks read it.
    """
    group: list[SegmentRange] = []
    size = 0
    for whole in ranges:
        part_bytes = max(task_bytes, LEAST_PART_BYTES)
        parts = list(_parts_of(whole, part_bytes)) if reads_parts(whole.entry) else [whole]
        group.append(parts[0])
        size += bytes_of(parts[0])
        # Each part of a divided segment ends a task, the first one together with what precedes it.
        for part in parts[1:]:
            yield RemoteTask.of(partition, group)
            group, size = [part], bytes_of(part)
        if size >= task_bytes or len(parts) > 1:
            yield RemoteTask.of(partition, group)
            group, size = [], 0
    if group:
        yield RemoteTask.of(partition, group)


def _parts_of(whole: SegmentRange, part_bytes: int) -> Iterator[SegmentRange]:
    """Yield a range in parts of at least ``part_bytes`` and about equal numbers of offsets."""
    offsets = whole.to_offset_inclusive + 1 - whole.from_offset
    parts = min(bytes_of(whole) // part_bytes, offsets)
    if parts < 2:
        yield whole
        return
    for number in range(parts):
        begin = whole.from_offset + offsets * number // parts
        until = whole.from_offset + offsets * (number + 1) // parts
        yield replace(whole, from_offset=begin, to_offset_inclusive=until - 1)


def bytes_of(part: SegmentRange) -> int:
    """Return the approximate number of bytes that are read of the range's segment."""
    entry = part.entry
    offsets = part.to_offset_inclusive + 1 - part.from_offset
    # Records are assumed to be of equal size, since the indexes are not read for a plan.
    return entry.size_bytes * offsets // (entry.end_offset_inclusive + 1 - entry.start_offset)
