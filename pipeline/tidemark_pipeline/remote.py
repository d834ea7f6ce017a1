"""Read remote segments in bounded pieces, check and decode them.

A segment is read a few MiB at a time; a batch that a piece cuts is finished by the next. What comes
is held against the manifest's digests and the plan before it becomes rows. Objects that are gone
are judged by the head as it is now: below its log start they are expired data, otherwise the tier
is corrupt.
"""

import uuid
from collections.abc import Iterator

import pyarrow as pa

from tidemark.records.batch import BatchHeader, CorruptBatch, iter_headers
from tidemark.records.committed import AbortedProducers, committed
from tidemark.tier.auxiliary import Aux
from tidemark.tier.integrity import BatchLine, CheckedStream, ObjectDamaged, damaged
from tidemark.tier.objects import ObjectNotFound
from tidemark.tier.open import Tier
from tidemark.tier.queries import SegmentRange
from tidemark.tier.segment import SegmentEntry
from tidemark_pipeline.decode import Source, decode_batches
from tidemark_pipeline.errors import CorruptData
from tidemark_pipeline.tasks import RemoteTask

PIECE_BYTES = 8 * 1024 * 1024


class DataLoss(RuntimeError):
    """Rows expired while the read was under way; set failOnDataLoss=false to go on without them."""


def read_task(
    tier: Tier, topic: str, topic_id: uuid.UUID, task: RemoteTask, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Every wanted record of the task's segments, in offset order.

    Raises :class:`CorruptData` where an object is not what was copied, or holds other rows than
    were planned: before the first row of what is wrong, as far as the manifest has digests.
    """
    for part in task.ranges:
        source = Source(topic, task.partition, "remote", part.from_offset, part.to_offset_inclusive)
        try:
            yield from _read_range(tier, part, source)
        except (ObjectDamaged, CorruptBatch) as error:
            raise _corrupt(tier, part.entry, source, error) from error
        except ObjectNotFound as error:
            loss = _judge_missing(tier, topic_id, part, source)
            if fail_on_data_loss or isinstance(loss, CorruptData):
                raise loss from error


def _read_range(tier: Tier, part: SegmentRange, source: Source) -> Iterator[pa.RecordBatch]:
    """A segment is always read whole, so that all of it is checked."""
    line = BatchLine(part.entry, tier.segments.describe(part.entry))
    aux = None if part.entry.digests is None else tier.segments.fetch_aux(part.entry)
    transactions = () if aux is None else aux.aborted.transactions
    aborted = AbortedProducers((each.producer_id, each.first_offset) for each in transactions)
    least = most = rows = 0
    for position, data, headers in _whole_batches(tier, part.entry, aux):
        for at, header in headers:
            line.follow(header.base_offset, header.last_offset, position + at, header.size_bytes)
            if header.last_offset >= source.from_offset:
                line.check_epoch(header)
        read = list(committed(data, headers, aborted))
        for _, header in read:
            fewest, all_wanted = _rows_planned(header, source)
            least, most = least + fewest, most + all_wanted
        for batch in decode_batches(data, read, source):
            rows += batch.num_rows
            yield batch
    line.finish()
    if not least <= rows <= most:
        raise CorruptData(
            f"{source.topic}-{source.partition}: object {part.entry.log_key} gave {rows} rows "
            f"of the offsets {source.from_offset} to {source.to_offset_inclusive}, "
            f"planned were {least if least == most else f'{least} to {most}'}"
        )


def _rows_planned(header: BatchHeader, source: Source) -> tuple[int, int]:
    """How many rows the wanted offsets of a batch are, at least and at most. Each is one where
    every offset has its record; of a batch that was compacted, before its topic was tiered, only
    the header's count is known."""
    first = max(header.base_offset, source.from_offset)
    wanted = max(0, min(header.last_offset, source.to_offset_inclusive) - first + 1)
    unwanted = header.last_offset - header.base_offset + 1 - wanted
    return max(0, header.count - unwanted), min(wanted, header.count)


def _whole_batches(
    tier: Tier, entry: SegmentEntry, aux: Aux | None
) -> Iterator[tuple[int, bytes, list[tuple[int, BatchHeader]]]]:
    """(position, bytes, headers in them) of whole batches, checked as far as digests go."""
    pieces = () if aux is None else aux.pieces
    stream = CheckedStream(entry, pieces, tier.segments.describe(entry))
    position, held = 0, b""
    for begin in range(0, entry.size_bytes, PIECE_BYTES):
        held += stream.feed(tier.segments.fetch(entry, begin, begin + PIECE_BYTES))
        headers = list(iter_headers(held))
        whole = headers[-1][0] + headers[-1][1].size_bytes if headers else 0
        yield position, held, headers
        position, held = position + whole, held[whole:]
    stream.finish()


def _corrupt(tier: Tier, entry: SegmentEntry, source: Source, error: Exception) -> CorruptData:
    if isinstance(error, CorruptBatch):
        error = damaged(entry, entry.log_key, tier.segments.describe(entry), str(error))
    return CorruptData(f"{source.topic}-{source.partition}: {error}")


def _judge_missing(
    tier: Tier, topic_id: uuid.UUID, part: SegmentRange, source: Source
) -> CorruptData | DataLoss:
    """What it means that an object is not there: the head as it is now tells."""
    log_start = tier.reader.snapshot(topic_id, source.partition).head.log_start_offset
    where = (
        f"{source.topic}-{source.partition}, offsets {part.from_offset} to "
        f"{part.to_offset_inclusive}"
    )
    if part.to_offset_inclusive >= log_start:
        return CorruptData(f"{where}: the manifest names {part.entry.log_key}, which is gone")
    return DataLoss(f"{where} expired during the read (log start is {log_start})")
