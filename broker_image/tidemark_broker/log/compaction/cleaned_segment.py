"""Segment that a cleaning writes: ``.cleaned`` files until it replaces its sources.

Indexes are built as for any segment. It takes over the age of its last source, so that retention is
unaffected.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidemark.configuration.values import INT32_MAX
from tidemark.logfiles import names
from tidemark.logfiles.offset_index import ENTRY_BYTES as INDEX_ENTRY_BYTES
from tidemark.logfiles.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from tidemark.logfiles.transaction_index import AbortedTxn, encode_aborted
from tidemark_broker.log.batch_walk import batch_at
from tidemark_broker.log.compaction.candidate_selection import IndexedBytes
from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import put
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.swap_files import cleaned_path, discard_cleaned
from tidemark_broker.log.transaction_index import TransactionIndex

_WRITE_BYTES = 1024 * 1024


class CleanedSegment:
    """Output of a cleaning, created by :func:`cleaned_segment`. All methods block."""

    def __init__(self, directory: Path, base_offset: int) -> None:
        self.segment = Segment(directory, base_offset, created_ms=0)
        self.segment.reset()
        self._pieces: list[bytes] = []
        self._buffered_bytes = 0
        self._path = cleaned_path(directory, base_offset, names.LOG_SUFFIX)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o644)

    def append(self, batch: bytes, index_interval_bytes: int) -> None:
        """Write one batch at the end of the new segment and index it.

        Raises StorageError if the segment would be too large for its index.
        """
        segment = self.segment
        position, size = segment.size_bytes, len(batch)
        # An index entry has 32 bits for a position.
        if position + size > INT32_MAX:
            raise StorageError(
                f"{segment.log_path} would exceed {INT32_MAX} bytes, the limit of its index"
            )
        segment.note_batch(batch_at(batch, 0, position), position, index_interval_bytes)
        segment.size_bytes = position + size
        self._pieces.append(batch)
        self._buffered_bytes += size
        if self._buffered_bytes >= _WRITE_BYTES:
            self._write()

    @property
    def written(self) -> IndexedBytes:
        index, times = self.segment.index, self.segment.times
        assert index is not None
        assert times is not None
        largest = max(len(index) * INDEX_ENTRY_BYTES, len(times) * TIME_ENTRY_BYTES)
        return IndexedBytes(self.segment.size_bytes, largest)

    def finish(self, sources: Sequence[Segment], aborted: Sequence[AbortedTxn]) -> None:
        """Write the log file and its indexes durably, as ``.cleaned`` files.

        ``sources``: segments that this one will replace. ``aborted``: content of its transaction
        index.
        """
        segment, last_source = self.segment, sources[-1]
        # Retention by time must not see the rewritten records as new.
        segment.created_ms, segment.modified_ms = last_source.created_ms, last_source.modified_ms
        segment.seal()
        assert segment.index is not None
        assert segment.times is not None
        indexes = {
            names.OFFSET_INDEX_SUFFIX: segment.index.to_bytes(),
            names.TIME_INDEX_SUFFIX: segment.times.to_bytes(),
        }
        if aborted or any(len(source.aborted) for source in sources):
            indexes[names.TRANSACTION_INDEX_SUFFIX] = encode_aborted(aborted)
            segment.aborted = TransactionIndex(segment.aborted.path, len(aborted))
        with storage_errors(f"{self._path} cannot be written"):
            self._write()
            # Recovery takes the segment's age from the file's modification time.
            os.utime(self._descriptor, ns=(segment.modified_ms * 1_000_000,) * 2)
            os.fsync(self._descriptor)
            for suffix, data in indexes.items():
                put(cleaned_path(segment.directory, segment.base_offset, suffix), data)
        segment.unload()

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self) -> None:
        data = memoryview(b"".join(self._pieces))
        self._pieces, self._buffered_bytes = [], 0
        with storage_errors(f"{self._path} cannot be written"):
            while data:
                data = data[os.write(self._descriptor, data) :]


@contextmanager
def cleaned_segment(directory: Path, first_source: Segment) -> Iterator[CleanedSegment]:
    """Create a segment to replace ``first_source`` and its successors.

    Its files are removed afterwards, unless they were swapped in.
    """
    with storage_errors(f"{directory} cannot be written"):
        cleaned = CleanedSegment(directory, first_source.base_offset)
    try:
        yield cleaned
    finally:
        cleaned.close()
        with storage_errors(f"{directory} cannot be written"):
            discard_cleaned(directory, first_source.base_offset)
