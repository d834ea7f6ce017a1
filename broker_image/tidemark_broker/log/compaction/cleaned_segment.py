"""The segment that a cleaning writes: ``.cleaned`` files until it takes the place of its sources.

Indexes are built as for any segment. What it says of its age is what the last of its sources said,
so that retention counts on from there.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidemark.configuration.values import INT32_MAX
from tidemark.logfiles import names
from tidemark.logfiles.offset_index import ENTRY_BYTES as INDEX_ENTRY_BYTES
from tidemark.logfiles.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from tidemark.logfiles.transaction_index import AbortedTransaction, encode_aborted
from tidemark_broker.log.batch_walk import batch_at
from tidemark_broker.log.compaction.candidate_selection import IndexedBytes
from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import put
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.swap_files import cleaned_path, discard_cleaned
from tidemark_broker.log.transaction_index import TransactionIndex

_WRITE_BYTES = 1024 * 1024


class CleanedSegment:
    """Made by :func:`cleaned_segment`; all of it blocks."""

    def __init__(self, directory: Path, base_offset: int) -> None:
        self.segment = Segment(directory, base_offset, created_ms=0)
        self.segment.reset()
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._path = cleaned_path(directory, base_offset, names.LOG_SUFFIX)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o644)

    def append(self, batch: bytes, index_interval_bytes: int) -> None:
        """Write and index one batch."""
        segment = self.segment
        position, size = segment.size_bytes, len(batch)
        if position + size > INT32_MAX:
            raise StorageError(f"{segment.log_path} would become larger than its index can say")
        segment.note_batch(batch_at(batch, 0, position), position, index_interval_bytes)
        segment.size_bytes = position + size
        self._pieces.append(batch)
        self._held_bytes += size
        if self._held_bytes >= _WRITE_BYTES:
            self._write()

    @property
    def written(self) -> IndexedBytes:
        """How large it is so far."""
        index, times = self.segment.index, self.segment.times
        assert index is not None
        assert times is not None
        largest = max(len(index) * INDEX_ENTRY_BYTES, len(times) * TIME_ENTRY_BYTES)
        return IndexedBytes(self.segment.size_bytes, largest)

    def finish(self, sources: Sequence[Segment], aborted: Sequence[AbortedTransaction]) -> None:
        """All of it is on the disk; its indexes are not kept in memory. ``aborted``: what the
        transaction index is to have."""
        segment, last_source = self.segment, sources[-1]
        segment.created_ms, segment.modified_ms = last_source.created_ms, last_source.modified_ms
        segment.seal()
        assert segment.index is not None
        assert segment.times is not None
        indexes = {
            names.OFFSET_INDEX_SUFFIX: segment.index.to_bytes(),
            names.TIME_INDEX_SUFFIX: segment.times.to_bytes(),
        }
        if aborted or any(len(each.aborted) for each in sources):
            indexes[names.TRANSACTION_INDEX_SUFFIX] = encode_aborted(aborted)
            segment.aborted = TransactionIndex(segment.aborted.path, len(aborted))
        with storage_errors(f"{self._path} cannot be written"):
            self._write()
            os.utime(self._descriptor, ns=(segment.modified_ms * 1_000_000,) * 2)
            os.fsync(self._descriptor)
            for suffix, data in indexes.items():
                put(cleaned_path(segment.directory, segment.base_offset, suffix), data)
        segment.unload()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _write(self) -> None:
        data = memoryview(b"".join(self._pieces))
        self._pieces, self._held_bytes = [], 0
        with storage_errors(f"{self._path} cannot be written"):
            while data:
                data = data[os.write(self._descriptor, data) :]


@contextmanager
def cleaned_segment(directory: Path, first_source: Segment) -> Iterator[CleanedSegment]:
    """One in place of ``first_source`` and what follows it; its files are gone afterwards, unless
    they were swapped in."""
    with storage_errors(f"{directory} cannot be written"):
        cleaned = CleanedSegment(directory, first_source.base_offset)
    try:
        yield cleaned
    finally:
        cleaned.close()
        with storage_errors(f"{directory} cannot be written"):
            discard_cleaned(directory, first_source.base_offset)
