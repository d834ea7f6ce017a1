"""A Delta table's log, asked through Spark: commits by ``DESCRIBE HISTORY``, and what no statement
tells (the table's version, the transaction of an application) by Delta's ``DeltaLog`` through py4j.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from tidemark_pipeline.export.delta_log import DeltaCommit, standing
from tidemark_pipeline.export.export_progress import Exported

#: As which all exports are known to Delta.
APPLICATION = "tidemark"
#: How many commits are asked for first, and so many times more where they were not enough.
_FIRST, _MORE = 20, 10


class History:
    """Of the table ``name``, as of the last :meth:`refresh`."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session, self._name = session, name
        (detail,) = session.sql(f"DESCRIBE DETAIL {name}").select("location").collect()
        jvm: Any = session._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        self._log = log.forTable(session._jsparkSession, detail["location"])
        self._snapshot: Any = None
        self.refresh()

    def refresh(self) -> int:
        """See the table as it is; its version."""
        defaults = (getattr(self._log, f"update$default${number}")() for number in (1, 2, 3))
        self._snapshot = self._log.update(*defaults)
        return self.version

    @property
    def version(self) -> int:
        """Of the table."""
        return int(self._snapshot.version())

    @property
    def files(self) -> int:
        """Of data."""
        return int(self._snapshot.numOfFiles())

    @property
    def transaction(self) -> int:
        """The last one of all exports; -1: there is none."""
        found = self._snapshot.transactions().get(APPLICATION)
        return int(found.get()) if found.isDefined() else -1

    def standing(self, look_at: int = _FIRST) -> Exported | None:
        """How far the table is (:func:`~tidemark_pipeline.export.delta_log.standing`).
        ``look_at``: as many commits will do, mostly."""
        return standing(self.commits(look_at), lambda: self.transaction)

    def commits(self, count: int) -> Iterator[DeltaCommit]:
        """From the newest on; ``count`` are asked for, and more where these were not enough."""
        oldest = self.version + 1
        while oldest:
            rows = self._session.sql(f"DESCRIBE HISTORY {self._name} LIMIT {count}").collect()
            for row in rows:
                if row["version"] < oldest:
                    oldest = row["version"]
                    yield DeltaCommit(
                        version=oldest,
                        operation=row["operation"],
                        parameters=row["operationParameters"] or {},
                        metrics=row["operationMetrics"] or {},
                        said=row["userMetadata"],
                    )
            if len(rows) < count:
                return
            count *= _MORE
