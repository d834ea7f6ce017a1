"""The upkeep of tables that exports write: see :mod:`tidemark_pipeline.export.maintenance`."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from pyspark.sql import SparkSession

from tidemark.message_text import count
from tidemark_pipeline.export import delta_maintenance, iceberg_maintenance
from tidemark_pipeline.export.delta_maintenance import DeltaPropagation
from tidemark_pipeline.export.export_progress import Exported, ExportError
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.iceberg_maintenance import IcebergPropagation
from tidemark_pipeline.export.maintenance import (
    Maintained,
    Propagated,
    Say,
    TableMaintenance,
    behind,
    below,
    condition,
)
from tidemark_pipeline.export.row_shapes import prefix_of_record
from tidemark_pipeline.export.upsert import configured
from tidemark_pipeline.jobs.export import check_log_lineage
from tidemark_pipeline.read.topic_source import topic_options
from tidemark_pipeline.read.topic_survey import Survey

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


# ------------------------------------------------------------ Deletion of rows of deleted records

# Propagation of a topic's deletions to the table that it was exported to.
#
# See :mod:`tidemark_pipeline.export.maintenance`.

_DELETION_BY_FORMAT: dict[Format, type[DeltaPropagation | IcebergPropagation]] = {
    Format.ICEBERG: IcebergPropagation,
    Format.DELTA: DeltaPropagation,
}


def progress_of(session: SparkSession, kind: Format, name: str) -> Exported | None:
    """Return the progress of an export's table, None if no export has written it.

    Raises :class:`ExportError` if the table does not say.
    """
    return _DELETION_BY_FORMAT[kind](session, name).progress()


def propagate(
    session: SparkSession,
    kind: Format,
    name: str,
    source: Mapping[str, str],
    *,
    history: bool = False,
    say: Say = lambda _: None,
) -> Propagated:
    """Delete from a table the rows whose records are below the topic's log starts.

    ``name``: of the table in Spark. ``source``: options of the data source without a topic; the
    table records which topic it contains. ``history``: also remove the versions of the table that
    may contain such rows. Raises :class:`ExportError`, and the errors of a query of the topic. In
    both cases nothing was deleted.
    """
    # The table's progress names the topic, its ID and the exported offsets.
    prefix = prefix_of_record(name, session.table(name).schema)
    table = _DELETION_BY_FORMAT[kind](session, name)
    exported = table.progress()
    if exported is None:
        raise ExportError(f"no export has written {name}: nothing says which records its rows are")
    with Survey(topic_options({**source, "topic": exported.topic})) as survey:
        parts = survey.parts()
        # If the topic lost records, its offsets may belong to other records than the table's rows.
        check_log_lineage(survey, parts, exported)
        starts = {part.partition: at for part, at in survey.log_starts(parts).items()}
    # Select the partitions of which the table has rows below the log start.
    log_starts = below(exported, {str(part.topic_id or "") for part in parts}, starts)
    if not log_starts:
        return Propagated()
    where = condition(prefix, log_starts)
    # A delete without matching rows would still commit a new version of the table.
    rows = session.table(name).where(where).count()
    if rows:
        say(f"dropped {count(rows, 'row')} of records that {exported.topic} does not have any more")
        table.delete_rows(where)
    done = Propagated()
    # Older versions contain the rows until they are removed.
    if history:
        with few_listing_tasks(session):
            done = table.delete_history(say)
    return replace(done, rows=rows, behind=behind(table.progress() or exported, log_starts))
