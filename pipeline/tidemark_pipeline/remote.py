"""Read remote segments in bounded pieces and decode them.

A segment is read a few MiB at a time; a batch that a piece cuts is finished by the next. Objects
that are gone are judged by the head as it is now: below its log start they are expired data,
otherwise the tier is corrupt.
"""

import uuid
from collections.abc import Iterator

import pyarrow as pa

from tidemark.records.batch import HEADER_BYTES, batch_extent
from tidemark.tier.objects import ObjectNotFound
from tidemark.tier.open import Tier
from tidemark.tier.views import SegmentRange
from tidemark_pipeline.decode import CorruptData, Source, complete_bytes, decode
from tidemark_pipeline.tasks import RemoteTask

PIECE_BYTES = 8 * 1024 * 1024


class DataLoss(RuntimeError):
    """Rows expired while the read was under way; set failOnDataLoss=false to go on without them."""


def read_task(
    tier: Tier, topic: str, topic_id: uuid.UUID, task: RemoteTask, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Every wanted record of the task's segments, in offset order."""
    for part in task.ranges:
        source = Source(topic, task.partition, "remote", part.from_offset, part.to_offset_inclusive)
        try:
            yield from _read_range(tier, part, source)
        except ObjectNotFound as error:
            loss = _judge_missing(tier, topic_id, part, source)
            if fail_on_data_loss or isinstance(loss, CorruptData):
                raise loss from error


def _read_range(tier: Tier, part: SegmentRange, source: Source) -> Iterator[pa.RecordBatch]:
    position, size = 0, part.entry.size_bytes
    while position < size:
        piece = tier.segments.fetch(part.entry, position, min(position + PIECE_BYTES, size))
        whole = complete_bytes(piece)
        if whole == 0:
            piece = _one_batch(tier, part, position, piece, source)
            whole = len(piece)
        yield from decode(piece[:whole], source)
        position += whole


def _one_batch(
    tier: Tier, part: SegmentRange, position: int, piece: bytes, source: Source
) -> bytes:
    """A batch that is larger than a piece, whole."""
    size = batch_extent(piece, 0)[1] if len(piece) >= HEADER_BYTES else 0
    if size <= len(piece) or position + size > part.entry.size_bytes:
        raise CorruptData(
            f"{source.topic}-{source.partition}: object {part.entry.log_key} has no whole batch "
            f"at byte {position} of {part.entry.size_bytes}"
        )
    return tier.segments.fetch(part.entry, position, position + size)


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
