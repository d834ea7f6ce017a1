"""What an executor does with one task, the same for a batch and for a stream."""

from collections.abc import Iterator

import pyarrow as pa

from tidemark.tier.open import open_tier
from tidemark_pipeline import columns, remote, tail
from tidemark_pipeline.brokers import Brokers, OutOfRange
from tidemark_pipeline.decode import Source, Threads, decode
from tidemark_pipeline.errors import DataLoss
from tidemark_pipeline.options import Options
from tidemark_pipeline.plan import Planned
from tidemark_pipeline.survey import Part
from tidemark_pipeline.tasks import TailTask


def read_planned(
    options: Options, planned: Planned, since_ms: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of one task, in offset order.

    Raises :class:`~DataLoss`, :class:`CorruptData`, StoreUnavailable, BrokersUnavailable,
    Refused."""
    part, task = planned.part, planned.task
    with Threads(options.threads) as threads:
        if isinstance(task, TailTask):
            yield from _read_tail(options, part, task, since_ms, threads)
            return
        assert options.storage is not None
        assert part.topic_id is not None
        yield from remote.read_task(
            open_tier(options.storage),
            part.topic,
            part.topic_id,
            task,
            fail_on_data_loss=options.fail_on_data_loss,
            wanted=remote.Wanted(options.columns, since_ms),
            threads=threads,
        )


def _read_tail(
    options: Options, part: Part, task: TailTask, since_ms: int | None, threads: Threads
) -> Iterator[pa.RecordBatch]:
    assert options.access is not None
    source = Source(
        part.topic,
        part.partition,
        columns.LOCAL,
        task.start_offset,
        task.end_offset - 1,
        since_ms=since_ms,
        columns=options.columns,
    )
    try:
        with Brokers(options.access) as brokers:
            for data, aborted in tail.read(
                brokers, part.topic, part.partition, task.start_offset, task.end_offset
            ):
                yield from decode(data, source, aborted, threads)
    except OutOfRange as error:
        if options.fail_on_data_loss:
            raise DataLoss(str(error)) from error
