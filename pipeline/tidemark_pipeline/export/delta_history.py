"""Log of a Delta table, read through Spark.

Commits come from ``DESCRIBE HISTORY``. No statement returns the table's version or the transaction
of an application, so these come from Delta's ``DeltaLog`` through py4j.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from tidemark_pipeline.export.delta_log import DeltaCommit, progress_in_log
from tidemark_pipeline.export.export_progress import Exported

#: Application ID that all exports share in Delta.
APPLICATION = "tidemark"
#: Commits in the first query, and the factor for each further one.
_FIRST, _MORE = 20, 10


class DeltaHistory:
    """History of the table ``name``, as of the last :meth:`refresh`."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session, self._name = session, name
        (detail,) = session.sql(f"DESCRIBE DETAIL {name}").select("location").collect()
        jvm: Any = session._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        self._log = log.forTable(session._jsparkSession, detail["location"])
        self._snapshot: Any = None
        self.refresh()

    def refresh(self) -> int:
        """Read the table's current state; return its version."""
        # Scala's default arguments are not visible from Python.
        defaults = (getattr(self._log, f"update$default${number}")() for number in (1, 2, 3))
        self._snapshot = self._log.update(*defaults)
        return self.version

    @property
    def version(self) -> int:
        return int(self._snapshot.version())

    @property
    def files(self) -> int:
        """Return the number of data files."""
        return int(self._snapshot.numOfFiles())

    @property
    def transaction(self) -> int:
        """Return the last transaction of all exports; -1 if there is none."""
        transaction = self._snapshot.transactions().get(APPLICATION)
        return int(transaction.get()) if transaction.isDefined() else -1

    def progress(self, look_at: int = _FIRST) -> Exported | None:
        """Return the table's progress (:func:`~tidemark_pipeline.export.delta_log.progress`).

        ``look_at``: number of commits that usually suffices.
        """
        return progress_in_log(self.commits(look_at), lambda: self.transaction)

    def commits(self, count: int) -> Iterator[DeltaCommit]:
        """Yield the table's commits, from the newest to the oldest.

        The first query reads ``count`` commits; further ones read more as needed.
        """
        # Version of the oldest commit that was yielded.
        oldest = self.version + 1
        while oldest:
            rows = self._session.sql(f"DESCRIBE HISTORY {self._name} LIMIT {count}").collect()
            for row in rows:
                # A larger query returns the newer commits again.
                if row["version"] < oldest:
                    oldest = row["version"]
                    yield DeltaCommit(
                        version=oldest,
                        operation=row["operation"],
                        parameters=row["operationParameters"] or {},
                        metrics=row["operationMetrics"] or {},
                        user_metadata=row["userMetadata"],
                    )
            # Fewer rows than the limit: the log is read to its start.
            if len(rows) < count:
                return
            count *= _MORE
