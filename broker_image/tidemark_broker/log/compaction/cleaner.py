"""One cleaning of one log, in a thread (Kafka's ``Cleaner``).

First the dirty part is read, and the last offset of each key is noted; the range ends where the
memory for keys is full. Then all segments up to there are rewritten, several small ones as one,
with the records that :class:`BatchFilter` keeps. The results replace the old segments group by
group. The log is locked only for a few renames. A thread that cuts, closes or removes the log
meanwhile need not wait: the cleaning detects it and stops.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidemark.logfiles.producer_snapshot import decode_snapshot
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    check_crc,
    parse_header,
)
from tidemark.records.control import read_end_marker
from tidemark.records.record_keys import keyed_records
from tidemark_broker.log import flushing
from tidemark_broker.log.compaction.batch_filter import (
    BatchFilter,
    CleanedTransactions,
    LastBatch,
    unpacked,
)
from tidemark_broker.log.compaction.candidate_selection import Dirtiness, dirtiness, fits_into_group
from tidemark_broker.log.compaction.cleaned_segment import (
    CleanedSegment,
    RewrittenBatches,
    cleaned_segment,
    is_filler,
    swap_in,
)
from tidemark_broker.log.compaction.cleaning_pace import CleaningAborted, CleaningPace
from tidemark_broker.log.compaction.offset_map import SLOT_BYTES, OffsetMap
from tidemark_broker.log.errors import CorruptRecords, LogError, storage_errors
from tidemark_broker.log.files import opened, pread, pread_exactly
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.reading import aborted_transactions
from tidemark_broker.log.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """Resources of a cleaning: Kafka's ``log.cleaner.*``. ``memory_bytes`` is for each thread."""

    memory_bytes: int
    load_factor: float
    buffer_bytes: int


@dataclass(slots=True)
class CleaningStats:
    """Result of a cleaning."""

    read_bytes: int = 0
    written_bytes: int = 0
    #: First offset that is dirty after the cleaning.
    next_dirty: int = 0
    map_utilization: float = 0.0
    unreadable_batches: int = 0
    keyless_records: int = 0


def dirtiness_of(log: PartitionLog, now_ms: int) -> Dirtiness:
    """Return the dirty part of a log, and the end of what can be compacted now."""
    with log.lock:
        infos, bounds = log.segments.infos(), log.bounds
    return dirtiness(
        infos,
        bounds,
        log.config,
        first_dirty=log.first_dirty,
        last_stable_offset=log.last_stable_offset,
        now_ms=now_ms,
    )


def clean(
    log: PartitionLog,
    part: Dirtiness,
    settings: CleanerSettings,
    *,
    now_ms: int,
    stopping: Callable[[], bool],
    moved: Callable[[int], float],
) -> CleaningStats:
    """Compact the part of a log that :func:`dirtiness_of` returned; persist the progress. Blocks.

    There is one call at a time for each log. ``moved`` receives the bytes read and written, and
    returns the seconds to pause. ``stopping`` is polled often. Raises :class:`CleaningAborted` if
    it returns True, or if the log is cut, closed or removed meanwhile. Raises :class:`LogError` if
    the log cannot be compacted.
    """
    return _Cleaning(log, part, settings, now_ms, stopping, moved).run()


class _Cleaning:
    """State of one cleaning; :meth:`run` is called once."""

    def __init__(
        self,
        log: PartitionLog,
        part: Dirtiness,
        settings: CleanerSettings,
        now_ms: int,
        stopping: Callable[[], bool],
        moved: Callable[[int], float],
    ) -> None:
        """Prepare the cleaning; see :func:`clean` for the parameters."""
        self._log = log
        self._part = part
        self._settings = settings
        self._now_ms = now_ms
        self._stopping = stopping
        # Truncations, and base of the first segment, when the cleaning began. If either changes,
        # an error of the cleaning is a consequence.
        self._truncations, self._first_base = log.truncations, _first_base_offset(log)
        self._pace = CleaningPace(self._is_over, moved)
        self.stats = CleaningStats()

    def _is_over(self) -> bool:
        log = self._log
        unusable = log.closed or log.failure is not None
        return unusable or log.truncations != self._truncations or self._stopping()

    def run(self) -> CleaningStats:
        """Compact the log: map the last offset of each key, then rewrite the segments.

        Blocks. Return the figures of the cleaning.
        """
        log, part = self._log, self._part
        # Only durable segments are compacted.
        flushing.flush(log, part.first_uncleanable)
        # Compacted segments must be below the recovery point: a recovery would take their
        # missing offsets for an incomplete log.
        log.checkpoint()
        offsets = self._offset_map()
        try:
            self._read_dirty(offsets)
            self._clean(offsets)
        except LogError as error:
            # An error after a change of the log is a consequence of that change, not a defect.
            if log.failure is None and (
                self._is_over() or self._first_base != _first_base_offset(log)
            ):
                raise CleaningAborted from error
            raise
        finally:
            self.stats.map_utilization = offsets.utilization
            offsets.close()
        # A truncation may have lowered first_dirty since: do not raise it again.
        with log.lock:
            if self._is_over():
                raise CleaningAborted
            log.first_dirty = self.stats.next_dirty
        log.checkpoint()
        return self.stats

    def _offset_map(self) -> OffsetMap:
        """Allocate the map: its maximum is one key for each offset."""
        load_factor = self._settings.load_factor
        offsets = self._part.first_uncleanable - self._part.first_dirty
        needed = (int(offsets / load_factor) + 2) * SLOT_BYTES
        return OffsetMap(min(self._settings.memory_bytes, needed), load_factor)

    def _segments(self, start: int, end: int) -> list[Segment]:
        with self._log.lock:
            self._log.check_usable()
            items = self._log.segments.items
            return [item for item in items if item.next_offset > start and item.base_offset < end]

    def _read(self, segment: Segment) -> Iterator[tuple[BatchHeader, bytes]]:
        for header, batch in batches_of(segment, self._settings.buffer_bytes):
            self._pace.step(header.size_bytes)
            self.stats.read_bytes += header.size_bytes
            yield header, batch

    # -- the dirty part ------------------------------------------------------------------------

    def _read_dirty(self, offsets: OffsetMap) -> None:
        """Note the last offset of each key, as far as the memory suffices."""
        part = self._part
        for header, batch in self._dirty_batches(transactions := CleanedTransactions()):
            if not self._note(offsets, transactions, header, batch):
                break
        self.stats.next_dirty = max(offsets.latest_offset + 1, part.first_dirty)

    def _dirty_batches(
        self, transactions: CleanedTransactions
    ) -> Iterator[tuple[BatchHeader, bytes]]:
        part = self._part
        for segment in self._segments(part.first_dirty, part.first_uncleanable):
            transactions.add_aborted(self._aborted([segment]))
            for header, batch in self._read(segment):
                if header.last_offset >= part.first_dirty:
                    yield header, batch

    def _aborted(self, segments: list[Segment]) -> list[AbortedTxn]:
        return aborted_transactions(self._log, segments[0].base_offset, segments[-1].next_offset)

    def _note(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        header: BatchHeader,
        batch: bytes,
    ) -> bool:
        """Record the last offset of each key of a batch in the map; False if the map is full."""
        try:
            if header.is_control:
                transactions.may_drop_marker(header, read_end_marker(batch))
            elif not transactions.may_drop_data(header):
                start, base = self._part.first_dirty, header.base_offset
                payload = unpacked(header, batch)
                records = keyed_records(payload, header.count, header.last_offset_delta)
                # The loop thread runs between the groups of records.
                for turn in self._pace.turns(records):
                    for _, _, delta, key, _ in turn:
                        if key is not None and base + delta >= start:
                            if offsets.is_full:
                                return False
                            offsets.put(key, base + delta)
        except CorruptBatch:
            pass  # the batch stays unchanged, and the cleaning continues after it
        offsets.latest_offset = max(offsets.latest_offset, header.last_offset)
        return True

    # -- rewriting --------------------------------------------------------------------------

    def _clean(self, offsets: OffsetMap) -> None:
        """Rewrite all segments below the end of the mapped part, without superseded records.

        ``offsets``: last offset of each key.
        """
        config, transactions = self._log.config, CleanedTransactions()
        keep = BatchFilter(
            offsets,
            transactions,
            self._last_batches(),
            self._pace,
            now_ms=self._now_ms,
            delete_retention_ms=config.delete_retention_ms,
        )
        # Every segment below the end is rewritten: old records may have keys of the dirty part.
        segments = self._segments(-1, self.stats.next_dirty)
        segments.reverse()  # _clean_group takes the oldest ones from the end
        while segments:
            self._clean_group(segments, keep, transactions)
        self.stats.unreadable_batches = keep.unreadable
        self.stats.keyless_records = keep.keyless

    def _last_batches(self) -> dict[int, LastBatch]:
        # Appends wait for this lock, so only the bytes are taken here and decoded below.
        with self._log.lock:
            snapshot = self._log.producers.snapshot()
        return {
            producer.producer_id: LastBatch(producer.last_offset, producer.producer_epoch)
            for producer in decode_snapshot(snapshot)
        }

    def _clean_group(
        self, segments: list[Segment], keep: BatchFilter, transactions: CleanedTransactions
    ) -> None:
        """Rewrite the oldest of ``segments`` and those after it that fit, as one new segment.

        ``segments`` is newest first; the rewritten ones are removed from it. Raises CleaningAborted
        if the log has changed meanwhile.
        """
        with cleaned_segment(self._log.directory, segments[-1]) as cleaned:
            sources, rewritten, changed = list[Segment](), RewrittenBatches(), False
            while segments and self._fits_into_group(sources, cleaned, segments[-1]):
                sources.append(segments.pop())
                transactions.add_aborted(self._aborted(sources[-1:]))
                changed |= self._write(sources[-1], cleaned, rewritten, keep)
            for item in rewritten.finish():
                self._append(cleaned, item)
            aborted = transactions.take_kept()
            # An unchanged single segment is left alone, which saves the sync and the swap.
            if not changed and _is_unchanged(sources, cleaned, len(aborted)):
                return
            cleaned.finish(sources, aborted)
            # Retention or a truncation may have removed a source during the write.
            if self._is_over() or not swap_in(self._log, sources, cleaned.segment):
                raise CleaningAborted

    def _fits_into_group(
        self, sources: list[Segment], cleaned: CleanedSegment, following: Segment
    ) -> bool:
        return not sources or fits_into_group(
            [source.info(is_active=False) for source in sources],
            cleaned.written,
            following.info(is_active=False),
            _index_bytes(following),
            self._log.config,
        )

    def _write(
        self,
        source: Segment,
        cleaned: CleanedSegment,
        rewritten: RewrittenBatches,
        keep: BatchFilter,
    ) -> bool:
        """Write the records of a segment that are kept. Return whether any content was dropped."""
        changed = False
        for header, batch in self._read(source):
            # Dropping a filler alone is no change worth a rewrite.
            left = keep.filtered(header, batch)
            changed |= left is not batch and not is_filler(header)
            ready = rewritten.drop(header) if left is None else rewritten.keep(header, left)
            for item in ready:
                self._append(cleaned, item)
        return changed

    def _append(self, cleaned: CleanedSegment, batch: bytes) -> None:
        cleaned.append(batch, self._log.config.index_interval_bytes)
        self.stats.written_bytes += len(batch)
        self._pace.step(len(batch))


def _first_base_offset(log: PartitionLog) -> int:
    """Return the base of the first segment, which changes if retention removes segments."""
    return log.segments.items[0].base_offset


def _is_unchanged(sources: list[Segment], cleaned: CleanedSegment, aborted: int) -> bool:
    """Return whether the result equals the single segment it was made from."""
    return (
        len(sources) == 1
        and cleaned.segment.size_bytes == sources[0].size_bytes
        and aborted == len(sources[0].aborted)
    )


def _index_bytes(segment: Segment) -> int:
    """Return the size of the larger index file."""
    sizes = [0]
    for path in (segment.index_path, segment.time_index_path):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue  # a missing index is rebuilt when it is needed
    return max(sizes)


def batches_of(segment: Segment, buffer_bytes: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield header and bytes of each batch, read ``buffer_bytes`` at a time. Blocks.

    Raises :class:`CorruptRecords` for a damaged batch.
    """
    position, end = 0, segment.size_bytes
    with contextlib.ExitStack() as stack:
        # Not the segment's own descriptor, which its log may close.
        with storage_errors(f"{segment.log_path} cannot be read"):
            descriptor = stack.enter_context(opened(segment.log_path))
        # ``begin``: position of the buffer in the file.
        buffer, begin = b"", 0
        while position < end:
            at = position - begin
            if len(buffer) - at < HEADER_BYTES:
                buffer, begin, at = pread(descriptor, buffer_bytes, position), position, 0
            try:
                header = parse_header(buffer, at)
                size = header.size_bytes
                if size > end - position:
                    raise CorruptBatch(  # noqa: TRY301 - one way out below
                        f"a batch of {size} bytes, {end - position} are there"
                    )
                # A batch that exceeds the rest of the buffer is read again as a whole.
                if at + size > len(buffer):
                    read_bytes = min(max(buffer_bytes, size), end - position)
                    buffer, begin, at = pread_exactly(descriptor, read_bytes, position), position, 0
                batch = buffer[at : at + size]
                check_crc(batch, 0, header)
            except CorruptBatch as error:
                raise CorruptRecords(
                    f"{segment.log_path} at byte {position}: {error}; it is not compacted"
                ) from error
            yield header, batch
            position += size
