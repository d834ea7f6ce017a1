"""One segment: a log file with its two indexes, and an index of aborted transactions.

The active segment has its file open and its indexes in memory. A closed segment keeps only its
figures; file and offset index are opened when it is read. Index entries stay in memory and are
written to the files at flush and close; after a crash they are rebuilt from the log. An empty
segment has no index files, because creating files is the main cost of a new log. The log does the
locking.
"""

import logging
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tidemark.configuration.values import INT32_MAX
from tidemark.logfiles import names
from tidemark.logfiles.offset_index import ENTRY_BYTES as INDEX_ENTRY_BYTES
from tidemark.logfiles.offset_index import RELATIVE_OFFSET_MAX, IndexFormatError, OffsetIndex
from tidemark.logfiles.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from tidemark.logfiles.time_index import TimeIndex
from tidemark.records.batch import NO_TIMESTAMP, Buffer
from tidemark_broker.log.batch_walk import BatchAt, walk_batches
from tidemark_broker.log.errors import CorruptRecords, StorageError, storage_errors
from tidemark_broker.log.files import opened, pread_exactly, put_at
from tidemark_broker.log.transaction_index import TransactionIndex
from tidemark_broker.log.types import SegmentInfo

logger = logging.getLogger(__name__)

_REBUILT_INTERVAL_BYTES = 4096
#: Copying fewer bytes costs less than mapping them.
MAPPED_BYTES_MIN = 384 * 1024

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class UnsavedEntries:
    """Index entries as bytes, and the number of entries that each file already has."""

    index_saved: int
    index: bytes
    times_saved: int
    times: bytes


class Segment:
    """Figures, descriptor, indexes and file names of one segment.

    Only ``size_bytes`` decides where the log file ends: bytes after it were never appended.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_cut_due",
        "_index_saved",
        "_times_saved",
        "aborted",
        "base_offset",
        "created_ms",
        "descriptor",
        "directory",
        "first_append_ms",
        "first_timestamp_ms",
        "index",
        "largest_timestamp_ms",
        "modified_ms",
        "next_offset",
        "offset_of_largest",
        "size_bytes",
        "times",
    )

    def __init__(self, directory: Path, base_offset: int, *, created_ms: int) -> None:
        """Create the figures of an empty segment; no file is opened or created.

        ``created_ms``: wall clock, from which the age of a segment without timestamps is computed.
        """
        self.directory = directory
        self.base_offset = base_offset
        self.size_bytes = 0
        self.index: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        #: Number of entries that each index file already has.
        self._index_saved = 0
        self._times_saved = 0
        self.aborted = TransactionIndex(self.path(names.TRANSACTION_INDEX_SUFFIX))
        self.created_ms = created_ms
        #: Time of the first append, NO_TIMESTAMP if this process has not made it.
        self.first_append_ms = NO_TIMESTAMP
        #: Time of the last append.
        self.modified_ms = created_ms
        self.next_offset = base_offset
        self.largest_timestamp_ms = NO_TIMESTAMP
        self.offset_of_largest = base_offset
        #: Largest timestamp of the first batch, from which the segment's age is computed.
        self.first_timestamp_ms = NO_TIMESTAMP
        self.descriptor: int | None = None
        #: Bytes appended since the last index entry.
        self._bytes_since_entry = 0
        #: Whether a failed append has left bytes after ``size_bytes``.
        self._cut_due = False

    @classmethod
    def create(cls, directory: Path, base_offset: int, *, created_ms: int) -> "Segment":
        """Create an empty log file, open for appending.

        Remains of a failed attempt are overwritten.
        """
        segment = cls(directory, base_offset, created_ms=created_ms)
        with storage_errors(f"segment {base_offset} cannot be created in {directory}"):
            segment.descriptor = os.open(
                segment.log_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
            )
        segment.index, segment.times = OffsetIndex(base_offset), TimeIndex(base_offset)
        return segment

    def info(self, *, is_active: bool) -> SegmentInfo:
        """Return the current figures."""
        return SegmentInfo(
            base_offset=self.base_offset,
            next_base_offset=self.next_offset,
            size_bytes=self.size_bytes,
            largest_timestamp_ms=self.largest_timestamp_ms,
            first_append_ms=self.first_append_ms,
            modified_ms=self.modified_ms,
            is_active=is_active,
            first_timestamp_ms=self.first_timestamp_ms,
        )

    # -- files and indexes ---------------------------------------------------------------------

    def moved_to(self, directory: Path) -> None:
        """Follow a rename of the directory, while the files have no entries yet."""
        self.directory = directory
        self.aborted = TransactionIndex(self.path(names.TRANSACTION_INDEX_SUFFIX))

    @property
    def log_path(self) -> Path:
        return self.path(names.LOG_SUFFIX)

    @property
    def index_path(self) -> Path:
        return self.path(names.OFFSET_INDEX_SUFFIX)

    @property
    def time_index_path(self) -> Path:
        return self.path(names.TIME_INDEX_SUFFIX)

    def path(self, suffix: str) -> Path:
        """Return the path of the segment's file with that suffix."""
        return self.directory / names.segment_file_name(self.base_offset, suffix)

    def paths(self) -> list[Path]:
        """Return every file of the segment, the log first."""
        return [
            self.path(suffix)
            for suffix in (
                names.LOG_SUFFIX,
                names.OFFSET_INDEX_SUFFIX,
                names.TIME_INDEX_SUFFIX,
                names.PRODUCER_SNAPSHOT_SUFFIX,
                names.TRANSACTION_INDEX_SUFFIX,
            )
        ]

    def has_room_for(self, last_offset: int, index_bytes_max: int) -> bool:
        """Return whether the indexes can address ``last_offset``.

        The time index reserves a slot.
        """
        assert self.index is not None
        assert self.times is not None
        return (
            last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and len(self.index) < index_bytes_max // 8
            and len(self.times) < index_bytes_max // 12 - 1
        )

    @property
    def index_bytes(self) -> int:
        """Memory that the offset index occupies."""
        return 0 if self.index is None else len(self.index) * INDEX_ENTRY_BYTES

    def read_index(self) -> OffsetIndex:
        """Read the offset index from its file.

        Raises ``IndexFormatError`` or ``OSError`` if it is unusable.
        """
        index = OffsetIndex.from_bytes(self.base_offset, self.index_path.read_bytes())
        self._check_within(index)
        self.index, self._index_saved = index, len(index)
        return index

    def index_ends(self) -> tuple[OffsetIndex, TimeIndex]:
        """Read the first and the last entry of each index file, which suffice to open a log.

        Raises ``IndexFormatError`` or ``OSError`` if they are unusable.
        """
        index = OffsetIndex.from_bytes(self.base_offset, _ends(self.index_path, INDEX_ENTRY_BYTES))
        self._check_within(index)
        times = TimeIndex.from_bytes(
            self.base_offset, _ends(self.time_index_path, TIME_ENTRY_BYTES)
        )
        return index, times

    def _check_within(self, index: OffsetIndex) -> None:
        if len(index) and index.last()[1] >= self.size_bytes:
            raise IndexFormatError(f"an entry points behind the log's {self.size_bytes} bytes")

    def read_times(self) -> TimeIndex:
        """Return the time index from memory, else from its file.

        It is rarely needed, so it is not cached.
        """
        if self.times is not None:
            return self.times
        return TimeIndex.from_bytes(self.base_offset, self.time_index_path.read_bytes())

    def adopt_times(self, times: TimeIndex) -> None:
        """Continue with a time index that was read from its file (the active segment at start)."""
        self.times, self._times_saved = times, len(times)

    def unsaved(self) -> UnsavedEntries:
        """Return the index entries that are not in their files yet."""
        assert self.index is not None
        assert self.times is not None
        return UnsavedEntries(
            self._index_saved,
            self.index.to_bytes(self._index_saved),
            self._times_saved,
            self.times.to_bytes(self._times_saved),
        )

    def save(self, entries: UnsavedEntries, *, is_final: bool) -> None:
        """Append ``entries`` to the index files (blocking); one thread at a time.

        ``is_final``: these are the last entries, so the files must exist even without entries.
        """
        with storage_errors(f"the indexes of {self.log_path} cannot be written"):
            if entries.index or (is_final and self.size_bytes):
                put_at(self.index_path, entries.index, entries.index_saved * INDEX_ENTRY_BYTES)
                self._index_saved = entries.index_saved + len(entries.index) // INDEX_ENTRY_BYTES
            if entries.times or (is_final and self.size_bytes):
                put_at(self.time_index_path, entries.times, entries.times_saved * TIME_ENTRY_BYTES)
                self._times_saved = entries.times_saved + len(entries.times) // TIME_ENTRY_BYTES

    def rewrite_indexes(self) -> None:
        """Replace both index files by the entries in memory."""
        with storage_errors(f"the indexes of {self.log_path} cannot be written"):
            for path in (self.index_path, self.time_index_path):
                if self.size_bytes:
                    path.write_bytes(b"")
                else:
                    path.unlink(missing_ok=True)
        self._index_saved = self._times_saved = 0
        self.save(self.unsaved(), is_final=False)

    # -- appending ---------------------------------------------------------------------------

    def append(
        self,
        buffers: Sequence[Buffer],
        batches: Iterable[BatchAt],
        index_interval_bytes: int,
    ) -> None:
        """Write a run of batches at the end of the log file and index them.

        ``buffers``: their bytes. Positions in ``batches`` are relative to the run. After a failure
        none of it is visible. The file is cut back. If even that fails, the next append overwrites
        the bytes, or they are cut before a flush or close. Raises StorageError.
        """
        start = self.size_bytes
        try:
            written = self._write(buffers, start)
        except OSError as error:
            # Remembered, in case the file cannot be cut back now.
            self._cut_due = True
            self._try_to_cut()
            raise StorageError(f"{self.log_path} cannot be written: {error.strerror}") from error
        self.size_bytes = start + written
        for batch in batches:
            self.note_batch(batch, start + batch.position, index_interval_bytes)

    def note_batch(self, batch: BatchAt, position: int, index_interval_bytes: int) -> None:
        """Account for a batch in the segment's offsets and timestamps; index it if an entry is due.

        ``position``: its position in the log file.
        """
        assert self.index is not None
        assert self.times is not None
        if batch.max_timestamp > self.largest_timestamp_ms:
            self.largest_timestamp_ms = batch.max_timestamp
            self.offset_of_largest = batch.last_offset
        # Rolling by time counts from the first batch.
        if position == 0:
            self.first_timestamp_ms = batch.max_timestamp
        # Sparse entries, as in Kafka: one for each interval.
        if self._bytes_since_entry > index_interval_bytes:
            self.index.append(batch.last_offset, position)
            self.times.maybe_append(self.largest_timestamp_ms, self.offset_of_largest)
            self._bytes_since_entry = 0
        self._bytes_since_entry += batch.size_bytes
        self.next_offset = batch.last_offset + 1

    def _write(self, buffers: Sequence[Buffer], position: int) -> int:
        assert self.descriptor is not None
        total = sum(map(len, buffers))
        written = os.pwritev(self.descriptor, buffers, position)
        # A full disk writes the part that fits, and fails on the next call.
        while written < total:
            rest = memoryview(b"".join(buffers))[written:]
            written += os.pwrite(self.descriptor, rest, position + written)
        return written

    def _try_to_cut(self) -> None:
        assert self.descriptor is not None
        try:
            os.ftruncate(self.descriptor, self.size_bytes)
            self._cut_due = False
        except OSError as error:
            logger.warning("%s cannot be cut back: %s", self.log_path, error.strerror)

    def seal(self) -> None:
        """Add the final entry to the time index, at roll and at close.

        Nothing is appended afterwards.
        """
        assert self.times is not None
        self.times.maybe_append(self.largest_timestamp_ms, self.offset_of_largest)

    def cut_failed_append(self) -> None:
        """Cut the remains of a failed append, if that was not possible then."""
        if self._cut_due:
            self._try_to_cut()
        if self._cut_due:
            raise StorageError(f"{self.log_path} has a torn tail that cannot be cut off")

    # -- opening, closing, rebuilding --------------------------------------------------------

    def open_file(self, *, writable: bool = False) -> None:
        """Open the log file, if it is not open."""
        if self.descriptor is None:
            with storage_errors(f"{self.log_path} cannot be opened"):
                mode = os.O_RDWR if writable else os.O_RDONLY
                self.descriptor = os.open(self.log_path, mode | os.O_CLOEXEC)

    def load(self) -> None:
        """Open the log file and read the offset index, if that was not done."""
        self.open_file()
        if self.index is None:
            try:
                self.read_index()
            except (IndexFormatError, OSError) as error:
                logger.warning("%s is rebuilt from the log: %s", self.index_path, error)
                self.rebuild_index()

    def rebuild_index(self) -> None:
        """Rebuild the offset index in memory from headers; the file is unchanged."""
        assert self.descriptor is not None
        index, unindexed = OffsetIndex(self.base_offset), 0
        for batch in walk_batches(self.descriptor, 0, self.size_bytes):
            if unindexed > _REBUILT_INTERVAL_BYTES:
                index.append(batch.last_offset, batch.position)
                unindexed = 0
            unindexed += batch.size_bytes
        self.index, self._index_saved = index, len(index)

    def unload(self) -> None:
        """Close the file and drop the indexes; the figures stay."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        self.index = self.times = None

    def reset(self) -> None:
        """Reset figures and indexes before :meth:`note_batch` rebuilds them."""
        self.next_offset = self.offset_of_largest = self.base_offset
        self.largest_timestamp_ms = self.first_timestamp_ms = NO_TIMESTAMP
        self.index, self.times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._bytes_since_entry = self._index_saved = self._times_saved = 0

    def seal_rebuilt(self) -> None:
        """Call :meth:`seal` for rebuilt indexes and replace their files."""
        self.seal()
        self.rewrite_indexes()

    def pinned(self) -> "Segment":
        """Return a copy with a descriptor of its own, if the segment is open.

        A thread reads it while appends continue, and unloads it in the end.
        """
        pinned = copy(self)
        if self.descriptor is not None:
            with storage_errors(f"{self.log_path} cannot be opened"):
                pinned.descriptor = os.dup(self.descriptor)
        return pinned

    def cut(self, size_bytes: int) -> None:
        """Cut the log file at a batch's start. The caller rebuilds figures and indexes."""
        assert self.descriptor is not None
        with storage_errors(f"{self.log_path} cannot be cut"):
            os.ftruncate(self.descriptor, size_bytes)
        self.size_bytes = size_bytes
        self._cut_due = False

    @property
    def _offset_max(self) -> int:
        """Highest offset of the segment: indexes store 32-bit relative offsets, as in Kafka."""
        return self.base_offset + INT32_MAX

    def open_for_recovery(self) -> None:
        """Open the log file for writing and reset figures and indexes."""
        with storage_errors(f"{self.log_path} cannot be opened"):
            self.descriptor = os.open(self.log_path, os.O_RDWR | os.O_CLOEXEC)
        self.reset()

    def count_batches(self, index_interval_bytes: int) -> Iterator[BatchAt]:
        """Rebuild offsets, timestamps and indexes from the batch headers; yield each batch.

        CRCs are not checked. Raises :class:`CorruptRecords` for offsets outside the segment, since
        no CRC covers a base offset.
        """
        assert self.descriptor is not None
        for batch in walk_batches(self.descriptor, 0, self.size_bytes):
            # A damaged base offset would otherwise enter the indexes.
            if not self.base_offset <= batch.base_offset <= batch.last_offset <= self._offset_max:
                raise CorruptRecords(
                    f"{self.log_path}: the batch at byte {batch.position} has offsets "
                    f"{batch.base_offset} to {batch.last_offset}"
                )
            self.note_batch(batch, batch.position, index_interval_bytes)
            yield batch

    # -- reading -----------------------------------------------------------------------------

    def with_good_index(self, work: Callable[[], R]) -> R:
        """Run ``work`` with the index (blocking).

        If the index is wrong, rebuild it in memory and retry.
        """
        try:
            return work()
        except CorruptRecords as error:
            logger.warning("%s is wrong (%s) and is rebuilt", self.index_path, error)
        self.rebuild_index()
        return work()

    def find(self, offset: int) -> BatchAt:
        """Return the batch that contains ``offset``, by the index and a walk over headers.

        Raises :class:`CorruptRecords` if the index is wrong.
        """
        assert self.index is not None
        return self._walk_to(offset, self.index.position_for(offset))

    def _walk_to(self, offset: int, start: int) -> BatchAt:
        assert self.descriptor is not None
        for batch in walk_batches(self.descriptor, start, self.size_bytes):
            if batch.base_offset > offset:
                break
            if batch.last_offset >= offset:
                return batch
        raise CorruptRecords(f"{self.log_path}: no batch holds offset {offset}")

    def end_of_read(
        self, start: int, offset: int, max_bytes: int, up_to: int, *, min_one: bool
    ) -> tuple[int, int]:
        """Return the file position and the next offset after the last batch that a read returns.

        The batches are whole, at most ``max_bytes`` in total, and end below ``up_to``. ``start``:
        position of the batch that starts with ``offset``. If not even that one fits, the result is
        (start, offset), unless ``min_one`` is set and it ends below ``up_to``.
        """
        assert self.index is not None
        # Common case of a tail read: everything fits, so no header is read.
        if up_to >= self.next_offset and self.size_bytes - start <= max_bytes:
            return self.size_bytes, self.next_offset
        # Jump to the last index entry before the limit and walk only from there.
        anchor = max(start, self.index.floor_position(start + max_bytes, up_to))
        end, next_offset = self._walk_to_end(start, offset, anchor, start + max_bytes, up_to)
        # Not even one batch fits: a consumer with a small limit must still make progress (KIP-74).
        if end == start and min_one:
            first = self._walk_to(offset, start)
            if first.last_offset < up_to:
                return first.end_position, first.last_offset + 1
        return end, next_offset

    def _walk_to_end(
        self, start: int, offset: int, anchor: int, limit: int, up_to: int
    ) -> tuple[int, int]:
        assert self.descriptor is not None
        position, next_offset = start, offset
        for batch in walk_batches(self.descriptor, anchor, self.size_bytes):
            if batch.end_position > limit or batch.last_offset >= up_to:
                return batch.position, batch.base_offset
            position, next_offset = batch.end_position, batch.last_offset + 1
        return position, next_offset

    def bytes_of(self, start: int, end: int) -> bytes:
        """Return ``[start, end)`` of the log file."""
        if end == start:
            return b""
        assert self.descriptor is not None
        return pread_exactly(self.descriptor, end - start, start)

    def mapped(self, start: int, end: int) -> bytes | memoryview:
        """Return ``[start, end)`` of the log file for a socket: many bytes as a mapping.

        The kernel copies a mapping from its cache to the socket, so no copy is in this process. It
        stays readable if the file is closed or deleted. If the file is cut, a write to the socket
        fails, but this process would be killed if it read the missing bytes itself (SIGBUS).
        """
        if end - start < MAPPED_BYTES_MIN:
            return self.bytes_of(start, end)
        assert self.descriptor is not None
        low = start - start % mmap.ALLOCATIONGRANULARITY
        try:
            mapping = mmap.mmap(self.descriptor, end - low, offset=low, access=mmap.ACCESS_READ)
        # The file system has no mappings, or the file is shorter: a read finds the cause.
        except (OSError, ValueError):
            return self.bytes_of(start, end)
        return memoryview(mapping)[start - low :]


def _ends(path: Path, entry_bytes: int) -> bytes:
    """Return the first and the last entry of an index file of any size."""
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size % entry_bytes:
            raise IndexFormatError(f"{size} bytes are no multiple of {entry_bytes}")
        first = os.pread(descriptor, entry_bytes, 0)
        last = os.pread(descriptor, entry_bytes, size - entry_bytes) if size > entry_bytes else b""
    return first + last


def wall_clock_ms() -> int:
    """Return the current time, for informational values such as creation times."""
    return time.time_ns() // 1_000_000
