"""Segments of one log: lookup by offset, open files, rolls and removals.

The last segment is active and always open. A closed one is opened when it is read, which costs a
small read of its index, and stays open while :class:`OpenSegments` has room. Each costs a
descriptor and its offset index in memory (2 MiB for a full segment of 1 GiB), so one limit applies
to all logs. The least recently read segment is closed first. A roll leaves deferrable work to a
thread (:attr:`SegmentList.unfinished`). The log does the locking.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tidemark.logfiles import names
from tidemark.lru import Lru
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.log.errors import CorruptRecords, OffsetOutOfRange
from tidemark_broker.log.files import NotCached, check_cached, rename_files
from tidemark_broker.log.producer_snapshots import ProducerSnapshots
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.swap_files import put_in_place
from tidemark_broker.log.types import ReadResult, SegmentInfo

logger = logging.getLogger(__name__)

#: Weight of a descriptor, in addition to the bytes of its index.
_DESCRIPTOR_BYTES = 32 * 1024
LIMIT_BYTES = 64 * 1024 * 1024

LogLock = AbstractContextManager[bool]


class OpenSegments:
    """LRU of open segments, for any thread. A segment is closed only under the lock of its log."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._lock = ordered_lock(LockRank.OPEN_SEGMENTS)
        #: Segments, with the locks of their logs.
        self._kept: Lru[Segment, LogLock] = Lru(limit_bytes)

    @property
    def size_bytes(self) -> int:
        """Total weight of the cached segments."""
        return self._kept.weight

    def used(self, segment: Segment, log_lock: LogLock) -> None:
        """Add an open segment, or mark it as recently read."""
        with self._lock:
            if self._kept.get(segment) is None:
                self._kept.put(segment, log_lock, _DESCRIPTOR_BYTES + segment.index_bytes)

    def forget(self, segment: Segment) -> None:
        """Drop a segment that its log has closed."""
        with self._lock:
            self._kept.pop(segment)

    def trim(self) -> None:
        """Close what is above the limit. The caller holds no log's lock."""
        with self._lock:
            gone = self._kept.evict(least=1)
        for segment, log_lock in gone:
            # Lock order is log before cache, so the log's lock is taken after releasing the
            # cache's. A reader may have used the segment again in between.
            with log_lock:
                with self._lock:
                    used_again = segment in self._kept
                if not used_again:
                    segment.unload()


#: Ends of recent reads whose file position is remembered, so that a reader continues without a
#: search.
_READ_HINTS_MAX = 32
#: Recently appended bytes count as cached without a check.
_TAIL_BYTES = 32 * 1024 * 1024
#: Bytes that a search for a batch reads from the indexed position.
_SEARCH_BYTES = 8 * 1024


class SegmentList:
    """Segments, oldest first, without holes. ``items`` is changed only by the methods."""

    def __init__(
        self,
        directory: Path,
        segments: list[Segment],
        open_segments: OpenSegments,
        log_lock: LogLock,
    ) -> None:
        """Take over segments, oldest first, of which the last one is open for appending.

        ``open_segments``: cache of open closed segments, shared by all logs.
        """
        self.directory = directory
        self.items = segments
        self.snapshots = ProducerSnapshots(directory)
        self._open = open_segments
        self._log_lock = log_lock
        #: Closed segments whose indexes and snapshots are not in their files yet.
        self.unfinished: list[Segment] = []
        self._closed_bytes = sum(segment.size_bytes for segment in segments[:-1])
        #: Position in its file of the batch that starts at an offset.
        self._read_hints: dict[int, int] = {}

    @property
    def active(self) -> Segment:
        """Segment that receives appends."""
        return self.items[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all log files."""
        return self._closed_bytes + self.items[-1].size_bytes

    def number_of(self, offset: int) -> int:
        """Return the number of the segment that contains ``offset``; 0 if it is below all."""
        return max(bisect_right(self.items, offset, key=_base_offset) - 1, 0)

    def infos(self, first: int = 0, count: int | None = None) -> tuple[SegmentInfo, ...]:
        """Return the figures of ``count`` segments (None: all) from number ``first``."""
        active = self.active
        chosen = self.items[first:] if count is None else self.items[first : first + count]
        return tuple(segment.info(is_active=segment is active) for segment in chosen)

    def has_replaced(self, segment: Segment) -> bool:
        """Return whether another segment has replaced ``segment`` for its offsets."""
        number = self.number_of(segment.base_offset)
        there = self.items[number]
        return there is not segment and there.base_offset <= segment.base_offset

    # -- reading -----------------------------------------------------------------------------

    def read_cached(
        self, offset: int, max_bytes: int, up_to: int, *, min_one: bool, for_socket: bool = False
    ) -> ReadResult:
        """Read whole batches from the one that contains ``offset``, without waiting for the disk.

        The batches are of one segment and end below ``up_to``. Raises :class:`NotCached` if a wait
        is likely, or if an index is not loaded or wrong. ``for_socket``: see
        :meth:`Segment.mapped`.
        """
        # Nearly all reads are of the active segment, so it is tried without a search.
        segment = self.items[-1]
        is_active = offset >= segment.base_offset
        if not is_active:
            segment = self.items[self.number_of(offset)]
        index = segment.index
        if segment.descriptor is None or index is None:
            raise NotCached
        # A consumer continues where its last read ended, so the position is usually known.
        start = self._read_hints.get(offset)
        low = index.position_for(offset) if start is None else start
        # The tail was written recently: the kernel still has it, a check would cost a system call.
        in_tail = is_active and low >= segment.size_bytes - _TAIL_BYTES
        if not in_tail:
            _check(segment, low, low + max_bytes + _SEARCH_BYTES)
        try:
            if start is None:
                first = segment.find(offset)
                start, offset = first.position, first.base_offset
            end, next_offset = segment.end_of_read(start, offset, max_bytes, up_to, min_one=min_one)
        # The index is wrong: a read in a thread rebuilds it.
        except CorruptRecords as error:
            raise NotCached from error
        # The first batch may exceed the checked range, because of min_one.
        if not in_tail and end > low + max_bytes:
            _check(segment, start, end)
        if not is_active:
            self.note_read(segment)
        self.remember_read_end(segment, next_offset, end)
        data = segment.mapped(start, end) if for_socket else segment.bytes_of(start, end)
        return ReadResult(data, next_offset)

    def read_hint(self, offset: int) -> int | None:
        """Return the position of the batch that starts at ``offset``, if a recent read ended
        there.
        """
        return self._read_hints.get(offset)

    def remember_read_end(self, segment: Segment, offset: int, position: int) -> None:
        """Note that a read ended at ``position``: the reader continues at ``offset``."""
        if offset >= segment.next_offset and segment is not self.active:
            return
        self._read_hints[offset] = position
        if len(self._read_hints) > _READ_HINTS_MAX:
            del self._read_hints[next(iter(self._read_hints))]

    def note_read(self, segment: Segment) -> None:
        """Note a read of ``segment``.

        Active and unfinished segments stay open regardless of the limit.
        """
        kept_anyway = segment is self.active or segment in self.unfinished
        if segment.descriptor is not None and not kept_anyway:
            self._open.used(segment, self._log_lock)

    def keep_open(self, segment: Segment, reader: Segment) -> None:
        """Keep the files that a reader opened, if its segment is still part of the log."""
        number = self.number_of(segment.base_offset)
        if self.items[number] is not segment or segment is self.active:
            return
        if segment.descriptor is None:
            segment.descriptor, reader.descriptor = reader.descriptor, None
        segment.index = reader.index
        self.note_read(segment)

    def trim(self) -> None:
        """Close the least recently read segments of any log (blocking, without the log's lock)."""
        self._open.trim()

    def closed_at(self, base_offset: int) -> Segment:
        """Return the closed segment that starts at ``base_offset``.

        Raises :class:`OffsetOutOfRange` if there is none.
        """
        number = self.number_of(base_offset)
        segment = self.items[number]
        # Compaction or retention may have removed it since the caller chose it.
        if segment.base_offset != base_offset or number == len(self.items) - 1:
            raise OffsetOutOfRange(f"no closed segment begins at offset {base_offset}")
        return segment

    # -- rolls, removals and truncations ---------------------------------------------------

    def roll(self, base_offset: int, now_ms: int, snapshot: bytes) -> None:
        """Close the active segment and start a new one at ``base_offset``, the log end.

        ``snapshot``: producers' state at that offset. Only one file is created here, since appends
        wait. A thread completes the closed segment's files at the next flush (:attr:`unfinished`).
        After a failure the active segment is unchanged and accepts appends.
        """
        old = self.active
        assert base_offset == old.next_offset, (base_offset, old.next_offset)  # (4): no gap
        new = Segment.create(self.directory, base_offset, created_ms=now_ms)
        old.seal()
        self.items.append(new)
        self.unfinished.append(old)
        self.snapshots.take(base_offset, snapshot)
        self._closed_bytes += old.size_bytes
        self._read_hints.pop(base_offset, None)

    def finished(self, segment: Segment) -> None:
        """Note that everything of a closed segment is in its files."""
        self.unfinished.remove(segment)
        self.note_read(segment)

    def take_oldest(self) -> list[Path]:
        """Remove the oldest segment; return its renamed files, which the caller deletes.

        They are renamed in the same step, so that no two segments ever share a name. After a
        failure the segment is still in the list.
        """
        oldest = self.items[0]
        assert oldest is not self.active, oldest.log_path
        logger.info("%s is deleted", oldest.log_path)
        # Renamed before it leaves the list: a failure keeps it readable.
        renamed = rename_files(oldest.paths(), names.DELETED_SUFFIX)
        del self.items[0]
        self._closed_bytes -= oldest.size_bytes
        self._forget(oldest)
        return renamed

    def swap(self, sources: Sequence[Segment], cleaned: Segment) -> list[Path]:
        """Replace adjacent segments by the compacted one made from them.

        The ``.swap`` files of ``cleaned`` are complete. Return the renamed files of ``sources``,
        which the caller deletes.
        """
        first = self.number_of(sources[0].base_offset)
        assert self.items[first : first + len(sources)] == list(sources), cleaned.log_path
        assert cleaned.next_offset == sources[-1].next_offset, cleaned.log_path  # (4): no gap
        renamed = []
        # The first source keeps its name, which the cleaned segment takes over.
        for old in reversed(sources[1:]):
            renamed += rename_files(old.paths(), names.DELETED_SUFFIX)
        put_in_place(self.directory, cleaned.base_offset)
        for old in sources:
            self._forget(old)
        self.items[first : first + len(sources)] = [cleaned]
        self._closed_bytes = sum(segment.size_bytes for segment in self.items[:-1])
        self._read_hints.clear()
        return renamed

    def end_when_cut_to(self, offset: int) -> int:
        """Return the log end that :meth:`cut_to` will leave. Blocks."""
        segment = self.items[self.number_of(offset)]
        if offset >= segment.next_offset:
            return segment.next_offset
        segment.load()
        self.note_read(segment)
        return segment.with_good_index(lambda: segment.find(offset)).base_offset

    def cut_to(self, offset: int, index_interval_bytes: int) -> list[Path]:
        """Cut the log at ``offset``, or at the start of the batch that contains it. Blocks.

        Return the renamed files of removed segments, which the caller deletes.
        """
        self._read_hints.clear()
        renamed = self._drop_behind(self.number_of(offset) + 1)
        active = self.active
        cut_at = active.size_bytes
        if offset < active.next_offset:
            active.load()
            cut_at = active.with_good_index(lambda: active.find(offset)).position
        self._forget(active)
        # The remaining segment becomes active: it needs complete indexes in memory, which the
        # iteration rebuilds.
        active.open_for_recovery()
        active.cut(cut_at)
        for _ in active.count_batches(index_interval_bytes):
            pass
        active.rewrite_indexes()
        active.aborted.truncate_to(active.next_offset)
        self.snapshots.remove_above(active.next_offset)
        return renamed

    def replace_all(self, offset: int, now_ms: int, snapshot: bytes | None = None) -> list[Path]:
        """Drop every segment and restart the log empty at ``offset``. Blocks.

        ``snapshot``: producers' state at that offset, None for none. Return the renamed files,
        which the caller deletes.
        """
        self._read_hints.clear()
        # The snapshot first: a crash must not leave a log without its producers.
        if snapshot is not None:
            self.snapshots.put(offset, snapshot)
        renamed = []
        # Newest first: the remaining segments are always a prefix.
        for segment in reversed(self.items):
            renamed += rename_files(segment.paths(), names.DELETED_SUFFIX)
        self.snapshots.remove_all_but(None if snapshot is None else offset)
        active = Segment.create(self.directory, offset, created_ms=now_ms)
        # In one step, so that readers without the lock always find an active segment.
        former, self.items, self._closed_bytes = self.items, [active], 0
        for segment in former:
            self._forget(segment)
        return renamed

    def _drop_behind(self, number: int) -> list[Path]:
        """Remove the segments from ``number``, newest first, so that the rest is always a prefix.

        The last remaining one becomes active.
        """
        renamed = []
        while len(self.items) > number:
            renamed += rename_files(self.items[-1].paths(), names.DELETED_SUFFIX)
            self._forget(self.items.pop())
        if self.items and self.active in self.unfinished:
            self.unfinished.remove(self.active)
        self._closed_bytes = sum(segment.size_bytes for segment in self.items[:-1])
        return renamed

    def _forget(self, segment: Segment) -> None:
        segment.unload()
        self._open.forget(segment)
        if segment in self.unfinished:
            self.unfinished.remove(segment)

    def unload_all(self) -> None:
        for segment in self.items:
            segment.unload()
            self._open.forget(segment)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _check(segment: Segment, start: int, end: int) -> None:
    assert segment.descriptor is not None
    check_cached(segment.descriptor, start, min(end, segment.size_bytes))
