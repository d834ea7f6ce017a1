"""One cleaning of one log, in a thread (Kafka's ``Cleaner``).

First the dirty part is read, and of each key the last offset noted; where the memory for that is
full, the cleaning ends there. Then all segments up to there are written anew, several small ones as
one, with what :class:`BatchFilter` keeps of each batch, and take the places of the old ones group
by group. The log is never locked for longer than a few renames take; who cuts, closes or removes it
meanwhile need not wait, the cleaning finds that out and gives up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidemark.records.batch import BatchHeader, CorruptBatch
from tidemark.records.keyed import keyed_records
from tidemark_broker.log import flushing
from tidemark_broker.log.compaction.batch_filter import BatchFilter, marker_of, unpacked
from tidemark_broker.log.compaction.choosing import Dirtiness, groups
from tidemark_broker.log.compaction.cleaned_segment import CleanedSegment, cleaned_segment
from tidemark_broker.log.compaction.offset_map import SLOT_BYTES, OffsetMap
from tidemark_broker.log.compaction.pace import CleaningAborted, Pace
from tidemark_broker.log.compaction.rewritten import RewrittenBatches, is_filler
from tidemark_broker.log.compaction.sources import batches_of, headers_of
from tidemark_broker.log.compaction.swapping import swap_in
from tidemark_broker.log.compaction.transactions import CleanedTransactions
from tidemark_broker.log.errors import LogError
from tidemark_broker.log.log_state import LogState
from tidemark_broker.log.segment import Segment

#: Producer ids whose last batch is looked for; with more of them every batch counts as one.
_PRODUCERS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """What a cleaning may use: Kafka's ``log.cleaner.*``; ``memory_bytes`` for each thread."""

    memory_bytes: int
    load_factor: float
    buffer_bytes: int
    producer_expiration_ms: int


@dataclass(slots=True)
class CleaningStats:
    """What a cleaning did."""

    read_bytes: int = 0
    written_bytes: int = 0
    #: Where it came to: the first offset that is dirty now.
    next_dirty: int = 0
    map_utilization: float = 0.0
    unreadable_batches: int = 0
    keyless_records: int = 0


@dataclass(slots=True)
class _Dirty:
    """What reading the dirty part tells."""

    offsets: OffsetMap
    #: Of each producer id seen from there on the last offset of its last batch.
    last_offsets: dict[int, int] = field(default_factory=dict)

    def note_producer(self, header: BatchHeader) -> None:
        if header.producer_id >= 0 and len(self.last_offsets) < _PRODUCERS_MAX:
            self.last_offsets[header.producer_id] = header.last_offset


class Cleaning:
    """Use :meth:`run` once. ``stopping`` is asked often, ``moved`` told of bytes (see
    :class:`Pace`)."""

    def __init__(
        self,
        log: LogState,
        what: Dirtiness,
        settings: CleanerSettings,
        *,
        now_ms: int,
        stopping: Callable[[], bool],
        moved: Callable[[int], None],
    ) -> None:
        self._log = log
        self._what = what
        self._settings = settings
        self._now_ms = now_ms
        self._stopping = stopping
        self._truncations = log.truncations
        self._pace = Pace(self._is_over, moved)
        self.stats = CleaningStats()

    def _is_over(self) -> bool:
        log = self._log
        unusable = log.closed or log.failure is not None
        return unusable or log.truncations != self._truncations or self._stopping()

    def run(self) -> CleaningStats:
        """T: compact, and have on record how far. :class:`CleaningAborted`, or a
        :class:`LogError` where the log cannot be compacted."""
        log, what = self._log, self._what
        flushing.flush(log, what.first_uncleanable)
        offsets = self._offset_map()
        try:
            self._clean(self._read_dirty(offsets))
        except LogError as error:
            if self._is_over():
                raise CleaningAborted from error
            raise
        finally:
            self.stats.map_utilization = offsets.utilization
            offsets.close()
        with log.lock:
            if self._is_over():
                raise CleaningAborted
            log.first_dirty = self.stats.next_dirty
        log.checkpoint()
        return self.stats

    def _offset_map(self) -> OffsetMap:
        """As large as it may have to be: there are no more keys than offsets."""
        load_factor = self._settings.load_factor
        offsets = self._what.first_uncleanable - self._what.first_dirty
        needed = (int(offsets / load_factor) + 2) * SLOT_BYTES
        return OffsetMap(min(self._settings.memory_bytes, needed), load_factor)

    def _segments(self, start: int, end: int) -> list[Segment]:
        with self._log.lock:
            self._log.check_usable()
            items = self._log.segments.items
            return [each for each in items if each.next_offset > start and each.base_offset < end]

    def _read(self, segment: Segment) -> Iterator[tuple[BatchHeader, bytes]]:
        for header, batch in batches_of(segment, self._settings.buffer_bytes):
            self._pace.step(header.size_bytes)
            self.stats.read_bytes += header.size_bytes
            yield header, batch

    # -- the dirty part ------------------------------------------------------------------------

    def _read_dirty(self, offsets: OffsetMap) -> _Dirty:
        """Note the last offset of each key, as far as memory goes, and the last batch of each
        producer, to the end of the log."""
        what, dirty = self._what, _Dirty(offsets)
        transactions, is_full = CleanedTransactions(), False
        for segment in self._segments(what.first_dirty, self._log.bounds.end):
            if is_full or segment.base_offset >= what.first_uncleanable:
                self._note_producers(segment, dirty)
                continue
            for header, batch in self._read(segment):
                dirty.note_producer(header)
                if not is_full and header.last_offset >= what.first_dirty:
                    is_full = not self._note(offsets, transactions, header, batch)
        if len(dirty.last_offsets) >= _PRODUCERS_MAX:
            dirty.last_offsets.clear()
        self.stats.next_dirty = max(offsets.latest_offset + 1, what.first_dirty)
        return dirty

    def _note_producers(self, segment: Segment, dirty: _Dirty) -> None:
        for header in headers_of(segment):
            self._pace.step(0)
            dirty.note_producer(header)

    def _note(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        header: BatchHeader,
        batch: bytes,
    ) -> bool:
        """False where there was no room for a key."""
        try:
            if header.is_control:
                transactions.may_drop_marker(header, marker_of(header, batch))
            elif not transactions.may_drop_data(header):
                start, base = self._what.first_dirty, header.base_offset
                records = keyed_records(unpacked(header, batch), header.count)
                for turn in self._pace.turns(records):
                    for _, _, delta, key, _ in turn:
                        if key is not None and base + delta >= start:
                            if offsets.is_full:
                                return False
                            offsets.put(key, base + delta)
        except CorruptBatch:
            pass  # it stays as it is, and what stands behind it goes on
        offsets.latest_offset = max(offsets.latest_offset, header.last_offset)
        return True

    # -- writing anew --------------------------------------------------------------------------

    def _clean(self, dirty: _Dirty) -> None:
        config = self._log.config
        keep = BatchFilter(
            dirty.offsets,
            CleanedTransactions(),
            dirty.last_offsets,
            self._pace,
            now_ms=self._now_ms,
            delete_retention_ms=config.delete_retention_ms,
            producer_expiration_ms=self._settings.producer_expiration_ms,
        )
        segments = self._segments(-1, self.stats.next_dirty)
        infos = [each.info(is_active=False) for each in segments]
        for first, last in groups(infos, [_index_bytes(each) for each in segments], config):
            self._clean_group(segments[first:last], keep)
        self.stats.unreadable_batches = keep.unreadable
        self.stats.keyless_records = keep.keyless

    def _clean_group(self, sources: list[Segment], keep: BatchFilter) -> None:
        with cleaned_segment(self._log.directory, sources) as cleaned:
            if not self._write(sources, cleaned, keep):
                return
            cleaned.finish()
            if self._is_over() or not swap_in(self._log, sources, cleaned.segment):
                raise CleaningAborted

    def _write(self, sources: list[Segment], cleaned: CleanedSegment, keep: BatchFilter) -> bool:
        """False where it says the same as the one segment that it is made from."""
        interval, rewritten, changed = self._log.config.index_interval_bytes, RewrittenBatches(), 0
        for source in sources:
            for header, batch in self._read(source):
                left = keep.filtered(header, batch)
                changed += left is not batch and not is_filler(header)
                ready = rewritten.gone(header) if left is None else rewritten.kept(header, left)
                for each in ready:
                    self._append(cleaned, each, interval)
        for each in rewritten.rest():
            self._append(cleaned, each, interval)
        size_bytes = sum(each.size_bytes for each in sources)
        return bool(changed) or len(sources) > 1 or cleaned.segment.size_bytes != size_bytes

    def _append(self, cleaned: CleanedSegment, batch: bytes, index_interval_bytes: int) -> None:
        cleaned.append(batch, index_interval_bytes)
        self.stats.written_bytes += len(batch)
        self._pace.step(len(batch))


def _index_bytes(segment: Segment) -> int:
    """The larger of its indexes, in their files."""
    sizes = [0]
    for path in (segment.index_path, segment.time_index_path):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue  # it is built anew where it is needed
    return max(sizes)
