"""Execution of one task on an executor, the same for a batch and for a stream.

Raw batches of brokers go through the same decoder as segments of the tier.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.freed_memory import keep_freed_memory
from tidemark.kafka_client.errors import Unreachable
from tidemark.records.batch import CorruptBatch, iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark_pipeline.errors import CorruptData, DataLoss
from tidemark_pipeline.read import columns, segment_reader
from tidemark_pipeline.read.decode import ByteSource, DecodeThreads, decode
from tidemark_pipeline.read.options import Options
from tidemark_pipeline.read.plan import PlannedTask
from tidemark_pipeline.read.tasks import RemoteTask, TailTask
from tidemark_pipeline.read.tier_access import open_readable
from tidemark_pipeline.read.topic_survey import Part
from tidemark_pipeline.read.workers import freeze_loaded_objects

if TYPE_CHECKING:
    from tidemark.kafka_client.blocking_client import BlockingKafkaClient, FetchedBatches

#: Most consecutive responses without a batch; the broker delays each for two seconds.
_EMPTY_MAX = 10


def read_planned(
    options: Options, planned: PlannedTask, since_ms: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of one task, in offset order.

    Raises :class:`~DataLoss`, :class:`CorruptData`, StoreUnavailable, Unreachable and
    ClusterRefused.
    """
    # Each Arrow batch has buffers of megabytes, which the next one reuses.
    keep_freed_memory()
    with DecodeThreads(options.threads) as threads:
        if isinstance(planned.task, TailTask):
            yield from _read_tail_task(options, planned.part, planned.task, since_ms, threads)
        else:
            yield from _read_remote(options, planned.part, planned.task, since_ms, threads)
    freeze_loaded_objects()


def load_decoder() -> None:
    """Load the compiled code of every column, which the first record of a process does
    otherwise.
    """
    record = Record(key=b"k", value=None, headers=(("h", b"v"),))
    data = build_batch([record], base_offset=0)
    for _ in decode(data, ByteSource("t", 0, columns.REMOTE, 0, 0)):
        pass


def _read_remote(
    options: Options, part: Part, task: RemoteTask, since_ms: int | None, threads: DecodeThreads
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task's remote segments, read from the object store."""
    assert options.storage is not None
    assert part.topic_id is not None
    # The tier is opened in the executor: connections do not travel with a task.
    yield from segment_reader.read_task(
        open_readable(options.storage, options.aiven),
        part.topic,
        part.topic_id,
        task,
        fail_on_data_loss=options.fail_on_data_loss,
        selection=segment_reader.RecordSelection(options.columns, since_ms),
        threads=threads,
    )


def _read_tail_task(
    options: Options, part: Part, task: TailTask, since_ms: int | None, threads: DecodeThreads
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task's offsets that are on brokers only."""
    # Imported here, as loading Kafka's protocol takes a quarter of a second.
    from tidemark.kafka_client.blocking_client import BlockingKafkaClient, OutOfRange

    assert options.access is not None
    source = ByteSource(
        part.topic,
        part.partition,
        columns.LOCAL,
        task.start_offset,
        task.end_offset - 1,
        since_ms=since_ms,
        columns=options.columns,
    )
    try:
        with BlockingKafkaClient(options.access) as brokers:
            for data, aborted in read_tail(
                brokers, part.topic, part.partition, task.start_offset, task.end_offset
            ):
                yield from decode(data, source, aborted, threads)
    # Retention has deleted the records since the task was planned. If data loss is accepted, the
    # task ends here.
    except OutOfRange as error:
        if options.fail_on_data_loss:
            raise DataLoss(str(error)) from error


def read_tail(
    brokers: "BlockingKafkaClient", topic: str, partition: int, start: int, end: int
) -> "Iterator[FetchedBatches]":
    """Yield raw record batches from brokers for the offsets from ``start`` to ``end``.

    ``end`` is exclusive and at most the last stable offset. Raises :class:`OutOfRange` if ``start``
    is no longer in the log, and :class:`CorruptData` if the response is not record batches or
    leaves offsets out.
    """
    position, empty = start, 0
    while position < end:
        fetched = brokers.fetch(topic, partition, position)
        # After an election the new leader's high watermark may be below ``end`` until followers
        # fetch, so an empty response is retried.
        if not fetched.data and empty < _EMPTY_MAX:
            empty += 1
            continue
        position, empty = next_position(fetched.data, f"{topic}-{partition}", position), 0
        yield fetched


def next_position(data: bytes, name: str, position: int) -> int:
    """Return the next offset to fetch, after the batches returned for offset ``position``.

    ``name``: topic and partition for errors. Raises :class:`CorruptData` for a gap between batches,
    :class:`Unreachable` if the response does not advance.
    """
    following = position
    try:
        for _, header in iter_headers(data):
            # The first batch may start before the requested offset, but not after it.
            if header.base_offset > max(following, position):
                raise CorruptBatch(f"offset {header.base_offset} follows {following}")  # noqa: TRY301
            following = header.next_offset
    except CorruptBatch as error:
        raise CorruptData(f"{name}, fetched at offset {position} (local): {error}") from error
    if following <= position:
        raise Unreachable(f"{name}: the leader returned nothing at offset {position}")
    return following
