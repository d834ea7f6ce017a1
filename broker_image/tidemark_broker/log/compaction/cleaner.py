"""One cleaning of one log, in a thread (Kafka's ``Cleaner``).

First the dirty part is read, and of each key the last offset noted; where the memory for that is
full, the cleaning ends there. Then all segments up to there are written anew, several small ones as
one, with what :class:`BatchFilter` keeps of each batch, and take the places of the old ones group
by group. The log is never locked for longer than a few renames take; who cuts, closes or removes it
meanwhile need not wait, the cleaning finds that out and gives up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidemark.logfiles.producer_snapshot import decode_snapshot
from tidemark.logfiles.transaction_index import AbortedTransaction
from tidemark.records.batch import BatchHeader, CorruptBatch
from tidemark.records.control import read_end_marker
from tidemark.records.record_keys import keyed_records
from tidemark_broker.log import flushing
from tidemark_broker.log.compaction.batch_filter import BatchFilter, LastBatch, unpacked
from tidemark_broker.log.compaction.candidate_selection import Dirtiness, dirtiness, goes_along
from tidemark_broker.log.compaction.cleaned_segment import CleanedSegment, cleaned_segment
from tidemark_broker.log.compaction.cleaning_pace import CleaningAborted, Pace
from tidemark_broker.log.compaction.compacted_batches import RewrittenBatches, is_filler
from tidemark_broker.log.compaction.offset_map import SLOT_BYTES, OffsetMap
from tidemark_broker.log.compaction.segment_batches import batches_of
from tidemark_broker.log.compaction.segment_swap import swap_in
from tidemark_broker.log.compaction.transactions import CleanedTransactions
from tidemark_broker.log.errors import LogError
from tidemark_broker.log.log_state import LogState
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.reading import aborted_transactions
from tidemark_broker.log.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """What a cleaning may use: Kafka's ``log.cleaner.*``; ``memory_bytes`` for each thread."""

    memory_bytes: int
    load_factor: float
    buffer_bytes: int


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


def dirtiness_of(log: PartitionLog, now_ms: int) -> Dirtiness:
    """How much of it compaction has not seen, and up to where it may see it now."""
    state = log.state
    with state.lock:
        infos, bounds = state.segments.infos(), state.bounds
    return dirtiness(
        infos,
        bounds,
        state.config,
        first_dirty=state.first_dirty,
        last_stable_offset=log.last_stable_offset,
        now_ms=now_ms,
    )


def clean(
    log: PartitionLog,
    what: Dirtiness,
    settings: CleanerSettings,
    *,
    now_ms: int,
    stopping: Callable[[], bool],
    moved: Callable[[int], float],
) -> CleaningStats:
    """T: compact what :func:`dirtiness_of` told, and have on record how far; one call at a time.
    ``moved`` is told of bytes read and written, and says for how many seconds to rest; ``stopping``
    is asked often. :class:`CleaningAborted` where it says so, or the log is cut, closed or removed
    meanwhile; :class:`LogError` where the log cannot be compacted."""
    return _Cleaning(log.state, what, settings, now_ms, stopping, moved).run()


class _Cleaning:
    """Use :meth:`run` once."""

    def __init__(
        self,
        log: LogState,
        what: Dirtiness,
        settings: CleanerSettings,
        now_ms: int,
        stopping: Callable[[], bool],
        moved: Callable[[int], float],
    ) -> None:
        self._log = log
        self._what = what
        self._settings = settings
        self._now_ms = now_ms
        self._stopping = stopping
        self._truncations, self._begin = log.truncations, _begin_of(log)
        self._pace = Pace(self._is_over, moved)
        self.stats = CleaningStats()

    def _is_over(self) -> bool:
        log = self._log
        unusable = log.closed or log.failure is not None
        return unusable or log.truncations != self._truncations or self._stopping()

    def run(self) -> CleaningStats:
        """T: see :func:`clean`."""
        log, what = self._log, self._what
        flushing.flush(log, what.first_uncleanable)
        log.checkpoint()  # or a crash would have the new segments recovered as if they were torn
        offsets = self._offset_map()
        try:
            self._read_dirty(offsets)
            self._clean(offsets)
        except LogError as error:
            if log.failure is None and (self._is_over() or self._begin != _begin_of(log)):
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

    def _read_dirty(self, offsets: OffsetMap) -> None:
        """Note the last offset of each key, as far as memory goes."""
        what = self._what
        for header, batch in self._dirty_batches(transactions := CleanedTransactions()):
            if not self._note(offsets, transactions, header, batch):
                break
        self.stats.next_dirty = max(offsets.latest_offset + 1, what.first_dirty)

    def _dirty_batches(
        self, transactions: CleanedTransactions
    ) -> Iterator[tuple[BatchHeader, bytes]]:
        what = self._what
        for segment in self._segments(what.first_dirty, what.first_uncleanable):
            transactions.add_aborted(self._aborted([segment]))
            for header, batch in self._read(segment):
                if header.last_offset >= what.first_dirty:
                    yield header, batch

    def _aborted(self, segments: list[Segment]) -> list[AbortedTransaction]:
        return aborted_transactions(self._log, segments[0].base_offset, segments[-1].next_offset)

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
                transactions.may_drop_marker(header, read_end_marker(batch))
            elif not transactions.may_drop_data(header):
                start, base = self._what.first_dirty, header.base_offset
                payload = unpacked(header, batch)
                records = keyed_records(payload, header.count, header.last_offset_delta)
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

    def _clean(self, offsets: OffsetMap) -> None:
        config, transactions = self._log.config, CleanedTransactions()
        keep = BatchFilter(
            offsets,
            transactions,
            self._last_batches(),
            self._pace,
            now_ms=self._now_ms,
            delete_retention_ms=config.delete_retention_ms,
        )
        segments = self._segments(-1, self.stats.next_dirty)
        segments.reverse()
        while segments:
            self._clean_group(segments, keep, transactions)
        self.stats.unreadable_batches = keep.unreadable
        self.stats.keyless_records = keep.keyless

    def _last_batches(self) -> dict[int, LastBatch]:
        with self._log.lock:  # appends wait for it, so only the bytes are taken here
            snapshot = self._log.producers.snapshot()
        return {
            producer.producer_id: LastBatch(producer.last_offset, producer.producer_epoch)
            for producer in decode_snapshot(snapshot)
        }

    def _clean_group(
        self, segments: list[Segment], keep: BatchFilter, transactions: CleanedTransactions
    ) -> None:
        """Write the last of ``segments``, and those before it that fit behind it, as one."""
        with cleaned_segment(self._log.directory, segments[-1]) as cleaned:
            sources, rewritten, changed = list[Segment](), RewrittenBatches(), False
            while segments and self._goes_along(sources, cleaned, segments[-1]):
                sources.append(segments.pop())
                transactions.add_aborted(self._aborted(sources[-1:]))
                changed |= self._write(sources[-1], cleaned, rewritten, keep)
            for each in rewritten.rest():
                self._append(cleaned, each)
            aborted = transactions.take_kept()
            if not changed and _says_the_same(sources, cleaned, len(aborted)):
                return
            cleaned.finish(sources, aborted)
            if self._is_over() or not swap_in(self._log, sources, cleaned.segment):
                raise CleaningAborted

    def _goes_along(
        self, sources: list[Segment], cleaned: CleanedSegment, following: Segment
    ) -> bool:
        return not sources or goes_along(
            [each.info(is_active=False) for each in sources],
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
        """Whether something of it went that was there."""
        changed = False
        for header, batch in self._read(source):
            left = keep.filtered(header, batch)
            changed |= left is not batch and not is_filler(header)
            ready = rewritten.gone(header) if left is None else rewritten.kept(header, left)
            for each in ready:
                self._append(cleaned, each)
        return changed

    def _append(self, cleaned: CleanedSegment, batch: bytes) -> None:
        cleaned.append(batch, self._log.config.index_interval_bytes)
        self.stats.written_bytes += len(batch)
        self._pace.step(len(batch))


def _begin_of(log: LogState) -> int:
    """Another one where retention has taken segments."""
    return log.segments.items[0].base_offset


def _says_the_same(sources: list[Segment], cleaned: CleanedSegment, aborted: int) -> bool:
    """As the one segment that it is made from."""
    return (
        len(sources) == 1
        and cleaned.segment.size_bytes == sources[0].size_bytes
        and aborted == len(sources[0].aborted)
    )


def _index_bytes(segment: Segment) -> int:
    """The larger of its indexes, in their files."""
    sizes = [0]
    for path in (segment.index_path, segment.time_index_path):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue  # it is built anew where it is needed
    return max(sizes)
