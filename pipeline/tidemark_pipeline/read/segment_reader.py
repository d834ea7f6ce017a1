"""Read remote segments in bounded pieces, check and decode them.

A segment is read 16 MiB at a time, and the next piece is fetched while the last is decoded. A batch
that a piece cuts is completed by the next piece. If only a part of a segment is requested, only the
bytes that contain it are read. Bytes are compared with the manifest's digests and the plan before
they become rows.

The current head decides about missing objects. Below its log start they are expired data. If it
names other segments for the offsets, the planned ones were merged, and those are read instead.
Otherwise the tier is corrupt.
"""

import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidemark.message_text import count
from tidemark.records.batch import CorruptBatch, parse_header
from tidemark.records.read_committed import AbortedProducers
from tidemark.tier.metadata.queries import SegmentRange, TierOffsetOutOfRange
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.frames import Frames
from tidemark.tier.segments.integrity import BatchLine, ObjectDamaged, damaged
from tidemark.tier.stores.objects import ObjectNotFound, SegmentUnreadable
from tidemark_pipeline.errors import CorruptData, DataLoss
from tidemark_pipeline.read import columns, scan
from tidemark_pipeline.read.decode import (
    CALLER_THREAD,
    ByteSource,
    DecodeThreads,
    batches_to_read,
    decode_batches,
)
from tidemark_pipeline.read.segment_window import (
    Window,
    batches_in,
    first_offset_since,
    full_window,
    window_of,
)
from tidemark_pipeline.read.tasks import RemoteTask
from tidemark_pipeline.read.tier_access import ReadableTier

PIECE_BYTES = 16 * 1024 * 1024
#: A merged segment may be merged again during a long job, until it is too large for that.
_REPLANS_MAX = 10


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Columns and earliest time of the records to read, as in
    :class:`~tidemark_pipeline.read.arrow.ByteSource`.
    """

    columns: tuple[str, ...] = columns.NAMES
    since_ms: int | None = None


ALL = RecordSelection()


def read_task(
    tier: ReadableTier,
    topic: str,
    topic_id: uuid.UUID,
    task: RemoteTask,
    *,
    fail_on_data_loss: bool,
    selection: RecordSelection = ALL,
    threads: DecodeThreads = CALLER_THREAD,
) -> Iterator[pa.RecordBatch]:
    """Yield every requested record of the task's remote segments, in offset order.

    ``topic_id``: to read the current manifest if an object is missing. Raises :class:`CorruptData`
    if an object differs from what was copied, or contains other rows than planned. If the manifest
    has digests, that is before the first wrong row. Raises :class:`DataLoss` if segments have
    expired and ``fail_on_data_loss`` is set; otherwise their records are skipped. Raises
    SegmentUnreadable if the key of a segment is missing or its version is newer.
    """
    # Ranges that are still to be read, in order, with the number of times they were planned again.
    ranges = deque((part, 0) for part in task.ranges)
    while ranges:
        part, replans = ranges.popleft()
        # One source for each segment, as its copy has its own leader epoch (tiered epoch) and
        # offsets.
        source = ByteSource(
            topic,
            task.partition,
            columns.REMOTE,
            part.from_offset,
            part.to_offset_inclusive,
            tiered_epoch=part.entry.tiered_epoch,
            since_ms=selection.since_ms,
            columns=selection.columns,
        )
        yielded = False
        try:
            for batch in _read_range(tier, part.entry, source, threads):
                yielded = True
                yield batch
        # The reader's errors name an object; the job's error also names the offsets.
        except (ObjectDamaged, CorruptBatch) as error:
            raise _corrupt(tier, part.entry, source, error) from error
        except SegmentUnreadable as error:
            text = f"{_named(source)}: {error}"
            raise SegmentUnreadable(text, reason=error.reason) from error
        except ObjectNotFound as error:
            # The segment may have been merged after the plan was made. Only a segment that is read
            # in one piece is, so nothing of it was returned yet.
            replacing = () if yielded else _replacing(tier, topic_id, part, source)
            if replacing and replans < _REPLANS_MAX:
                ranges.extendleft((item, replans + 1) for item in reversed(replacing))
                continue
            # An object may be missing because it expired after the plan was made.
            loss = _missing_object_error(tier, topic_id, part, source)
            if fail_on_data_loss or isinstance(loss, CorruptData):
                raise loss from error


def _read_range(
    tier: ReadableTier, entry: SegmentEntry, source: ByteSource, threads: DecodeThreads
) -> Iterator[pa.RecordBatch]:
    """Yield the requested records of one segment, after they were verified.

    A segment of Tidemark without digests is read whole, as a part cannot be verified.
    """
    aux, window = None, full_window(entry)
    # With digests each piece can be verified alone, so the offset and time indexes may narrow the
    # read. Other layouts read chunks.
    if tier.segments.reads_parts(entry):
        aux = tier.segments.fetch_aux(entry)
        if source.since_ms is not None:
            first = first_offset_since(entry, aux, source.since_ms)
            source = replace(source, from_offset=max(source.from_offset, first))
        window = window_of(entry, aux, source.from_offset, source.to_offset_inclusive)
    # The first batch's offset is not known yet, so all aborted transactions of the segment apply.
    aborted = _aborted(aux, None)
    # ``line`` checks that batches are contiguous. ``least`` and ``most`` bound the number of rows
    # that the batches read so far can give, ``rows`` counts those returned, and ``reached`` is the
    # last offset seen.
    line: BatchLine | None = None
    least = most = rows = reached = 0
    pieces = _pieces(tier, entry, window, None if aux is None else aux.frames)
    for position, data, batches in batches_in(window, tier, entry, aux, pieces, scan.find_batches):
        # A transaction that was aborted before the first batch has no records in this read.
        if line is None and len(batches):
            base = int(batches[0, scan.BASE_OFFSET])
            line = _line(tier, entry, source, window, base)
            aborted = _aborted(aux, base)
        # Batches must be contiguous in offsets and bytes, also those before the requested offsets.
        if line is not None and len(batches):
            _follow(line, data, position, batches, source.from_offset)
            reached = int(batches[-1, scan.LAST_OFFSET])
        # Drop aborted transactions and batches that are not requested. The header of each other
        # batch bounds the number of its rows, which is compared with the decoded rows at the end.
        read = batches_to_read(data, batches, source, aborted)
        minimum, maximum = _rows_planned(read, source)
        least, most = least + minimum, most + maximum
        try:
            for batch in decode_batches(data, read, source, threads):
                rows += batch.num_rows
                yield batch
        # Without digests, the CRC of a batch is what shows damage.
        except CorruptData as error:
            where = tier.segments.describe(entry)
            raise damaged(entry, entry.log_key, where, str(error)) from error
    # A segment that was read completely must end at its entry's end offset and size. A part of a
    # segment must reach the last requested offset.
    if line is None or window.end == entry.size_bytes:
        (line or tier.segments.batch_line(entry)).finish()
    elif reached < source.to_offset_inclusive:
        raise damaged(
            entry,
            entry.log_key,
            tier.segments.describe(entry),
            f"what its index names for the offsets to {source.to_offset_inclusive} ends with "
            f"{reached}",
        )
    # The decoder must neither drop nor invent rows.
    if not least <= rows <= most:
        raise CorruptData(
            f"{source.topic}-{source.partition}: object {entry.log_key} gave "
            f"{count(rows, 'row')} of the offsets {source.from_offset} to "
            f"{source.to_offset_inclusive}, "
            f"planned were {least if least == most else f'{least} to {most}'}"
        )


def _line(
    tier: ReadableTier, entry: SegmentEntry, source: ByteSource, window: Window, base_offset: int
) -> BatchLine:
    """Return the contiguity check for batches from ``base_offset``, the first batch of the read.

    If the window does not start with the segment, a digest has already verified that batch.
    """
    if window.position == 0:
        return tier.segments.batch_line(entry)
    # An index that leads behind the requested offset would hide records.
    if base_offset > source.from_offset:
        what = f"its index leads to offset {base_offset} for offset {source.from_offset}"
        raise damaged(entry, entry.log_key, tier.segments.describe(entry), what)
    return tier.segments.batch_line(entry, base_offset)


def _aborted(aux: Aux | None, first_offset: int | None) -> AbortedProducers:
    """Return the aborted transactions of a range that starts at ``first_offset``.

    Those that ended before it are left out, as the reader does not see their markers.
    """
    transactions = () if aux is None else aux.aborted.transactions
    return AbortedProducers(
        (transaction.producer_id, transaction.first_offset)
        for transaction in transactions
        if first_offset is None or transaction.last_offset >= first_offset
    )


def _follow(
    line: BatchLine, data: bytes, position: int, batches: scan.Longs, from_offset: int
) -> None:
    """Check that the batches continue the line, and the leader epochs of those that are read.

    ``position``: that of ``data`` in the log. Raises ObjectDamaged.
    """
    bases, lasts = batches[:, scan.BASE_OFFSET], batches[:, scan.LAST_OFFSET]
    # Batches without a gap between them are checked as one. Otherwise the first wrong one is found.
    spans = [(bases[0], lasts[-1], batches[0, scan.START], batches[-1, scan.END])]
    if (bases[1:] != lasts[:-1] + 1).any():
        columns = [scan.BASE_OFFSET, scan.LAST_OFFSET, scan.START, scan.END]
        spans = batches[:, columns].tolist()
    for base, last, start, end in spans:
        line.follow(int(base), int(last), position + int(start), int(end - start))
    # Most segments have one leader epoch.
    read = batches[lasts >= from_offset]
    _, firsts = np.unique(read[:, scan.LEADER_EPOCH], return_index=True)
    for start in read[np.sort(firsts), scan.START].tolist():
        line.check_epoch(parse_header(data, start))


def _rows_planned(batches: scan.Longs, source: ByteSource) -> tuple[int, int]:
    """Return the minimum and maximum number of rows that the requested offsets of batches give.

    Both are equal if every offset has its record. A batch that was compacted before its topic was
    tiered has only the header's count, so any of its offsets may lack a record.
    """
    bases, lasts = batches[:, scan.BASE_OFFSET], batches[:, scan.LAST_OFFSET]
    counts = batches[:, scan.COUNT]
    first = np.maximum(bases, source.from_offset)
    requested = np.maximum(0, np.minimum(lasts, source.to_offset_inclusive) - first + 1)
    not_requested = lasts - bases + 1 - requested
    least = np.maximum(0, counts - not_requested)
    return int(least.sum()), int(np.minimum(requested, counts).sum())


def _pieces(
    tier: ReadableTier, entry: SegmentEntry, window: Window, frames: Frames | None
) -> Iterator[bytes]:
    """Yield the window's bytes in pieces; the next piece is fetched while the caller uses one."""

    def fetch(begin: int) -> bytes:
        return tier.segments.fetch(entry, begin, min(begin + PIECE_BYTES, window.end), frames)

    begins = range(window.begin, window.end, PIECE_BYTES)
    # A window of one piece needs no thread.
    if len(begins) < 2:
        yield from map(fetch, begins)
        return
    with ThreadPoolExecutor(1, "fetch") as ahead:
        next_piece = ahead.submit(fetch, begins[0])
        for begin in begins[1:]:
            # The next request starts before this piece is decoded. At most two pieces are in
            # memory.
            piece = next_piece.result()
            next_piece = ahead.submit(fetch, begin)
            yield piece
        yield next_piece.result()


def _corrupt(
    tier: ReadableTier, entry: SegmentEntry, source: ByteSource, error: Exception
) -> CorruptData:
    if isinstance(error, CorruptBatch):
        error = damaged(entry, entry.log_key, tier.segments.describe(entry), str(error))
    return CorruptData(f"{_named(source)}: {error}")


def _named(source: ByteSource) -> str:
    """Return the partition and the requested offsets for messages."""
    return (
        f"{source.topic}-{source.partition}, offsets {source.from_offset} to "
        f"{source.to_offset_inclusive}"
    )


def _replacing(
    tier: ReadableTier, topic_id: uuid.UUID, part: SegmentRange, source: ByteSource
) -> tuple[SegmentRange, ...]:
    """Return the ranges of the segments that have replaced a missing one; () if none have."""
    try:
        _, ranges = tier.reader.plan(
            topic_id, source.partition, part.from_offset, part.to_offset_inclusive + 1
        )
    # The records have expired meanwhile.
    except TierOffsetOutOfRange:
        return ()
    is_complete = bool(ranges) and ranges[-1].to_offset_inclusive == part.to_offset_inclusive
    is_named = any(item.entry.segment_id == part.entry.segment_id for item in ranges)
    return ranges if is_complete and not is_named else ()


def _missing_object_error(
    tier: ReadableTier, topic_id: uuid.UUID, part: SegmentRange, source: ByteSource
) -> CorruptData | DataLoss:
    """Return the error for a missing segment object: expired if the current manifest says so.

    DataLoss if the topic was deleted or the log start moved past the range, otherwise CorruptData.
    """
    log_start = tier.reader.expired_below(topic_id, source.partition)
    where = (
        f"{source.topic}-{source.partition}, offsets {part.from_offset} to "
        f"{part.to_offset_inclusive}"
    )
    if log_start is None:
        return DataLoss(f"{where}: the topic was deleted during the read")
    # Retention or DeleteRecords has moved the log start past the range since it was planned.
    if part.to_offset_inclusive < log_start:
        text = f"{where} expired during the read (log start is {log_start})"
        return DataLoss(text)
    return CorruptData(
        f"{where}: the manifest names {part.entry.log_key}, but the object is missing"
    )
