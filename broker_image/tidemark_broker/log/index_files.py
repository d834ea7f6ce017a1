"""Index files and file names of one segment.

Entries stay in memory and are written to the files at flush and close; after a crash they are
rebuilt from the log. An empty segment has no index files, because creating files is the main cost
of a new log.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.offset_index import ENTRY_BYTES as INDEX_ENTRY_BYTES
from tidemark.logfiles.offset_index import RELATIVE_OFFSET_MAX, IndexFormatError, OffsetIndex
from tidemark.logfiles.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from tidemark.logfiles.time_index import TimeIndex
from tidemark_broker.log.errors import storage_errors
from tidemark_broker.log.files import put_at
from tidemark_broker.log.transaction_index import TransactionIndex


@dataclass(frozen=True, slots=True)
class UnsavedEntries:
    """Index entries as bytes, and the number of entries that each file already has."""

    index_saved: int
    index: bytes
    times_saved: int
    times: bytes


class IndexedSegment:
    """Indexes and file names, the base of :class:`Segment`."""

    __slots__ = (
        "_index_saved",
        "_times_saved",
        "aborted",
        "base_offset",
        "directory",
        "index",
        "size_bytes",
        "times",
    )

    def __init__(self, directory: Path, base_offset: int) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.size_bytes = 0
        self.index: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self._index_saved = 0
        self._times_saved = 0
        self.aborted = TransactionIndex(self.path(names.TRANSACTION_INDEX_SUFFIX))

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


def _ends(path: Path, entry_bytes: int) -> bytes:
    """Return the first and the last entry of an index file of any size."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size % entry_bytes:
            raise IndexFormatError(f"{size} bytes are no multiple of {entry_bytes}")
        first = os.pread(descriptor, entry_bytes, 0)
        last = os.pread(descriptor, entry_bytes, size - entry_bytes) if size > entry_bytes else b""
    finally:
        os.close(descriptor)
    return first + last
