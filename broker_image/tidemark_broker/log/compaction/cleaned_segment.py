"""Segment that a cleaning writes: ``.cleaned`` files until it replaces its sources.

Indexes are built as for any segment. It takes over the age of its last source, so that retention is
unaffected.

Kafka leaves gaps where records were compacted. Here a log has no gaps (invariant 4): a hole means
that records were lost, and recovery, followers and the tier check every batch for it. So the
offsets of dropped records stay part of a batch. The last offset of the batch before is raised, or
an empty batch covers them. The former is not possible if that batch has a producer id (its last
offset determines its last sequence number), nor beyond the end of a leader epoch (batches determine
the start of each epoch). Both forms are Kafka's own, and are what clients see of a log that Kafka
compacted.

The complete segment replaces its sources by renames; :mod:`tidemark_broker.log.swap_files` has the
file names. Readers that have the old files open continue. A reader that opens them by name at that
moment retries (:mod:`tidemark_broker.log.reading`).
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
from tidemark.records.batch import BatchHeader
from tidemark.records.rewriting import Gap, reaching_to
from tidemark_broker.log.batch_walk import batch_at
from tidemark_broker.log.compaction.candidate_selection import IndexedBytes
from tidemark_broker.log.errors import LogError, StorageError, storage_errors
from tidemark_broker.log.files import put, remove_files, sync_directory
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.swap_files import begin_swap, cleaned_path, discard_cleaned, has_begun
from tidemark_broker.log.transaction_index import TransactionIndex


class RewrittenBatches:
    """Sequence of output batches: takes the fate of each input batch, and yields the batches to
    write.
    """

    def __init__(self) -> None:
        #: Pending output: a batch, the offset it is to cover, and then a gap after it.
        self._batch: bytes | None = None
        self._header: BatchHeader | None = None
        self._covered_to = 0
        self._gap: Gap | None = None

    def keep(self, header: BatchHeader, batch: bytes) -> Iterator[bytes]:
        """Keep a batch.

        ``header`` is its original one, of which offsets, epoch and producer id still apply.
        """
        yield from self.finish()
        self._batch, self._header, self._covered_to = batch, header, header.last_offset

    def drop(self, header: BatchHeader) -> Iterator[bytes]:
        """Drop a batch completely."""
        if self._gap is None and self._can_cover(header):
            self._covered_to = header.last_offset
            return
        if self._gap is not None and _continues(self._gap, header):
            self._gap = Gap(self._gap.base_offset, header.last_offset, self._gap.leader_epoch)
            return
        yield from self.finish()
        self._gap = Gap(header.base_offset, header.last_offset, header.partition_leader_epoch)

    def finish(self) -> Iterator[bytes]:
        """Yield the pending output at the end."""
        if self._batch is not None and self._header is not None:
            reaches_further = self._covered_to > self._header.last_offset
            yield reaching_to(self._batch, self._covered_to) if reaches_further else self._batch
        if self._gap is not None:
            yield self._gap.batch()
        self._batch = self._header = self._gap = None

    def _can_cover(self, header: BatchHeader) -> bool:
        front = self._header
        return (
            front is not None
            and front.producer_id < 0
            and not front.is_control
            and front.partition_leader_epoch == header.partition_leader_epoch
            and header.last_offset - front.base_offset <= INT32_MAX
        )


def _continues(gap: Gap, header: BatchHeader) -> bool:
    return (
        gap.leader_epoch == header.partition_leader_epoch
        and header.last_offset - gap.base_offset <= INT32_MAX
    )


def is_filler(header: BatchHeader) -> bool:
    """Return whether a batch is an empty one of a former cleaning that only covers offsets."""
    return not header.count and header.producer_id < 0 and not header.is_control


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


def swap_in(log: PartitionLog, sources: Sequence[Segment], cleaned: Segment) -> bool:
    """Replace ``sources`` in the log by ``cleaned``, the compacted segment made from them. Blocks.

    Return False, with nothing changed, if the log does not have all sources any more. A swap that
    fails halfway leaves a log that must be reopened, which completes the swap.
    """
    with log.shaping:
        with log.lock:
            log.check_usable()
            # Retention or a truncation may have removed a source since the cleaning began.
            if not _has_all(log, sources):
                return False
        # From here the swap is on disk: a crash completes it at the next start.
        _begin(log, cleaned)
        with log.lock:
            log.check_usable()
            try:
                renamed = log.segments.swap(sources, cleaned)
            except LogError as error:
                raise _in_doubt(log, error) from error
        with storage_errors(f"{log.directory} cannot be synced"):
            sync_directory(log.directory)
    remove_files(renamed)
    return True


def _has_all(log: PartitionLog, sources: Sequence[Segment]) -> bool:
    first = log.segments.number_of(sources[0].base_offset)
    return log.segments.items[first : first + len(sources)] == list(sources)


def _begin(log: PartitionLog, cleaned: Segment) -> None:
    try:
        begin_swap(log.directory, cleaned.base_offset)
    except OSError as error:
        with log.lock:
            # Once the .swap log exists, the next opening completes the swap.
            if not log.closed and has_begun(log.directory, cleaned.base_offset):
                raise _in_doubt(log, error) from error
        raise StorageError(f"{cleaned.log_path} cannot be replaced: {error.strerror}") from error


def _in_doubt(log: PartitionLog, error: Exception) -> StorageError:
    """Mark the log as failed until it is reopened.

    A swap that completes much later would restore records that were cut off meanwhile.
    """
    log.failure = (
        f"{log.directory}: a compacted segment could not replace its sources ({error}); the log "
        "takes nothing more until it was opened again"
    )
    log.close_files()
    return StorageError(log.failure)
