"""An Apache Iceberg table that one job at a time appends to, exactly once.

An append of Iceberg's is put behind whatever was committed meanwhile, by whomever: two jobs at the
same offsets would both succeed. So rows are appended to a branch of the job's own, which no reader
looks at, and ``main`` is fast-forwarded to it. That is refused, in the catalog's own
compare-and-set, unless ``main`` still is what the branch began at. With it, in the same commit,
goes a tag: it keeps the snapshot that has the offsets from being expired behind others' commits.

What a killed job leaves is a branch and files that no reader sees. The next claim removes the
branch; its files go as Iceberg's orphans do.

Spark's writer makes the data files; tables, branches and tags are Iceberg's Java API through py4j,
which needs no SQL extensions.
"""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidemark_pipeline.export.exported import Exported, ExportError, begin, check_ours
from tidemark_pipeline.export.table import Counts, Written

#: What goes with PySpark 4.1 (https://iceberg.apache.org/docs, Apache-2.0); it brings all it needs.
PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
TAG = "tidemark_export"
_MAIN = "main"
_BRANCH = "tidemark_job_"
#: Others (a compaction) may commit meanwhile; then the batch is written again.
_ATTEMPTS = 5
_JAVA_ERRORS = (Py4JJavaError, PySparkException)
#: Iceberg's exception where a table was changed between reading and writing it.
_CONFLICT = "CommitFailedException"
#: Each commit leaves a file of metadata; so many are kept.
_METADATA_FILES = 100


def is_among_sparks() -> bool:
    """Whether Iceberg lies in Spark's own folder of jars."""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    name = PACKAGE.split(":")[1]
    return any(Path(home, "jars").glob(f"{name}-*.jar"))


def catalog_settings(catalog: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Spark's configuration for an Iceberg catalog with these properties (``type``,
    ``warehouse``, ``uri`` …)."""
    prefix = f"spark.sql.catalog.{catalog}"
    known = {"cache-enabled": "false", **properties}
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{name}": value for name, value in known.items()},
    }


class IcebergTable:
    """``name`` with its catalog, such as ``lake.db.orders``; ``columns`` as Spark's DDL has them
    and ``partitioning`` as in ``PARTITIONED BY``, for a table that is not there yet."""

    def __init__(
        self, session: SparkSession, name: str, columns: str, partitioning: str = ""
    ) -> None:
        self.name = name
        self._session = session
        self._ddl = columns, partitioning
        self._job = uuid.uuid4().hex
        self.branch = _BRANCH + self._job
        self._table: Any = None
        self._mine: Exported | None = None

    def claim(self, topic: str, topic_id: str) -> Exported:
        """Make the table where there is none, take it over, and say how far it is. An older job
        commits nothing any more. Raises :class:`ExportError`."""
        self._open()
        for _ in range(_ATTEMPTS):
            self._table.refresh()
            mine = begin(self._found(), topic, topic_id, self._job)
            base = self._begin_branch()
            if base is None:
                continue
            append = self._table.newFastAppend().toBranch(self.branch)
            for key, value in mine.to_properties().items():
                append = append.set(key, value)
            append.commit()
            if self._publish(base, mine, self._left_branches()):
                return mine
        raise self._contended()

    def append(self, frame: DataFrame, exported: Exported) -> Written:
        """Commit rows, and with them how far the table is then. Raises
        :class:`~tidemark_pipeline.export.exported.Superseded`."""
        if self._mine is None:
            raise ExportError("claim the table first")
        for _ in range(_ATTEMPTS):
            self._table.refresh()
            check_ours(self._mine, self._found())
            base = self._begin_branch()
            if base is None:
                continue
            try:
                self.write(frame, exported)
            except _JAVA_ERRORS:
                self._table.refresh()
                check_ours(self._mine, self._found())  # whoever took over has removed the branch
                raise
            if self.publish(base, exported):
                return self._written()
        raise self._contended()

    def counts(self) -> Counts:
        """As the newest snapshot's summary has them."""
        total = self._table.currentSnapshot().summary().get("total-records")
        return Counts(rows=None if total is None else int(total))

    def write(self, frame: DataFrame, exported: Exported) -> None:
        """Data files, and a commit of the branch."""
        writer = frame.writeTo(f"{self.name}.branch_{self.branch}")
        for key, value in exported.to_properties().items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()

    def publish(self, base: int, exported: Exported) -> bool:
        """Readers see the rows; False where ``main`` was moved meanwhile."""
        return self._publish(base, exported, ())

    def close(self) -> None:
        """Leave nothing but the table. Where that fails the next claim does it."""
        try:
            self._table.refresh()
            if self._table.snapshot(self.branch) is not None:
                self._table.manageSnapshots().removeBranch(self.branch).commit()
        except _JAVA_ERRORS:
            pass

    def _open(self) -> None:
        columns, partitioning = self._ddl
        cached = f"spark.sql.catalog.{self.name.partition('.')[0]}.cache-enabled"
        if self._session.conf.get(cached, "true") != "false":
            raise ExportError(f"a table must be seen as it is: set {cached} to false")
        by = f" PARTITIONED BY ({partitioning})" if partitioning else ""
        self._session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}) USING iceberg{by} TBLPROPERTIES ("
            "'write.metadata.delete-after-commit.enabled'='true', "
            f"'write.metadata.previous-versions-max'='{_METADATA_FILES}')"
        )
        session: Any = self._session
        spark3 = session._jvm.org.apache.iceberg.spark.Spark3Util
        self._table = spark3.loadIcebergTable(session._jsparkSession, self.name)
        if self._table.currentSnapshot() is None:
            self._table.newFastAppend().commit()  # of nothing: branches begin at a snapshot

    def _found(self) -> Exported | None:
        """How far the table is, by the newest snapshot of ``main`` that an export has committed."""
        snapshot = self._table.currentSnapshot()
        rows = int(snapshot.summary().get("total-records") or 0)
        while snapshot is not None:
            found = Exported.of_properties(snapshot.summary())
            if found is not None:
                return found
            parent = snapshot.parentId()
            if parent is None:
                break
            snapshot = self._table.snapshot(parent)
        else:  # others' commits behind the last export's, and what was between has expired
            tagged = self._table.snapshot(TAG)
            if tagged is not None:
                return Exported.of_properties(tagged.summary())
        if rows:
            raise ExportError(
                f"{self.name} has rows, and no commit says which of the topic they are: "
                "export into a table of its own"
            )
        return None

    def _begin_branch(self) -> int | None:
        """The branch is where ``main`` is; the id of that snapshot, None where the table was
        changed meanwhile."""
        base: int = self._table.currentSnapshot().snapshotId()
        head = self._table.snapshot(self.branch)
        if head is not None and head.snapshotId() == base:
            return base
        changes = self._table.manageSnapshots()
        try:
            if head is None:
                changes.createBranch(self.branch, base).commit()
            else:
                changes.replaceBranch(self.branch, base).commit()
        except _JAVA_ERRORS as error:
            if _CONFLICT not in str(error):
                raise
            return None
        return base

    def _publish(self, base: int, exported: Exported, left: tuple[str, ...]) -> bool:
        failed: Exception | None = None
        for _ in range(_ATTEMPTS):
            self._table.refresh()
            head = self._table.snapshot(self.branch)
            # A branch that another job has removed is made again by an append, where main is then.
            if head is None or head.parentId() != base:
                return False
            if self._table.currentSnapshot().snapshotId() != base:
                # By others; or by a commit of ours of which nobody knew whether it was one.
                if self._found() != exported:
                    return False
                break
            try:
                self._fast_forward(head.snapshotId(), left)
            except _JAVA_ERRORS as error:
                failed = error
            else:
                break
        else:
            raise self._contended() from failed
        self._mine = exported
        self._table.refresh()
        return True

    def _fast_forward(self, head: int, left: tuple[str, ...]) -> None:
        changes = self._table.manageSnapshots().fastForwardBranch(_MAIN, self.branch)
        if self._table.snapshot(TAG) is None:
            changes = changes.createTag(TAG, head)
        else:
            changes = changes.replaceTag(TAG, head)
        for name in left:
            changes = changes.removeBranch(name)
        changes.commit()

    def _left_branches(self) -> tuple[str, ...]:
        names = [str(name) for name in self._table.refs()]
        return tuple(n for n in names if n.startswith(_BRANCH) and n != self.branch)

    def _written(self) -> Written:
        summary = self._table.snapshot(self.branch).summary()
        names = "added-records", "added-files-size", "added-data-files"
        return Written(*(int(summary.get(name) or 0) for name in names))

    def _contended(self) -> ExportError:
        return ExportError(
            f"{self.name} was changed by others during each of {_ATTEMPTS} attempts to commit; "
            "start again when they are done"
        )
