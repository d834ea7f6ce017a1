"""The Spark data source ``tidemark`` (batch): a tiered topic as a table.

The driver pins what a read will see (the head's version, the log start, the end) and cuts it into
tasks; executors read the object store themselves and ask brokers for the local tail only.
Everything an executor needs travels in its task, so it imports no more than the readers.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidemark.tier.open import open_tier
from tidemark_pipeline import remote, tail
from tidemark_pipeline.decode import Source, decode
from tidemark_pipeline.options import Options, parse
from tidemark_pipeline.plan import Planner
from tidemark_pipeline.tasks import TailTask, Task

COLUMNS = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, "
    "partition int, offset long, timestamp timestamp, timestampType int, tier string"
)


class TidemarkDataSource(DataSource):
    """``spark.read.format("tidemark")``; options in :mod:`tidemark_pipeline.options`."""

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> "TidemarkReader":
        return TidemarkReader(parse(self.options))


@dataclass(frozen=True)
class TidemarkPartition(InputPartition):
    """One task with the identity of its topic."""

    topic_id: uuid.UUID
    task: Task


class TidemarkReader(DataSourceReader):
    """Plans on the driver (:meth:`partitions`), reads on executors (:meth:`read`)."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The tasks of one read; every offset between start and end is in exactly one."""
        tier = open_tier(self._options.storage)
        topic_id, tasks = Planner(tier.reader, self._options).plan()
        return [TidemarkPartition(topic_id, task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one task."""
        if not isinstance(partition, TidemarkPartition):
            raise TypeError(f"{partition!r} was not planned by this source")
        task = partition.task
        if isinstance(task, TailTask):
            yield from self._read_tail(task)
            return
        yield from remote.read_task(
            open_tier(self._options.storage),
            self._options.topic,
            partition.topic_id,
            task,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def _read_tail(self, task: TailTask) -> Iterator[pa.RecordBatch]:
        options = self._options
        source = Source(
            options.topic, task.partition, "local", task.start_offset, task.end_offset - 1
        )
        try:
            for data, aborted in tail.read(
                options.bootstrap, options.topic, task.partition, task.start_offset, task.end_offset
            ):
                yield from decode(data, source, aborted)
        except tail.OutOfRange as error:
            if options.fail_on_data_loss:
                raise remote.DataLoss(str(error)) from error
