"""Delta Lake table that one job at a time writes, exactly once.

The commit that adds the rows also records the table's progress, which is read from the table's log
(:mod:`tidemark_pipeline.export.delta_log`).

Delta accepts an append after any concurrent commit. It rejects two concurrent writes that carry
transactions of the same application. It skips a write whose transaction is not above the
application's last one. So all exports share one application, and each commit uses the last
transaction plus one. A job that takes over commits the number that the older job would use next.
Delta rejects an older job that resumes in the middle of its write, and skips the write of one that
resumes before it. Both then find the cause in the log.

A rollback does not change the transaction, and Delta appends rows after a rollback that the job has
not seen. The check of the log after each write detects it.

Spark's writer appends rows, and ``MERGE`` upserts them.
"""

import re
import uuid
from collections.abc import Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidemark_pipeline.export import quoting
from tidemark_pipeline.export.delta_log import APPLICATION, DeltaHistory, export_metadata
from tidemark_pipeline.export.export_progress import (
    Exported,
    ExportError,
    WriteMode,
    check_not_superseded,
    new_claim,
)
from tidemark_pipeline.export.row_shapes import bounded
from tidemark_pipeline.export.table import (
    ATTEMPTS,
    PERIOD_COLUMNS,
    AddedColumn,
    PartitionPeriod,
    RowCounts,
    TableLayout,
    Widened,
    Written,
    contended_error,
)
from tidemark_pipeline.export.upsert import configured, keyless_record_error, merge_into

_CONF = "spark.databricks.delta."
JAVA_ERRORS = (Py4JJavaError, PySparkException)
#: Delta's exceptions that are caused by a concurrent commit.
CONFLICT = re.compile(r"io\.delta\.exceptions\.(Concurrent|MetadataChanged|ProtocolChanged)\w*")
#: A batch changes few rows, so deletion vectors replace the copying of whole files.
_UPSERT_PROPERTIES = {"delta.enableDeletionVectors": "true"}
#: Delta cannot partition by a function of a column. These expressions fill separate columns, in UTC
#: whatever the session's time zone is.
_SECONDS = "unix_seconds({0})"
_DAY = f"date_from_unix_date(CAST(floor({_SECONDS} / 86400) AS INT))"
_HOUR = f"concat({_DAY}, '-', lpad(CAST(pmod({_SECONDS}, 86400) DIV 3600 AS STRING), 2, '0'))"
_PERIODS = {PartitionPeriod.DAY: ("DATE", _DAY), PartitionPeriod.HOUR: ("STRING", _HOUR)}
_NO_TABLE = "DELTA_MISSING_DELTA_TABLE"
#: Table feature that readers must support; enabled only once a column is widened.
_WIDENING = "delta.enableTypeWidening"
#: Metrics of one commit in the history. A ``WRITE`` has the first names, a ``MERGE`` the others.
_ROWS = ("numOutputRows",)
_BYTES = ("numOutputBytes", "numTargetBytesAdded")
_FILES = ("numFiles", "numTargetFilesAdded", "numTargetDeletionVectorsAdded")
_DELETED = ("numTargetRowsDeleted",)


class DeltaTable:
    """Delta Lake table ``name`` as Spark knows it, such as ``delta.`/srv/lake/db/orders```."""

    def __init__(self, session: SparkSession, name: str, layout: TableLayout) -> None:
        self.name = name
        self._session = session
        self._layout = layout
        self._job = uuid.uuid4().hex
        self._loaded_history: DeltaHistory | None = None
        # Progress of this job's last commit, None before it has claimed the table.
        self._own_progress: Exported | None = None
        #: Table version that the job has read, and the job's own last transaction.
        self._base = self._transaction = -1
        self._period: PartitionPeriod = PartitionPeriod.NONE
        # Number of rows of the table, preceded by the table version in which they were counted.
        self._counted = -1, 0

    @property
    def _history(self) -> DeltaHistory:
        if self._loaded_history is None:
            raise ExportError("claim the table first")
        return self._loaded_history

    def claim(self, topic: str, topic_id: str) -> Exported:
        """Take over the table with an empty commit that fences older jobs; return its progress.

        Raises :class:`ExportError` if the table cannot be continued.
        """
        self._open()
        history = self._history
        no_rows = self._session.table(self.name).limit(0)
        for _ in range(ATTEMPTS):
            self._base = history.refresh()
            progress = history.progress()
            # Rows without recorded progress may come from the same topic, and an export could add
            # them a second time.
            if progress is None and history.files:
                raise ExportError(
                    f"{self.name} has rows, but no commit records which records of the topic "
                    "they are. Export into a separate table"
                )
            claimed = new_claim(
                *(progress, topic, topic_id, self._job, self._layout.mode),
                deletes=self._layout.deletes,
            )
            # Each commit has the last transaction number plus one. Delta rejects or skips a write
            # with a number that is already used, which fences older jobs.
            transaction = history.transaction + 1
            try:
                self._append(no_rows, export_metadata(claimed, self._base, claim=True), transaction)
            except JAVA_ERRORS as error:
                if not CONFLICT.search(str(error)):
                    raise
                continue
            # Delta may have skipped the write. Only the log shows whether this job owns the table.
            self._base = history.refresh()
            if history.progress() == claimed:
                self._own_progress, self._transaction = claimed, transaction
                return claimed
        raise contended_error(self.name)

    def commit(self, frame: DataFrame, exported: Exported) -> Written:
        """Write a batch and return its metrics; the table's log decides whether it was committed.

        ``exported``: progress after the batch. Raises :class:`Superseded` if another job took over.
        """
        if self._own_progress is None:
            raise ExportError("claim the table first")
        for _ in range(ATTEMPTS):
            self._check_not_superseded()
            # A failed write may still have been committed, so the log decides in either case.
            before, failed = self._base, None
            try:
                self.write(frame, exported)
            except JAVA_ERRORS as error:
                failed = error
            now = self._history.refresh()
            progress = self._history.progress(now - before + 1)
            if progress == exported:  # committed, even if the writer raised an error
                self._base = now
                self._own_progress, self._transaction = exported, self._transaction + 1
                return self._written(now - before)
            # Not committed: retry after a conflict if the job still owns the table.
            check_not_superseded(self._own_progress, progress)
            self._base = now
            if failed is not None and not CONFLICT.search(str(failed)):
                raise keyless_record_error(failed) or failed
        raise contended_error(self.name)

    def write(self, frame: DataFrame, exported: Exported) -> None:
        """Write rows and the table's progress in one Delta commit."""
        frame = bounded(frame, self._layout.kafka)
        # Delta has no partition transforms, so the job computes the period column.
        if self._period is not PartitionPeriod.NONE:
            _, expression = _PERIODS[self._period]
            value = f.expr(expression.format(self._layout.of_record("timestamp")))
            frame = frame.withColumn(PERIOD_COLUMNS[self._period], value)
        metadata, transaction = export_metadata(exported, self._base), self._transaction + 1
        if self._layout.mode is WriteMode.APPEND:
            self._append(frame, metadata, transaction)
            return
        # A MERGE statement has no options, so its metadata are session settings. Maintenance and
        # exports of other topics have other sessions.
        settings = {
            _CONF + "commitInfo.userMetadata": metadata,
            _CONF + "write.txnAppId": APPLICATION,
            _CONF + "write.txnVersion": str(transaction),
        }
        with configured(frame.sparkSession, settings):
            merge_into(self.name, frame, self._layout, f"tidemark_job_{self._job}")

    def columns(self) -> StructType | None:
        if not table_exists(self._session, self.name):
            return None
        # Period columns belong to the partitioning, not to the schema of values.
        of_periods = PERIOD_COLUMNS.values()
        columns = self._session.table(self.name).schema
        return StructType([column for column in columns if column.name not in of_periods])

    def grow(self, needed: Sequence[AddedColumn | Widened]) -> bool:
        """Add and widen columns; return False after a conflict with another commit."""
        self._check_not_superseded()
        # All new columns are one statement, so a reader sees all of them or none.
        added = [
            f"{quoting.path_of(*change.path)} {quoting.type_of(change.type)}"
            for change in needed
            if isinstance(change, AddedColumn)
        ]
        widened = [change for change in needed if isinstance(change, Widened)]
        changes = [f"ADD COLUMNS ({', '.join(added)})"] if added else []
        # Type widening needs a table feature, and one statement for each column.
        if widened:
            changes.append(f"SET TBLPROPERTIES ('{_WIDENING}'='true')")
        changes += [
            f"ALTER COLUMN {quoting.path_of(*change.path)} TYPE {quoting.type_of(change.type)}"
            for change in widened
        ]
        try:
            for change in changes:
                self._session.sql(f"ALTER TABLE {self.name} {change}")
        # Lost a race: the caller reads the columns again.
        except JAVA_ERRORS as error:
            if not CONFLICT.search(str(error)):
                raise
            return False
        return True

    def progress(self) -> Exported:
        self._check_not_superseded()
        assert self._own_progress is not None
        return self._own_progress

    def counts(self) -> RowCounts:
        version = self._history.version
        if self._counted[0] != version:  # Delta counts from its log, without reading files
            self._counted = version, self._session.table(self.name).count()
        return RowCounts(rows=self._counted[1])

    def close(self) -> None:
        """Do nothing: a job leaves nothing but the table."""

    def _open(self) -> None:
        """Create the table if it is missing, and read its partitioning and its log.

        Raises :class:`ExportError` for options that Delta Lake does not support.
        """
        layout = self._layout
        if layout.partitioning.buckets:
            raise ExportError("Delta Lake has no key buckets. Remove the option")
        if layout.partitioning.fields or layout.partitioning.sort:
            raise ExportError("Delta Lake has no partition transforms and sort order. Remove them")
        # Partition by a column of its own, because Delta has no partition transforms.
        columns, by = layout.columns, ""
        if layout.partitioning.period is not PartitionPeriod.NONE:
            name = PERIOD_COLUMNS[layout.partitioning.period]
            kind, _ = _PERIODS[layout.partitioning.period]
            columns, by = f"{columns}, {name} {kind}", f" PARTITIONED BY ({name})"
        # Explicit table properties override the defaults of an upsert.
        upserts = _UPSERT_PROPERTIES if layout.mode is WriteMode.UPSERT else {}
        properties = quoting.properties_of({**upserts, **layout.properties})
        self._session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}) USING delta{by}"
            f"{f' TBLPROPERTIES ({properties})' if properties else ''}"
        )
        # An existing table keeps its partitioning, whatever the layout says.
        existing_columns = self._session.table(self.name).columns
        self._period = next(
            (p for p, c in PERIOD_COLUMNS.items() if c in existing_columns), PartitionPeriod.NONE
        )
        self._loaded_history = DeltaHistory(self._session, self.name)

    def _append(self, frame: DataFrame, metadata: str, transaction: int) -> None:
        writer = frame.writeTo(self.name).option("userMetadata", metadata)
        writer.option("txnAppId", APPLICATION).option("txnVersion", str(transaction)).append()

    def _check_not_superseded(self) -> None:
        """Read the table's state; raise :class:`Superseded` if this job no longer owns it."""
        assert self._own_progress is not None
        now = self._history.refresh()
        if now != self._base:
            check_not_superseded(self._own_progress, self._history.progress(now - self._base + 1))
            self._base = now  # only after the check: a refusal is repeated

    def _written(self, commits: int) -> Written:
        """Return the metrics of this job's commit among the newest ``commits``."""
        # Maintenance may have committed after the export.
        metrics = next(
            entry.metrics
            for entry in self._history.commits(commits)
            if Exported.of_properties(entry.properties) == self._own_progress
        )
        rows, size, files, deleted = (
            sum(int(metrics.get(name) or 0) for name in names)
            for names in (_ROWS, _BYTES, _FILES, _DELETED)
        )
        return Written(rows=rows, bytes=size, files=files, deleted=deleted)


def table_exists(session: SparkSession, name: str) -> bool:
    """Return whether Spark knows a table; Delta's folders raise an error if there is none."""
    try:
        return session.catalog.tableExists(name)
    except PySparkException as error:
        if _NO_TABLE not in str(error):
            raise
        return False
