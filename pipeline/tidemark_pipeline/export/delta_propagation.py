"""Deletion of rows of deleted records from a Delta Lake table and from its history.

Each commit repeats the table's progress, as all maintenance does
(:func:`~tidemark_pipeline.export.delta_log.carried_metadata`). If a job commits at the same time,
its own record takes precedence.

Files are rewritten, because a deletion vector would leave the rows in the file. To delete older
versions at once, ``VACUUM … LITE`` removes the files that the table's log records as removed. A
full ``VACUUM`` looks for files that no version names, which includes files of a batch that is not
committed yet.
"""

from collections.abc import Callable

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark_pipeline.export.deletion_propagation import Propagated
from tidemark_pipeline.export.delta import CONFLICT
from tidemark_pipeline.export.delta_history import DeltaHistory
from tidemark_pipeline.export.delta_maintenance import carrying, vacuum
from tidemark_pipeline.export.export_progress import Exported, ExportError
from tidemark_pipeline.export.maintenance import Say
from tidemark_pipeline.export.table import ATTEMPTS, contended_error
from tidemark_pipeline.export.upsert import configured

_JAVA_ERRORS = (Py4JJavaError, PySparkException)
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
        except _JAVA_ERRORS as error:
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
            except _JAVA_ERRORS as error:
                if not CONFLICT.search(str(error)):
                    raise
            else:
                return
        raise contended_error(self._name)
