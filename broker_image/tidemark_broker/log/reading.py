"""Reading a log: on the loop what is in memory, in a thread what may wait for the disk.

A thread pins the segment it reads (figures of that moment, a descriptor of its own) under the
log's lock and reads without it, so that appends never wait for a read, and no file is closed under
one. What is cut or removed meanwhile makes the thread look again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark_broker.log.appending import AppendingLog
from tidemark_broker.log.errors import LogError
from tidemark_broker.log.lookup import first_at_or_after
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.timestamps import unpack_limits
from tidemark_broker.log.types import ReadResult, SegmentInfo, TimestampOffset
from tidemark_broker.log.validate import check_read_range


class ReadingLog(AppendingLog):
    """Reads and look-ups; :class:`PartitionLog` is the whole."""

    def read_cached(
        self, offset: int, *, max_bytes: int, up_to_offset: int, min_one: bool
    ) -> ReadResult:
        """:meth:`read` for the loop: :class:`NotCached` where it would likely wait for the disk."""
        with self._lock:
            if self._is_at_end(offset, up_to_offset):
                return ReadResult(b"", offset)
            return self._segments.read_cached(offset, max_bytes, up_to_offset, min_one=min_one)

    def read(self, offset: int, *, max_bytes: int, up_to_offset: int, min_one: bool) -> ReadResult:
        """T: whole batches from the one that holds ``offset`` on, all of one segment.

        Only batches that end below ``up_to_offset`` (exclusive), at most ``max_bytes`` of them;
        with ``min_one`` the first one even if it is larger.
        """
        while True:
            with self._lock:
                if self._is_at_end(offset, up_to_offset):
                    return ReadResult(b"", offset)
                segment = self._segments.items[self._segments.number_of(offset)]
                start, truncations = self._segments.hint(offset), self._truncations
                pinned = segment.pinned()
            with _released(pinned):
                try:
                    result, end = _read(pinned, offset, start, max_bytes, up_to_offset, min_one)
                except LogError:
                    if self._has_changed(segment, truncations):
                        continue
                    raise
                with self._lock:
                    if not self._has_changed(segment, truncations):
                        self._segments.remember(segment, result.next_offset, end)
                        self._segments.adopt(segment, pinned)
            self._segments.trim()
            return result

    def _is_at_end(self, offset: int, up_to_offset: int) -> bool:
        self._check_usable()
        check_read_range(offset, self._local_log_start_offset, self._next_offset)
        return offset >= min(up_to_offset, self._next_offset)

    def _has_changed(self, segment: Segment, truncations: int) -> bool:
        """Was the log cut, or the segment removed, since a thread began to read it?"""
        with self._lock:
            gone = segment.base_offset < self._segments.items[0].base_offset
            return gone or self._closed or truncations != self._truncations

    def offset_by_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """T: the first local record at or behind the local log start that is not older."""
        behind, limits = -1, unpack_limits()
        while True:
            with self._lock:
                self._check_usable()
                start, truncations = self._local_log_start_offset, self._truncations
                segment = self._first_segment(timestamp_ms, max(start, behind))
                if segment is None:
                    return None
                pinned = segment.pinned()
            with _released(pinned):
                try:
                    pinned.load()
                    found = pinned.with_good_index(
                        lambda: first_at_or_after(pinned, timestamp_ms, start, limits)  # noqa: B023
                    )
                except LogError:
                    if self._has_changed(segment, truncations):
                        continue
                    raise
            if found is not None:
                return found
            behind = pinned.next_offset

    def _first_segment(self, timestamp_ms: int, offset: int) -> Segment | None:
        for segment in self._segments.items[self._segments.number_of(offset) :]:
            if segment.largest_timestamp_ms >= timestamp_ms and segment.next_offset > offset:
                return segment
        return None

    def segments(self) -> tuple[SegmentInfo, ...]:
        """The segments of this moment, oldest first; the last one is active."""
        with self._lock:
            return self._segments.infos()

    def segments_from(self, offset: int, count: int | None = None) -> tuple[SegmentInfo, ...]:
        """:meth:`segments` from the one that holds ``offset`` on (the first one if it lies below
        all), at most ``count`` of them."""
        with self._lock:
            return self._segments.infos(self._segments.number_of(offset), count)


@contextmanager
def _released(pinned: Segment) -> Iterator[None]:
    try:
        yield
    finally:
        pinned.unload()


def _read(
    segment: Segment, offset: int, start: int | None, max_bytes: int, up_to: int, min_one: bool
) -> tuple[ReadResult, int]:
    """(result, position behind it)."""
    segment.load()

    def extent() -> tuple[int, int, int]:
        position, first_offset = start, offset
        if position is None:
            first = segment.find(offset)
            position, first_offset = first.position, first.base_offset
        end, next_offset = segment.end_of_read(
            position, first_offset, max_bytes, up_to, min_one=min_one
        )
        return position, end, next_offset

    begin, end, next_offset = segment.with_good_index(extent)
    return ReadResult(segment.bytes_of(begin, end), next_offset), end
