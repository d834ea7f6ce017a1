"""A Delta Lake table that one job at a time writes, exactly once.

How far the table is stands in the commit that has the rows, and is read from the table's log
(:mod:`tidemark_pipeline.export.delta_log`).

Delta commits an append behind whatever was committed meanwhile, by whomever. What it does refuse
are two writes that both say of one application which transaction they are, where the second began
before the first had ended; and it leaves out a write whose transaction is not above the last one.
So all exports are one application, and each commit is the transaction above the last: of an older
job's, another job has committed its number. An older job that wakes in the middle of its write is
refused by Delta, one that wakes before it writes nothing; both then read in the log why.

A rollback changes no transaction, and Delta puts rows behind one that came since the job looked.
The look after the write finds it.

Rows go by Spark's writer or ``MERGE``.
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
from tidemark_pipeline.export.delta_history import APPLICATION, History
from tidemark_pipeline.export.delta_log import say
from tidemark_pipeline.export.export_progress import (
    Exported,
    ExportError,
    WriteMode,
    begin,
    check_ours,
)
from tidemark_pipeline.export.row_shapes import bounded
from tidemark_pipeline.export.table import (
    ATTEMPTS,
    PERIOD_COLUMNS,
    Added,
    PartitionPeriod,
    RowCounts,
    TableLayout,
    Widened,
    Written,
    contended,
)
from tidemark_pipeline.export.upsert import configured, merge_into, refused

_CONF = "spark.databricks.delta."
_JAVA_ERRORS = (Py4JJavaError, PySparkException)
#: Of Delta's exceptions those that another's commit is the cause of.
CONFLICT = re.compile(r"io\.delta\.exceptions\.(Concurrent|MetadataChanged|ProtocolChanged)\w*")
#: What a batch changes is little of a table: files are not copied for it.
_UPSERT_PROPERTIES = {"delta.enableDeletionVectors": "true"}
#: Delta has no partitions by a function of a column. These are columns, in UTC whatever the time
#: zone of a session.
_SECONDS = "unix_seconds({0})"
_DAY = f"date_from_unix_date(CAST(floor({_SECONDS} / 86400) AS INT))"
_HOUR = f"concat({_DAY}, '-', lpad(CAST(pmod({_SECONDS}, 86400) DIV 3600 AS STRING), 2, '0'))"
_PERIODS = {PartitionPeriod.DAY: ("DATE", _DAY), PartitionPeriod.HOUR: ("STRING", _HOUR)}
_NO_TABLE = "DELTA_MISSING_DELTA_TABLE"
#: A feature that readers must know; a table has it once it needs it.
_WIDENING = "delta.enableTypeWidening"
#: Of one commit, as its history tells it; a ``WRITE`` has the first three, a ``MERGE`` the rest.
_ROWS = ("numOutputRows",)
_BYTES = ("numOutputBytes", "numTargetBytesAdded")
_FILES = ("numFiles", "numTargetFilesAdded", "numTargetDeletionVectorsAdded")
_DELETED = ("numTargetRowsDeleted",)


class DeltaTable:
    """``name`` as Spark knows it, such as ``delta.`/srv/lake/db/orders```."""

    def __init__(self, session: SparkSession, name: str, layout: TableLayout) -> None:
        self.name = name
        self._session = session
        self._layout = layout
        self._job = uuid.uuid4().hex
        self._opened: History | None = None
        self._mine: Exported | None = None
        #: The version of the table that the job has looked at, and its own last transaction.
        self._base = self._transaction = -1
        self._period: PartitionPeriod = PartitionPeriod.NONE
        self._counted = -1, 0

    @property
    def _history(self) -> History:
        if self._opened is None:
            raise ExportError("claim the table first")
        return self._opened

    def claim(self, topic: str, topic_id: str) -> Exported:
        """See :class:`~tidemark_pipeline.export.table.TargetTable`."""
        self._open()
        history = self._history
        nothing = self._session.table(self.name).limit(0)
        for _ in range(ATTEMPTS):
            self._base = history.refresh()
            found = history.standing()
            if found is None and history.files:
                raise ExportError(
                    f"{self.name} has rows, and no commit says which of the topic they are: "
                    "export into a table of its own"
                )
            mine = begin(
                *(found, topic, topic_id, self._job, self._layout.mode),
                deletes=self._layout.deletes,
            )
            number = history.transaction + 1
            try:
                self._append(nothing, say(mine, self._base, claim=True), number)
            except _JAVA_ERRORS as error:
                if not CONFLICT.search(str(error)):
                    raise
                continue
            self._base = history.refresh()
            if history.standing() == mine:
                self._mine, self._transaction = mine, number
                return mine
        raise contended(self.name)

    def commit(self, frame: DataFrame, exported: Exported) -> Written:
        """See :class:`~tidemark_pipeline.export.table.TargetTable`."""
        if self._mine is None:
            raise ExportError("claim the table first")
        for _ in range(ATTEMPTS):
            self._check_ours()
            before, failed = self._base, None
            try:
                self.write(frame, exported)
            except _JAVA_ERRORS as error:
                failed = error
            now = self._history.refresh()
            found = self._history.standing(now - before + 1)
            if found == exported:  # though nobody may have said so
                self._base = now
                self._mine, self._transaction = exported, self._transaction + 1
                return self._written(now - before)
            check_ours(self._mine, found)
            self._base = now
            if failed is not None and not CONFLICT.search(str(failed)):
                raise refused(failed) or failed
        raise contended(self.name)

    def write(self, frame: DataFrame, exported: Exported) -> None:
        """Rows, and how far the table is with them."""
        frame = bounded(frame, self._layout.kafka)
        if self._period is not PartitionPeriod.NONE:
            _, expression = _PERIODS[self._period]
            value = f.expr(expression.format(self._layout.of_record("timestamp")))
            frame = frame.withColumn(PERIOD_COLUMNS[self._period], value)
        said, number = say(exported, self._base), self._transaction + 1
        if self._layout.mode is WriteMode.APPEND:
            self._append(frame, said, number)
            return
        # A MERGE has no options. A stream's batches have a session of their own.
        settings = {
            _CONF + "commitInfo.userMetadata": said,
            _CONF + "write.txnAppId": APPLICATION,
            _CONF + "write.txnVersion": str(number),
        }
        with configured(frame.sparkSession, settings):
            merge_into(self.name, frame, self._layout, f"tidemark_job_{self._job}")

    def columns(self) -> StructType | None:
        """See :class:`~tidemark_pipeline.export.table.NamedTable`."""
        try:
            if not self._session.catalog.tableExists(self.name):
                return None
        except PySparkException as error:
            if _NO_TABLE not in str(error):
                raise
            return None
        of_periods = PERIOD_COLUMNS.values()
        found = self._session.table(self.name).schema
        return StructType([column for column in found if column.name not in of_periods])

    def grow(self, needed: Sequence[Added | Widened]) -> bool:
        """See :class:`~tidemark_pipeline.export.table.NamedTable`. Each kind of change is a commit
        or two of its own."""
        self._check_ours()
        added = [
            f"{quoting.path_of(*change.path)} {quoting.type_of(change.type)}"
            for change in needed
            if isinstance(change, Added)
        ]
        widened = [change for change in needed if isinstance(change, Widened)]
        changes = [f"ADD COLUMNS ({', '.join(added)})"] if added else []
        if widened:
            changes.append(f"SET TBLPROPERTIES ('{_WIDENING}'='true')")
        changes += [
            f"ALTER COLUMN {quoting.path_of(*change.path)} TYPE {quoting.type_of(change.type)}"
            for change in widened
        ]
        try:
            for change in changes:
                self._session.sql(f"ALTER TABLE {self.name} {change}")
        except _JAVA_ERRORS as error:
            if not CONFLICT.search(str(error)):
                raise
            return False
        return True

    def standing(self) -> Exported:
        """See :class:`~tidemark_pipeline.export.table.TargetTable`."""
        self._check_ours()
        assert self._mine is not None
        return self._mine

    def counts(self) -> RowCounts:
        """See :class:`~tidemark_pipeline.export.table.TargetTable`."""
        version = self._history.version
        if self._counted[0] != version:  # which Delta answers by its log alone
            self._counted = version, self._session.table(self.name).count()
        return RowCounts(rows=self._counted[1])

    def close(self) -> None:
        """See :class:`~tidemark_pipeline.export.table.TargetTable`. A job leaves nothing."""

    def _open(self) -> None:
        layout = self._layout
        if layout.partitioning.buckets:
            raise ExportError("Delta Lake has no buckets of a key: leave them out")
        columns, by = layout.columns, ""
        if layout.partitioning.period is not PartitionPeriod.NONE:
            name = PERIOD_COLUMNS[layout.partitioning.period]
            kind, _ = _PERIODS[layout.partitioning.period]
            columns, by = f"{columns}, {name} {kind}", f" PARTITIONED BY ({name})"
        upserts = _UPSERT_PROPERTIES if layout.mode is WriteMode.UPSERT else {}
        properties = ", ".join(
            f"{quoting.literal(name)}={quoting.literal(value)}"
            for name, value in {**upserts, **layout.properties}.items()
        )
        self._session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}) USING delta{by}"
            f"{f' TBLPROPERTIES ({properties})' if properties else ''}"
        )
        there = self._session.table(self.name).columns
        self._period = next(
            (p for p, c in PERIOD_COLUMNS.items() if c in there), PartitionPeriod.NONE
        )
        self._opened = History(self._session, self.name)

    def _append(self, frame: DataFrame, said: str, number: int) -> None:
        writer = frame.writeTo(self.name).option("userMetadata", said)
        writer.option("txnAppId", APPLICATION).option("txnVersion", str(number)).append()

    def _check_ours(self) -> None:
        """And see the table as it is."""
        assert self._mine is not None
        now = self._history.refresh()
        if now != self._base:
            check_ours(self._mine, self._history.standing(now - self._base + 1))
            self._base = now  # only then: what was refused once is refused again

    def _written(self, commits: int) -> Written:
        """By the newest export among so many commits."""
        metrics = next(
            entry.metrics
            for entry in self._history.commits(commits)
            if Exported.of_properties(entry.properties) == self._mine
        )
        rows, size, files, deleted = (
            sum(int(metrics.get(name) or 0) for name in names)
            for names in (_ROWS, _BYTES, _FILES, _DELETED)
        )
        return Written(rows=rows, bytes=size, files=files, deleted=deleted)
