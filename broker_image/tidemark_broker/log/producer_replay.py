"""What a log knows of its producers, made anew from the last snapshot and the batches behind it.

So it is when a log is opened, and after a truncation. Where a segment's transaction index was lost
with a crash, the batches tell it as well: then all from that segment on is told anew, its snapshots
too.
"""

import logging
from collections.abc import Iterator, Sequence

from tidemark.records.batch import CorruptBatch
from tidemark_broker.log.batch_walk import walk_produced
from tidemark_broker.log.errors import CorruptRecords, StorageError
from tidemark_broker.log.producer_entry import ProducerBatch, producer_batch
from tidemark_broker.log.producer_snapshots import ProducerSnapshots
from tidemark_broker.log.producer_states import ProducerStates
from tidemark_broker.log.segment import Segment, wall_clock_ms

logger = logging.getLogger(__name__)

#: What is read again of the end of a log that was written lately, however many producers it has.
_RECALLED_BYTES = 256 * 1024
_RECENT_MS = 600_000


def rebuild(
    producers: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: Sequence[Segment],
    *,
    indexed_below: int,
    high_watermark: int,
) -> None:
    """T: ``producers`` as they are at the end of ``segments``. The transaction indexes of those
    that begin at or behind ``indexed_below`` are empty and are filled. :class:`CorruptRecords` for
    a marker that cannot be read."""
    with producers.told_anew():
        _rebuild(producers, snapshots, segments, indexed_below, high_watermark)


def _rebuild(
    producers: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: Sequence[Segment],
    indexed_below: int,
    high_watermark: int,
) -> None:
    end = segments[-1].next_offset
    # A snapshot does not tell of transactions that had ended by markers not committed yet. One that
    # closing made does not leave any out.
    vague = {each.base_offset for each in segments if each.base_offset > high_watermark}
    found = snapshots.latest(min(indexed_below, end), vague)
    begin, entries = (segments[0].base_offset, ()) if found is None else found
    producers.load(entries)
    if entries:
        producers.recall(_lately_before(segments, begin))
    snapshots.remove_above(max(begin, indexed_below))
    for segment in segments:
        if segment.next_offset <= begin:
            continue
        is_told_anew = segment.base_offset >= indexed_below
        if is_told_anew and segment.base_offset > begin:
            snapshots.take(segment.base_offset, producers.snapshot())
            try:
                snapshots.save(segment.base_offset)
            except StorageError as error:  # a full disk must not keep a log from opening
                logger.warning("%s (kept in memory; an earlier one serves after a crash)", error)
        for batch in _produced(segment, begin):
            aborted = producers.note(batch)
            if aborted is not None and is_told_anew:
                segment.aborted.append(aborted)
        if is_told_anew and segment is not segments[-1]:
            segment.aborted.saved(segment.aborted.save())
    producers.on_high_watermark(high_watermark)


def _lately_before(segments: Sequence[Segment], offset: int) -> Iterator[ProducerBatch]:
    """The last of the producers' batches below ``offset``, if they were written lately: their
    clients may send them once more, and a snapshot has only one of each producer."""
    before = [each for each in segments if each.next_offset <= offset and each.size_bytes]
    chosen, left = [], _RECALLED_BYTES
    for segment in reversed(before):
        if left <= 0 or wall_clock_ms() - segment.modified_ms >= _RECENT_MS:
            break
        chosen.append((segment, left))
        left -= segment.size_bytes
    for segment, last_bytes in reversed(chosen):
        yield from _produced(segment, 0, last_bytes=last_bytes)


def _produced(
    segment: Segment, begin: int, *, last_bytes: int | None = None
) -> Iterator[ProducerBatch]:
    """The producers' batches of a segment from ``begin`` on, or those in its ``last_bytes``."""
    was_open = segment.descriptor is not None
    segment.open_file()
    assert segment.descriptor is not None
    position = 0 if last_bytes is None else _position_before_end(segment, last_bytes)
    try:
        for at, header in walk_produced(segment.descriptor, position, segment.size_bytes):
            if at.base_offset < begin:
                continue
            data = segment.bytes_of(at.position, at.end_position) if header.is_control else b""
            batch = producer_batch(header, data)
            if batch is not None:
                yield batch
    except CorruptBatch as error:
        raise CorruptRecords(f"{segment.log_path}: {error}") from error
    finally:
        if not was_open:
            segment.unload()


def _position_before_end(segment: Segment, count_bytes: int) -> int:
    """Where a batch begins, at least so many bytes before the end, or the first one does."""
    if count_bytes >= segment.size_bytes:
        return 0
    segment.load()
    assert segment.index is not None
    return segment.index.floor_position(
        max(0, segment.size_bytes - count_bytes), segment.next_offset
    )
