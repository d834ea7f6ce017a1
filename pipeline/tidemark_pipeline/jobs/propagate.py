"""Propagation of a topic's deletions to the table that it was exported to.

See :mod:`tidemark_pipeline.export.deletion_propagation`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from tidemark.message_text import count
from tidemark_pipeline.export.deletion_propagation import (
    Propagated,
    TableForDeletion,
    behind,
    below,
    condition,
)
from tidemark_pipeline.export.delta_propagation import DeltaPropagation
from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.iceberg_propagation import IcebergPropagation
from tidemark_pipeline.export.maintenance import Say
from tidemark_pipeline.export.row_shapes import prefix_of_record
from tidemark_pipeline.jobs.export import check_log_lineage
from tidemark_pipeline.jobs.maintain import few_listing_tasks
from tidemark_pipeline.read.topic_source import topic_options
from tidemark_pipeline.read.topic_survey import Survey

_BY_FORMAT: Mapping[Format, Callable[[SparkSession, str], TableForDeletion]] = {
    Format.ICEBERG: IcebergPropagation,
    Format.DELTA: DeltaPropagation,
}


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
    table = _BY_FORMAT[kind](session, name)
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
