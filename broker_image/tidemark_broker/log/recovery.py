"""Recovery of a partition's directory into a clean, contiguous log after a crash.

From the recovery point every batch is checked (length, CRC, contiguity). The log is cut at the
first bad batch, later segments are removed, indexes are rebuilt. Below the recovery point, and
everywhere after a clean shutdown, only the ends of indexes are checked; mismatches are rebuilt from
headers. A hole below the recovery point cannot come from a crash. It is an error for an
administrator, never a reason to delete.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c

from tidemark.logfiles import names
from tidemark.logfiles.offset_index import IndexFormatError
from tidemark.records.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    parse_header,
)
from tidemark_broker.log.batch_walk import BatchAt, walk_batches
from tidemark_broker.log.epoch_file import SegmentEpochs
from tidemark_broker.log.errors import (
    RESTORE_OR_COPY,
    CorruptRecords,
    RecordsMissing,
    StorageError,
    storage_errors,
)
from tidemark_broker.log.files import TEMPORARY_SUFFIX, pread, remove_files, rename_files
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.swap_files import finish_swaps
from tidemark_broker.log.transaction_index import TransactionIndex

logger = logging.getLogger(__name__)

_CRC_PIECE_BYTES = 1024 * 1024


@dataclass(slots=True)
class LoadedSegments:
    """Segments oldest first, the last one open for appending, with the leader epochs of their
    batches.
    """

    segments: list[Segment]
    epochs: list[SegmentEpochs] = field(default_factory=list)
    #: Whether anything was cut off or removed.
    truncated: bool = False
    #: From here the batches, not the indexes, decide which transactions were aborted.
    unindexed_from: int | None = None

    def discard_aborted_from(self, offset: int) -> None:
        """Discard the transaction indexes from ``offset``; they are rebuilt from the batches."""
        for segment in self.segments:
            if segment.base_offset >= offset:
                segment.aborted.forget()
        known = self.unindexed_from
        self.unindexed_from = offset if known is None else min(known, offset)

    @property
    def extent(self) -> tuple[int, int]:
        """First offset and end (exclusive)."""
        return self.segments[0].base_offset, self.segments[-1].next_offset


def load_segments(
    directory: Path,
    *,
    recovery_point: int,
    clean_shutdown: bool,
    index_interval_bytes: int,
    base_if_empty: int,
    now_ms: int,
) -> LoadedSegments:
    """Read the segments of a log directory; check and repair what a crash may have damaged. Blocks.

    ``recovery_point``: offset below which everything was synced. ``base_if_empty``: offset of the
    first segment of an empty directory. Raises RecordsMissing for a hole below the recovery point.
    """
    with storage_errors(f"{directory} cannot be read"):
        segments, damaged = _segments_of(directory)
    # An empty directory: start at the log start, or at 0 for a new log.
    loaded = LoadedSegments(segments)
    if not loaded.segments:
        loaded.segments.append(Segment.create(directory, base_if_empty, created_ms=now_ms))
        return loaded
    # After a clean shutdown the ends of the files are checked, otherwise all that was not synced.
    try:
        # After a clean shutdown only the active segment is checked in detail.
        checked_from = len(loaded.segments) - 1
        if not clean_shutdown:
            checked_from = _number_of(loaded.segments, recovery_point)
        # Closed segments below the recovery point were synced: the ends of their indexes suffice.
        for segment, following in zip(
            loaded.segments[:checked_from], loaded.segments[1 : checked_from + 1], strict=True
        ):
            _load_closed_segment(loaded, segment, following.base_offset, index_interval_bytes)
        if not (clean_shutdown and _load_active_segment(loaded, loaded.segments[-1])):
            _recover_from(loaded, checked_from, index_interval_bytes)
        # A damaged transaction index makes all later ones doubtful: producers are replayed from
        # there.
        if damaged is not None:
            loaded.discard_aborted_from(damaged)
    except BaseException:
        for segment in loaded.segments:
            segment.unload()
        raise
    return loaded


def _segments_of(directory: Path) -> tuple[list[Segment], int | None]:
    """Return a directory's segments, oldest first, after completing removals and swaps.

    The second value is the base offset of the first segment whose transaction index is damaged,
    None for none.
    """
    files: dict[int, set[str]] = {}
    # A compaction's swap must be complete before names are read.
    finish_swaps(directory)
    for path in directory.iterdir():
        # A removal or a write that the crash has interrupted.
        if path.name.endswith((names.DELETED_SUFFIX, TEMPORARY_SUFFIX)):
            path.unlink()
        # Group the files of a segment by base offset.
        elif (parsed := names.parse_segment_file_name(path.name)) is not None:
            files.setdefault(parsed[0], set()).add(parsed[1])
    segments, damaged = [], None
    for offset, suffixes in sorted(files.items()):
        # Only the end of a transaction index is checked here; a damaged one is rebuilt later.
        if names.LOG_SUFFIX in suffixes:
            stat = (directory / names.segment_file_name(offset, names.LOG_SUFFIX)).stat()
            segment = Segment(directory, offset, created_ms=stat.st_mtime_ns // 1_000_000)
            segment.size_bytes = stat.st_size
            if names.TRANSACTION_INDEX_SUFFIX in suffixes:
                index = TransactionIndex.opened(segment.aborted.path)
                if index is None:
                    logger.warning("%s is damaged and will be rebuilt", segment.aborted.path)
                    damaged = offset if damaged is None else damaged
                else:
                    segment.aborted = index
            segments.append(segment)
        # Index files without a log file are left by a removal; snapshots are kept for recovery.
        else:
            for suffix in suffixes - {names.PRODUCER_SNAPSHOT_SUFFIX}:
                (directory / names.segment_file_name(offset, suffix)).unlink()
    return segments, damaged


def _number_of(segments: Sequence[Segment], offset: int) -> int:
    """Return the number of the segment that contains ``offset``, or 0 if it is below all."""
    found = 0
    for number, segment in enumerate(segments):
        if segment.base_offset <= offset:
            found = number
    return found


def _load_closed_segment(
    loaded: LoadedSegments, segment: Segment, next_base: int, index_interval_bytes: int
) -> None:
    """Set a closed segment's offsets and timestamps from its index files; rebuild wrong indexes.

    ``next_base``: base offset of the following segment. Raises RecordsMissing if the segment ends
    below it.
    """
    epochs = _try_index_ends(segment)
    # An index that does not reach the next segment was not saved completely: rebuild it.
    if epochs is None or segment.next_offset != next_base:
        logger.warning("the indexes of %s do not fit its log and are rebuilt", segment.log_path)
        epochs = SegmentEpochs(segment, is_complete=True)
        segment.unload()
        segment.open_for_recovery()
        _repeat_cut(segment, next_base)
        for batch in segment.count_batches(index_interval_bytes):
            epochs.note(batch)
        segment.seal_rebuilt()
    # Closed segments do not stay open: a broker has too many for its descriptor limit.
    loaded.epochs.append(epochs)
    segment.unload()
    if segment.next_offset != next_base:
        raise RecordsMissing(
            f"{segment.directory}: offsets {segment.next_offset} to {next_base - 1} are missing "
            f"below the recovery point; {RESTORE_OR_COPY}"
        )


def _repeat_cut(segment: Segment, next_base: int) -> None:
    """Repeat a cut at the next segment's base that a power failure undid.

    The cut was made before the next segment was created, but was not durable yet.
    """
    assert segment.descriptor is not None
    for batch in walk_batches(segment.descriptor, 0, segment.size_bytes):
        if batch.base_offset == next_base:
            logger.warning("%s is cut again at offset %d", segment.log_path, next_base)
            segment.cut(batch.position)
            return


def _load_active_segment(loaded: LoadedSegments, segment: Segment) -> bool:
    """Set the active segment's offsets and timestamps after a clean shutdown, and load its indexes.

    Return False if the files do not match, so that every batch must be checked.
    """
    if not segment.size_bytes:
        segment.open_for_recovery()
        return True
    segment.open_file(writable=True)
    epochs = _try_index_ends(segment)
    if epochs is None:
        return False
    # Unlike closed segments, the active one needs its indexes in memory.
    try:
        segment.read_index()
        segment.adopt_times(segment.read_times())
    except (IndexFormatError, OSError) as error:
        logger.warning("%s: %s", segment.log_path, error)
        return False
    loaded.epochs.append(epochs)
    return True


def _try_index_ends(segment: Segment) -> SegmentEpochs | None:
    """Call :func:`_read_index_ends`; return None also if index or log are unreadable."""
    try:
        return _read_index_ends(segment)
    except (CorruptRecords, IndexFormatError, OSError) as error:
        logger.warning("%s: %s", segment.log_path, error)
        return None


def _read_index_ends(segment: Segment) -> SegmentEpochs | None:
    """Set a segment's offsets and timestamps from the ends of its indexes and of its log.

    Return the leader epochs of its first and last batches. None if the indexes do not suffice, so
    that every header must be read. Raises CorruptRecords, IndexFormatError or OSError.
    """
    epochs = SegmentEpochs(segment, is_complete=False)
    index, times = segment.index_ends()
    segment.open_file()
    assert segment.descriptor is not None
    # Records without a time index: the largest timestamp is unknown, so rebuild.
    if not len(times) and segment.size_bytes:
        return None
    last = times.last()
    segment.largest_timestamp_ms, segment.offset_of_largest = last.timestamp_ms, last.offset
    if not segment.size_bytes:
        segment.next_offset = segment.base_offset
        return epochs
    # The first batch gives the roll clock; the walk from the last entry gives the end.
    first = next(walk_batches(segment.descriptor, 0, segment.size_bytes))
    segment.first_timestamp_ms = first.max_timestamp
    epochs.note(first)
    for batch in walk_batches(segment.descriptor, index.last()[1], segment.size_bytes):
        segment.next_offset = batch.last_offset + 1
        # A roll may have happened before the last time entry was saved.
        if batch.max_timestamp > segment.largest_timestamp_ms:
            segment.largest_timestamp_ms = batch.max_timestamp
            segment.offset_of_largest = batch.last_offset
        epochs.note(batch)
    fits = first.base_offset == segment.base_offset and last.offset < segment.next_offset
    return epochs if fits else None


def _recover_from(loaded: LoadedSegments, number: int, index_interval_bytes: int) -> None:
    """Check every batch from segment ``number`` on, and end the log at the first bad one."""
    segments = loaded.segments
    loaded.discard_aborted_from(segments[number].base_offset)
    while number < len(segments):
        segment = segments[number]
        is_intact = _recover(segment, loaded, index_interval_bytes)
        # A cut, or a gap to the next segment, ends the log: later segments cannot be kept.
        following = segments[number + 1] if number + 1 < len(segments) else None
        if following is not None and (
            not is_intact or following.base_offset != segment.next_offset
        ):
            _remove_after(loaded, number)
        if number + 1 < len(segments):
            segment.seal_rebuilt()
            segment.unload()
        else:
            # On a full disk the indexes of the active segment stay in memory until the next flush
            # or roll, so that the log is readable.
            try:
                segment.rewrite_indexes()
            except StorageError as error:
                logger.warning("%s (retried at the next flush)", error)
        number += 1


def _remove_after(loaded: LoadedSegments, number: int) -> None:
    """Remove every segment after ``number``, newest first, so that the rest is always a prefix."""
    loaded.truncated = True
    for segment in reversed(loaded.segments[number + 1 :]):
        logger.warning("%s is after the end of the clean log and is removed", segment.log_path)
        segment.unload()
        remove_files(rename_files(segment.paths(), names.DELETED_SUFFIX))
    del loaded.segments[number + 1 :]


def _recover(segment: Segment, loaded: LoadedSegments, index_interval_bytes: int) -> bool:
    """Check every batch of a segment and rebuild its indexes in memory.

    The segment is cut at the first bad batch. Return False if that was necessary.
    """
    segment.unload()
    segment.open_for_recovery()
    # The epochs are collected from every batch, since the checkpoint may be older.
    assert segment.descriptor is not None
    epochs = SegmentEpochs(segment, is_complete=True)
    loaded.epochs.append(epochs)
    end = segment.size_bytes
    position, expected = 0, segment.base_offset
    try:
        while position < end:
            # Each header is checked in full before the batch counts as part of the log.
            header = _checked_header(segment.descriptor, position, end, expected)
            batch = BatchAt(
                position,
                header.size_bytes,
                header.base_offset,
                header.last_offset,
                header.partition_leader_epoch,
                header.max_timestamp,
            )
            segment.note_batch(batch, position, index_interval_bytes)
            epochs.note(batch)
            position, expected = batch.end_position, header.next_offset
    # An incomplete or damaged batch: everything from here was never acknowledged as flushed.
    except CorruptBatch as error:
        logger.warning(
            "%s is cut from %d to %d bytes (offset %d): %s",
            segment.log_path, end, position, expected, error,
        )  # fmt: skip
        segment.cut(position)
        loaded.truncated = True
        return False
    return True


def _checked_header(descriptor: int, position: int, end: int, expected: int) -> BatchHeader:
    """Return the header of the batch at ``position`` after checking its length, offset and CRC.

    ``end``: size of the file. ``expected``: base offset that continues the log. Raises
    CorruptBatch.
    """
    header = parse_header(pread(descriptor, HEADER_BYTES, position))
    if position + header.size_bytes > end:
        raise CorruptBatch(f"a batch has {header.size_bytes} bytes, the file only {end - position}")
    if header.base_offset != expected:
        raise CorruptBatch(f"base offset {header.base_offset} where {expected} continues the log")
    # Read in pieces: a batch may be as large as message.max.bytes allows.
    crc, at, batch_end = 0, position + CRC_COVERS_FROM, position + header.size_bytes
    while at < batch_end:
        piece = pread(descriptor, min(_CRC_PIECE_BYTES, batch_end - at), at)
        if not piece:
            raise CorruptBatch(f"the file ends at byte {at}")
        crc = google_crc32c.extend(crc, piece)
        at += len(piece)
    if crc != header.crc:
        raise CorruptBatch(f"CRC {crc:#010x}, the header says {header.crc:#010x}")
    return header
