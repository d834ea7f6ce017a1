"""Maintenance of a Delta Lake table: ``OPTIMIZE`` and ``VACUUM``.

Delta removes old commits from its log, and the exports' progress with them. So both statements
repeat the progress in their own commits
(:func:`~tidemark_pipeline.export.delta_log.carried_metadata`).

``VACUUM`` does not distinguish orphans from files of expired versions, so one age applies to both.
Delta requires at least the table's ``delta.deletedFileRetentionDuration``, by default one week, so
that files of unfinished writes are kept.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from pyspark.sql import SparkSession

from tidemark_pipeline.export.delta import CONFLICT, JAVA_ERRORS
from tidemark_pipeline.export.delta_log import DeltaHistory, carried_metadata
from tidemark_pipeline.export.export_progress import Exported, ExportError
from tidemark_pipeline.export.maintenance import Maintained, Propagated, Say, TableMaintenance
from tidemark_pipeline.export.table import ATTEMPTS, contended_error
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


# ------------------------------------------------------------ Deletion of rows

# Deletion of rows of deleted records from a Delta Lake table and from its history.
#
# Each commit repeats the table's progress, as all maintenance does
# (:func:`~tidemark_pipeline.export.delta_log.carried_metadata`). If a job commits at the same time,
# its own record takes precedence.
#
# Files are rewritten, because a deletion vector would leave the rows in the file. To delete older
# versions at once, ``VACUUM … LITE`` removes the files that the table's log records as removed. A
# full ``VACUUM`` looks for files that no version names, which includes files of a batch that is not
# committed yet.

_LOG_TOO_SHORT = "DELTA_CANNOT_VACUUM_LITE"
_NO_VECTORS = {"spark.databricks.delta.delete.deletionVectors.persistent": "false"}


class DeltaPropagation:
    """Deletion from the table ``name`` as Spark knows it, such as
    ``delta.`/srv/lake/db/orders```.
    """

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session, self._name = session, name
        self._history = DeltaHistory(session, name)

    def progress(self) -> Exported | None:
        self._history.refresh()
        return self._history.progress()

    def delete_rows(self, where: str) -> None:
        def delete() -> None:
            with configured(self._session, _NO_VECTORS):
                self._session.sql(f"DELETE FROM {self._name} WHERE {where}").collect()

        self._until_done(delete)

    def delete_history(self, say: Say) -> Propagated:
        """Delete all older versions of the table and the files that only they need.

        Raises :class:`ExportError` if the log no longer lists all files.
        """
        say("rewriting files with rows that are marked as deleted")
        # Upserts only mark rows in deletion vectors. REORG rewrites these files without the rows.
        reorganize = f"REORG TABLE {self._name} APPLY (PURGE)"
        self._until_done(lambda: self._session.sql(reorganize).collect())
        say("removing the files of older versions")
        try:
            removed = vacuum(self._session, self._name, self._history, "LITE", 0.0)
        except JAVA_ERRORS as error:
            if _LOG_TOO_SHORT not in str(error):
                raise
            raise ExportError(
                f"the log of {self._name} does not go back to its last VACUUM and may not name "
                "all files. Run tidemark spark maintain without --from-history first"
            ) from error
        return Propagated(removed=removed)

    def _until_done(self, do: Callable[[], object]) -> None:
        for _ in range(ATTEMPTS):
            try:
                # The progress is read again for each attempt: a job may have committed since.
                with carrying(self._session, self._history):
                    do()
            except JAVA_ERRORS as error:
                if not CONFLICT.search(str(error)):
                    raise
            else:
                return
        raise contended_error(self._name)
