"""The upkeep of tables that exports write: see :mod:`tidemark_pipeline.export.maintenance`."""

from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from tidemark_pipeline.export import delta_maintenance, iceberg_maintenance
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.maintenance import Maintained, Say, TableMaintenance
from tidemark_pipeline.export.upsert import configured

#: Number of tasks into which both formats divide a listing of a table's folders. Spark's default is
#: 10,000 whatever the table's size, which takes a minute of one core for a table of ten files.
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_TASKS_A_CORE = 4

_BY_FORMAT = {
    Format.ICEBERG: iceberg_maintenance.maintain,
    Format.DELTA: delta_maintenance.maintain,
}


def maintain(
    session: SparkSession,
    kind: Format,
    name: str,
    upkeep: TableMaintenance,
    say: Say = lambda _: None,
) -> Maintained:
    """Maintain the table ``name`` (as Spark knows it) and return what was done."""
    with few_listing_tasks(session):
        return _BY_FORMAT[kind](session, name, upkeep, say)


def few_listing_tasks(session: SparkSession) -> AbstractContextManager[None]:
    """Return a context in which the session lists a table's folders with a few tasks per core."""
    tasks = _TASKS_A_CORE * session.sparkContext.defaultParallelism
    return configured(session, {_LISTING_TASKS: str(tasks)})
