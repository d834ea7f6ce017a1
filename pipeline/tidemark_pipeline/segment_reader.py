"""Read remote segments in bounded pieces, check and decode them.

A segment is read some MiB at a time, the next of them while the last is decoded; a batch that a
piece cuts is finished by the next. Where only a part of a segment is wanted, only the bytes that
hold it are read. What comes is held against the manifest's digests and the plan before it becomes
rows. Objects that are gone are judged by the head as it is now: below its log start they are
expired data, otherwise the tier is corrupt.
"""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from tidemark.records.batch import BatchHeader, CorruptBatch
from tidemark.records.read_committed import AbortedProducers, committed
from tidemark.tier.auxiliary import Aux
from tidemark.tier.integrity import BatchLine, ObjectDamaged, damaged
from tidemark.tier.objects import ObjectNotFound
from tidemark.tier.open import Tier
from tidemark.tier.queries import SegmentRange
from tidemark.tier.segment import SegmentEntry
from tidemark.tier.whole_batches import Batches, whole_batches
from tidemark_pipeline import columns
from tidemark_pipeline.decode import ALONE, ByteSource, DecodeThreads, decode_batches, is_wanted
from tidemark_pipeline.errors import CorruptData, DataLoss
from tidemark_pipeline.tasks import RemoteTask
from tidemark_pipeline.windows import Window, first_offset_since, whole, window_of

PIECE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """What of the records: see :class:`~tidemark_pipeline.arrow.ByteSource`."""

    columns: tuple[str, ...] = columns.NAMES
    since_ms: int | None = None


ALL = RecordSelection()


def read_task(
    tier: Tier,
    topic: str,
    topic_id: uuid.UUID,
    task: RemoteTask,
    *,
    fail_on_data_loss: bool,
    wanted: RecordSelection = ALL,
    threads: DecodeThreads = ALONE,
) -> Iterator[pa.RecordBatch]:
    """Every wanted record of the task's segments, in offset order.

    Raises :class:`CorruptData` where an object is not what was copied, or holds other rows than
    were planned: before the first row of what is wrong, as far as the manifest has digests.
    """
    for part in task.ranges:
        source = ByteSource(
            topic,
            task.partition,
            columns.REMOTE,
            part.from_offset,
            part.to_offset_inclusive,
            tiered_epoch=part.entry.tiered_epoch,
            since_ms=wanted.since_ms,
            columns=wanted.columns,
        )
        try:
            yield from _read_range(tier, part.entry, source, threads)
        except (ObjectDamaged, CorruptBatch) as error:
            raise _corrupt(tier, part.entry, source, error) from error
        except ObjectNotFound as error:
            loss = _judge_missing(tier, topic_id, part, source)
            if fail_on_data_loss or isinstance(loss, CorruptData):
                raise loss from error


def _read_range(
    tier: Tier, entry: SegmentEntry, source: ByteSource, threads: DecodeThreads
) -> Iterator[pa.RecordBatch]:
    """Where a segment has digests, the wanted part of it; else all, so that all is checked."""
    aux, window = None, whole(entry)
    if entry.digests is not None:
        aux = tier.segments.fetch_aux(entry)
        if source.since_ms is not None:
            first = first_offset_since(entry, aux, source.since_ms)
            source = replace(source, from_offset=max(source.from_offset, first))
        window = window_of(entry, aux, source.from_offset, source.to_offset_inclusive)
    aborted = _aborted(aux, None)
    line: BatchLine | None = None
    least = most = rows = reached = 0
    for position, data, headers in _batches(tier, entry, aux, window):
        if line is None and headers:
            base = headers[0][1].base_offset
            line = _line(tier, entry, source, window, base)
            aborted = _aborted(aux, base)
        for at, header in headers:
            assert line is not None
            line.follow(header.base_offset, header.last_offset, position + at, header.size_bytes)
            reached = header.last_offset
            if header.last_offset >= source.from_offset:
                line.check_epoch(header)
        read = [batch for batch in committed(data, headers, aborted) if is_wanted(batch[1], source)]
        for _, header in read:
            fewest, all_wanted = _rows_planned(header, source)
            least, most = least + fewest, most + all_wanted
        for batch in decode_batches(data, read, source, threads):
            rows += batch.num_rows
            yield batch
    if line is None or window.end == entry.size_bytes:
        (line or BatchLine(entry, tier.segments.describe(entry))).finish()
    elif reached < source.to_offset_inclusive:
        raise damaged(
            entry,
            entry.log_key,
            tier.segments.describe(entry),
            f"what its index names for the offsets to {source.to_offset_inclusive} ends with "
            f"{reached}",
        )
    if not least <= rows <= most:
        raise CorruptData(
            f"{source.topic}-{source.partition}: object {entry.log_key} gave {rows} rows "
            f"of the offsets {source.from_offset} to {source.to_offset_inclusive}, "
            f"planned were {least if least == most else f'{least} to {most}'}"
        )


def _line(
    tier: Tier, entry: SegmentEntry, source: ByteSource, window: Window, base_offset: int
) -> BatchLine:
    """The batches that come; ``base_offset`` is the first one's, which a digest vouches for where
    it is not the segment's first."""
    store = tier.segments.describe(entry)
    if window.position == 0:
        return BatchLine(entry, store)
    if base_offset > source.from_offset:
        what = f"its index leads to offset {base_offset} for offset {source.from_offset}"
        raise damaged(entry, entry.log_key, store, what)
    return BatchLine(entry, store, base_offset)


def _aborted(aux: Aux | None, first_offset: int | None) -> AbortedProducers:
    """The aborted transactions of a stretch that begins at an offset: those that ended before it
    are over, and their markers will not be met."""
    transactions = () if aux is None else aux.aborted.transactions
    return AbortedProducers(
        (transaction.producer_id, transaction.first_offset)
        for transaction in transactions
        if first_offset is None or transaction.last_offset >= first_offset
    )


def _rows_planned(header: BatchHeader, source: ByteSource) -> tuple[int, int]:
    """How many rows the wanted offsets of a batch are, at least and at most. Each is one where
    every offset has its record; of a batch that was compacted, before its topic was tiered, only
    the header's count is known."""
    first = max(header.base_offset, source.from_offset)
    wanted = max(0, min(header.last_offset, source.to_offset_inclusive) - first + 1)
    unwanted = header.last_offset - header.base_offset + 1 - wanted
    return max(0, header.count - unwanted), min(wanted, header.count)


def _batches(tier: Tier, entry: SegmentEntry, aux: Aux | None, window: Window) -> Iterator[Batches]:
    return whole_batches(
        entry,
        _pieces(tier, entry, window),
        () if aux is None else aux.pieces,
        tier.segments.describe(entry),
        begin=window.begin,
        position=window.position,
        end=window.end,
    )


def _pieces(tier: Tier, entry: SegmentEntry, window: Window) -> Iterator[bytes]:
    """The window's bytes, each piece fetched while the one before it is used."""

    def fetch(begin: int) -> bytes:
        return tier.segments.fetch(entry, begin, min(begin + PIECE_BYTES, window.end))

    begins = range(window.begin, window.end, PIECE_BYTES)
    if len(begins) < 2:
        yield from map(fetch, begins)
        return
    with ThreadPoolExecutor(1, "fetch") as ahead:
        coming = ahead.submit(fetch, begins[0])
        for begin in begins[1:]:
            piece = coming.result()
            coming = ahead.submit(fetch, begin)
            yield piece
        yield coming.result()


def _corrupt(tier: Tier, entry: SegmentEntry, source: ByteSource, error: Exception) -> CorruptData:
    if isinstance(error, CorruptBatch):
        error = damaged(entry, entry.log_key, tier.segments.describe(entry), str(error))
    return CorruptData(
        f"{source.topic}-{source.partition}, offsets {source.from_offset} to "
        f"{source.to_offset_inclusive}: {error}"
    )


def _judge_missing(
    tier: Tier, topic_id: uuid.UUID, part: SegmentRange, source: ByteSource
) -> CorruptData | DataLoss:
    """What it means that an object is not there: the head as it is now tells."""
    head = tier.reader.snapshot(topic_id, source.partition).head
    where = (
        f"{source.topic}-{source.partition}, offsets {part.from_offset} to "
        f"{part.to_offset_inclusive}"
    )
    if head.deleted_at_ms is not None:
        return DataLoss(f"{where}: the topic was deleted during the read")
    if part.to_offset_inclusive < head.log_start_offset:
        text = f"{where} expired during the read (log start is {head.log_start_offset})"
        return DataLoss(text)
    return CorruptData(f"{where}: the manifest names {part.entry.log_key}, which is gone")
