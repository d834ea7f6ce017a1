"""Maintenance of a Delta Lake table: ``OPTIMIZE`` and ``VACUUM``.

Delta removes old commits from its log, and the exports' progress with them. So both statements
repeat the progress in their own commits
(:func:`~tidemark_pipeline.export.delta_log.carried_metadata`).

``VACUUM`` does not distinguish orphans from files of expired versions, so one age applies to both.
Delta requires at least the table's ``delta.deletedFileRetentionDuration``, by default one week, so
that files of unfinished writes are kept.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from pyspark.sql import SparkSession

from tidemark_pipeline.export.delta_history import DeltaHistory
from tidemark_pipeline.export.delta_log import carried_metadata
from tidemark_pipeline.export.maintenance import Maintained, Say, TableMaintenance
from tidemark_pipeline.export.upsert import configured

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_LOG_VACUUM = "spark.databricks.delta.vacuum.logging.enabled"
_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
_NEWEST_COMMITS = 5


def maintain(session: SparkSession, name: str, upkeep: TableMaintenance, say: Say) -> Maintained:
    """Compact a Delta table and remove old files, as ``upkeep`` says; return what was done.

    ``name``: name in Spark's SQL, such as ``delta.`/srv/lake/db/orders```.
    """
    history = DeltaHistory(session, name)
    compacted = into = removed = 0
    if upkeep.compact:
        say("small files are compacted")
        with carrying(session, history):
            (done,) = session.sql(f"OPTIMIZE {name}").select("metrics.*").collect()
        compacted, into = done["numFilesRemoved"], done["numFilesAdded"]
    if upkeep.keep is not None:
        # One age applies to expired and orphaned files, so the longer one is used.
        age = max(upkeep.keep, upkeep.orphans or timedelta())
        say(f"files that no version of the last {age} needs are removed")
        removed = vacuum(session, name, history, "FULL", age / timedelta(hours=1))
    return Maintained(compacted=compacted, into=into, removed=removed)


def vacuum(session: SparkSession, name: str, history: DeltaHistory, kind: str, hours: float) -> int:
    """Delete old files of a Delta table with ``VACUUM`` and return their number.

    ``kind``: ``FULL``, or ``LITE`` to delete only files that the table's log records as removed.
    ``hours``: files that became unused within this time are kept.
    """
    settings = {_LOG_VACUUM: "true"}
    # LITE deletes no orphans, so files of unfinished writes are safe at any age.
    if kind == "LITE":
        settings[_CHECK] = "false"
    with carrying(session, history), configured(session, settings):
        session.sql(f"VACUUM {name} {kind} RETAIN {hours} HOURS").collect()
    history.refresh()
    # The statement returns no count; its end is one of the newest commits.
    return next(
        int(commit.metrics.get("numDeletedFiles", 0))
        for commit in history.commits(_NEWEST_COMMITS)
        if commit.operation == "VACUUM END"
    )


@contextmanager
def carrying(session: SparkSession, history: DeltaHistory) -> Iterator[None]:
    """Make commits in this context repeat the table's progress, if an export has recorded any."""
    base = history.refresh()
    exported = history.progress()
    if exported is None:
        yield
        return
    with configured(
        session, {_USER_METADATA: carried_metadata(exported, base, history.transaction)}
    ):
        yield
