"""Rebuilding of a log's producer state from the last snapshot and the batches after it.

It runs when a log is opened, and after a truncation. If a crash lost a segment's transaction index,
it is rebuilt from the batches too. Then everything from that segment is replayed, its snapshots
included.
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

#: Bytes at the end of a recently written log that are replayed, however many producers it has.
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
    """Rebuild the producers' state at the log end from the last snapshot and the batches. Blocks.

    ``segments``: all segments of the log. The transaction indexes of those at or above
    ``indexed_below`` are empty and are filled. Raises :class:`CorruptRecords` for an unreadable
    transaction marker.
    """
    with producers.replaying():
        _rebuild(producers, snapshots, segments, indexed_below, high_watermark)


def _rebuild(
    producers: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: Sequence[Segment],
    indexed_below: int,
    high_watermark: int,
) -> None:
    """Rebuild the producers' state for :func:`rebuild`.

    Until it returns, ``first_unstable_offset`` keeps its former value for readers.
    """
    end = segments[-1].next_offset
    # A snapshot omits transactions that ended by markers not committed yet, so one above the high
    # watermark is not usable. The snapshot of a clean shutdown omits none.
    incomplete = {item.base_offset for item in segments if item.base_offset > high_watermark}
    found = snapshots.latest(min(indexed_below, end), incomplete)
    begin, entries = (segments[0].base_offset, ()) if found is None else found
    # A snapshot has only the last batch of each producer. Batches before it restore the others, so
    # that retries of a producer's last five batches are recognised.
    producers.load(entries)
    if entries:
        producers.recall(_lately_before(segments, begin))
    snapshots.remove_above(max(begin, indexed_below))
    # Apply the batches after the snapshot; where the transaction index is empty, fill it as well.
    for segment in segments:
        if segment.next_offset <= begin:
            continue
        is_replayed = segment.base_offset >= indexed_below
        if is_replayed and segment.base_offset > begin:
            snapshots.take(segment.base_offset, producers.snapshot())
            try:
                snapshots.save(segment.base_offset)
            except StorageError as error:  # a full disk must not prevent that a log opens
                logger.warning("%s (kept in memory; a crash replays from an earlier one)", error)
        for batch in _produced(segment, begin):
            aborted = producers.note(batch)
            if aborted is not None and is_replayed:
                segment.aborted.append(aborted)
        if is_replayed and segment is not segments[-1]:
            segment.aborted.saved(segment.aborted.save())
    producers.on_high_watermark(high_watermark)


def _lately_before(segments: Sequence[Segment], offset: int) -> Iterator[ProducerBatch]:
    """Yield the last idempotent producers' batches below ``offset``, if they are recent.

    Their clients may still retry them, and a snapshot has only one batch of each producer.
    """
    before = [item for item in segments if item.next_offset <= offset and item.size_bytes]
    chosen, left = [], _RECALLED_BYTES
    for segment in reversed(before):
        # Clients give up retries after some minutes, so older batches cannot come again.
        if left <= 0 or wall_clock_ms() - segment.modified_ms >= _RECENT_MS:
            break
        chosen.append((segment, left))
        left -= segment.size_bytes
    for segment, last_bytes in reversed(chosen):
        yield from _produced(segment, 0, last_bytes=last_bytes)


def _produced(
    segment: Segment, begin: int, *, last_bytes: int | None = None
) -> Iterator[ProducerBatch]:
    """Yield the idempotent producers' batches of a segment from offset ``begin``. Blocks.

    With ``last_bytes`` only about the last ``last_bytes`` bytes of the segment are read.
    """
    was_open = segment.descriptor is not None
    segment.open_file()
    assert segment.descriptor is not None
    position = 0 if last_bytes is None else _position_before_end(segment, last_bytes)
    try:
        for at, header in walk_produced(segment.descriptor, position, segment.size_bytes):
            if at.base_offset < begin:
                continue
            # Only markers need their record; data batches are described by their headers.
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
    """Return the position of a batch at least ``count_bytes`` before the end, or of the first
    one.
    """
    if count_bytes >= segment.size_bytes:
        return 0
    segment.load()
    assert segment.index is not None
    return segment.index.floor_position(
        max(0, segment.size_bytes - count_bytes), segment.next_offset
    )
