"""The Spark data source ``tidemark``: tiered topics as a table, or as a stream.

The driver pins what a read will see (the head's version, the log start, the end) and cuts it into
tasks; executors read the object store themselves and ask brokers for the local tail only.
Everything an executor needs travels in its task, so it imports no more than the readers. Up to
three more processes plan a query: those import no reader.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tidemark_pipeline.read import columns
from tidemark_pipeline.read.filters import NO_NARROWING, narrow
from tidemark_pipeline.read.options import Options, parse
from tidemark_pipeline.read.plan import plan_batch
from tidemark_pipeline.read.streaming import TidemarkPartition, TidemarkStreamReader, read_partition
from tidemark_pipeline.read.topic_survey import Survey
from tidemark_pipeline.read.workers import freeze_loaded_objects

#: Without it Spark refuses a Python source that takes filters.
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(session: SparkSession) -> None:
    """Register ``format("tidemark")`` in a session, for ``read`` and ``readStream``."""
    session.conf.set(_PUSHDOWN, "true")
    session.dataSource.register(TidemarkDataSource)


class TidemarkDataSource(DataSource):
    """``spark.read.format("tidemark")``; options in :mod:`tidemark_pipeline.read.options`."""

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def schema(self) -> str:
        ddl = columns.ddl(parse(self.options).columns)
        freeze_loaded_objects()
        return ddl

    def reader(self, schema: StructType) -> "TidemarkReader":
        return TidemarkReader(parse(self.options))

    def streamReader(self, schema: StructType) -> TidemarkStreamReader:
        return TidemarkStreamReader(parse(self.options, streaming=True))


class TidemarkReader(DataSourceReader):
    """Reader that plans on the driver (:meth:`partitions`) and reads on executors
    (:meth:`read`).
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._narrowing = NO_NARROWING

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Return all filters, as Spark must apply them again, see
        :mod:`tidemark_pipeline.read.filters`.
        """
        self._narrowing = narrow(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of one read; every offset between start and end is in exactly one."""
        with Survey(self._options) as survey:
            plan = plan_batch(survey, self._options, self._narrowing)
        freeze_loaded_objects()
        groups = plan.groups(self._options.task_bytes)
        return [TidemarkPartition(group, self._narrowing.since_ms) for group in groups]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batches of one task."""
        # Spark passes None where there is no task.
        return iter(()) if partition is None else read_partition(self._options, partition)
