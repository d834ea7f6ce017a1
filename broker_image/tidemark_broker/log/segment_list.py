"""The segments of one log: which one holds an offset, which are open, how they come and go.

The last segment is active and always open. Of the closed ones a few that were read last stay open;
opening one costs a small read of its index. Nothing here locks: the log does.
"""

import logging
from bisect import bisect_right
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.producer_snapshot import (
    SnapshotFormatError,
    decode_snapshot,
    encode_snapshot,
)
from tidemark_broker.log.errors import OffsetOutOfRange, storage_errors
from tidemark_broker.log.files import remove_by_rename
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.types import ReadResult, SegmentFiles, SegmentInfo

logger = logging.getLogger(__name__)

#: Closed segments that one log keeps open for readers.
_OPEN_CLOSED_SEGMENTS_MAX = 4
#: Ends of recent reads whose file position is remembered, so that a reader goes on without a search.
_READ_HINTS_MAX = 32


class SegmentList:
    """Oldest first, without holes. ``items`` is replaced or changed only through the methods."""

    def __init__(self, directory: Path, segments: list[Segment]) -> None:
        self.directory = directory
        self.items = segments
        self._recently_read: list[Segment] = []
        #: Position in its file of the batch that begins with an offset.
        self._read_hints: dict[int, int] = {}

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.items[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all log files."""
        return sum(segment.size_bytes for segment in tuple(self.items))

    def number_of(self, offset: int) -> int:
        """Number of the segment that holds ``offset``; 0 if it lies below all."""
        return max(bisect_right(self.items, offset, key=_base_offset) - 1, 0)

    def infos(self) -> tuple[SegmentInfo, ...]:
        """The figures of all segments."""
        active = self.active
        return tuple(segment.info(is_active=segment is active) for segment in self.items)

    def loaded(self, segment: Segment) -> Segment:
        """``segment``, open for reading."""
        if segment is not self.active:
            segment.load()
            self._keep_open(segment)
        return segment

    def _keep_open(self, segment: Segment) -> None:
        """Count a closed segment as read just now; the one not read for longest is closed."""
        if segment in self._recently_read:
            self._recently_read.remove(segment)
        self._recently_read.append(segment)
        if len(self._recently_read) > _OPEN_CLOSED_SEGMENTS_MAX:
            self._recently_read.pop(0).unload()

    def _unload(self, segment: Segment) -> None:
        segment.unload()
        if segment in self._recently_read:
            self._recently_read.remove(segment)

    def unload_all(self) -> None:
        """Close every file."""
        for segment in self.items:
            segment.unload()
        self._recently_read.clear()

    # -- reading -----------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, up_to: int, *, min_one: bool) -> ReadResult:
        """Whole batches of one segment, from the one that holds ``offset`` on; see ``PartitionLog``."""
        segment = self.loaded(self.items[self.number_of(offset)])
        start = self._read_hints.get(offset)
        if start is None:
            first = segment.find(offset)
            start, offset = first.position, first.base_offset
        end, next_offset = segment.end_of_read(start, offset, max_bytes, up_to)
        if end == start and min_one:
            first = segment.find(offset)
            if first.last_offset < up_to:
                end, next_offset = first.end_position, first.last_offset + 1
        if end == start:
            return ReadResult(b"", offset)
        data = segment.bytes_of(start, end)
        if next_offset < segment.next_offset or segment is self.active:
            self._remember(next_offset, end)
        return ReadResult(data, next_offset)

    def _remember(self, offset: int, position: int) -> None:
        self._read_hints[offset] = position
        if len(self._read_hints) > _READ_HINTS_MAX:
            del self._read_hints[next(iter(self._read_hints))]

    def files_of(self, base_offset: int) -> SegmentFiles:
        """The files of the closed segment that begins at ``base_offset``."""
        number = self.number_of(base_offset)
        segment = self.items[number]
        if segment.base_offset != base_offset or number == len(self.items) - 1:
            raise OffsetOutOfRange(f"no closed segment begins at offset {base_offset}")
        return SegmentFiles(
            log=segment.log_path,
            offset_index=segment.index_path,
            time_index=segment.time_index_path,
            producer_snapshot=_snapshot_bytes(self._snapshot_path(segment.next_offset)),
            size_bytes=segment.size_bytes,
        )

    # -- coming and going --------------------------------------------------------------------

    def roll(self, base_offset: int, now_ms: int) -> None:
        """Close the active segment and begin one at ``base_offset``. A failure leaves the active
        segment as it was, to be appended to later."""
        old = self.active
        old.finish()
        snapshot = self._snapshot_path(base_offset)
        with storage_errors(f"{snapshot} cannot be written"):
            snapshot.write_bytes(encode_snapshot())
        self.items.append(Segment.create(self.directory, base_offset, created_ms=now_ms))
        self._read_hints.pop(base_offset, None)
        self._keep_open(old)

    def take_oldest(self, count: int) -> list[Segment]:
        """Take the ``count`` oldest out of the list; :meth:`remove_files` removes their files."""
        taken = self.items[:count]
        del self.items[:count]
        for segment in taken:
            self._unload(segment)
        return taken

    @staticmethod
    def remove_files(segment: Segment) -> None:
        """Blocks: remove the files of a segment that was taken out."""
        logger.info("%s goes", segment.log_path)
        remove_by_rename(segment.paths(), names.DELETED_SUFFIX)

    def cut_to(self, offset: int, index_interval_bytes: int) -> None:
        """Blocks: cut the log at ``offset`` or at the start of the batch that holds it."""
        self._read_hints.clear()
        self._drop_behind(self.number_of(offset) + 1)
        active = self.active
        cut_at = active.size_bytes
        if offset < active.next_offset:
            active.load()
            cut_at = active.find(offset).position
        self._unload(active)
        active.open_for_recovery()
        active.cut(cut_at)
        for _ in active.count_batches(index_interval_bytes):
            pass
        active.write_indexes_anew()
        self.remove_snapshots_above(active.next_offset)

    def replace_all(self, offset: int, now_ms: int) -> None:
        """Blocks: drop every segment and begin anew at ``offset``."""
        self._read_hints.clear()
        self._drop_behind(0)
        self.remove_snapshots_above(-1)
        self.items.append(Segment.create(self.directory, offset, created_ms=now_ms))

    def _drop_behind(self, number: int) -> None:
        """Remove the segments from ``number`` on, newest first: what stays is always a prefix."""
        while len(self.items) > number:
            segment = self.items.pop()
            self._unload(segment)
            self.remove_files(segment)

    def remove_snapshots_above(self, offset: int) -> None:
        """Blocks: remove the producer snapshots taken behind ``offset``."""
        with storage_errors(f"snapshots in {self.directory} cannot be removed"):
            for path in self.directory.glob(f"*{names.PRODUCER_SNAPSHOT_SUFFIX}"):
                parsed = names.parse_segment_file_name(path.name)
                if parsed is not None and parsed[0] > offset:
                    path.unlink()

    def _snapshot_path(self, offset: int) -> Path:
        return self.directory / names.segment_file_name(offset, names.PRODUCER_SNAPSHOT_SUFFIX)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _snapshot_bytes(path: Path) -> bytes:
    """The snapshot's bytes; an empty snapshot where the file is missing or torn (it can only say
    which producers were known, and none are yet)."""
    try:
        data = path.read_bytes()
        decode_snapshot(data)
    except (OSError, SnapshotFormatError):
        return encode_snapshot()
    return data
