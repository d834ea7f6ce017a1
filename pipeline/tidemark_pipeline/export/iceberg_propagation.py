"""Deletion of rows of deleted records from an Apache Iceberg table and from its history.

A job relies on the newest snapshot that has the table's progress, and a tag keeps that snapshot
with all its rows. So the deletion repeats the progress. It commits to a branch of its own, and
``main`` is fast-forwarded to it unless another commit was made, as for a job's batch
(:mod:`tidemark_pipeline.export.iceberg_branch`). The tag moves along.

Files are rewritten without the rows. A position delete would only hide the rows from readers and
leave them in the file. Upserts have left such files, which are rewritten before the history is
deleted.
"""

import uuid
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from tidemark.message_text import count
from tidemark_pipeline.export.deletion_propagation import Propagated
from tidemark_pipeline.export.export_progress import Exported
from tidemark_pipeline.export.iceberg_branch import TAG, Branch
from tidemark_pipeline.export.iceberg_maintenance import COMPACTION, Procedures, snapshots
from tidemark_pipeline.export.maintenance import Say

_MODE = "write.delete.mode"
_COPY = "copy-on-write"


class IcebergPropagation:
    """Deletion from the table ``name`` with its catalog, such as ``lake.db.orders``."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session, self._name = session, name
        java: Any = session
        spark3 = java._jvm.org.apache.iceberg.spark.Spark3Util
        self._table = spark3.loadIcebergTable(java._jsparkSession, name)
        self._branch = Branch(session, name, self._table, uuid.uuid4().hex)

    def progress(self) -> Exported | None:
        self._branch.refresh()
        return None if self._table.currentSnapshot() is None else self._branch.progress()

    def delete_rows(self, where: str) -> None:
        self._branch.refresh()
        # Merge-on-read would leave the rows in the files and only mark them.
        if self._table.properties().get(_MODE) != _COPY:
            self._session.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{_MODE}'='{_COPY}')")
        target = f"{self._name}.branch_{self._branch.name}"
        self._branch.repeat_progress(lambda: self._delete(target, where))

    def _delete(self, target: str, where: str) -> None:
        self._session.sql(f"DELETE FROM {target} WHERE {where}")

    def delete_history(self, say: Say) -> Propagated:
        """Rewrite files that still have deleted rows, then expire all older snapshots."""
        procedures = Procedures(self._session, self._name)
        before = snapshots(self._session, self._name)
        failed = 0
        # Upserts only mark rows in position delete files. The data files still have them.
        if int(self._table.currentSnapshot().summary().get("total-delete-files") or 0):
            say("rewriting files with rows that are marked as deleted")
            options = {**COMPACTION, "delete-file-threshold": "1"}
            (done,) = procedures.call("rewrite_data_files", options=options)
            failed = done["failed_data_files_count"]
            procedures.call("rewrite_position_delete_files", options={"rewrite-all": "true"})
        # The tag of the export keeps its snapshot from expiring, so it moves to the newest one.
        self._branch.repeat_progress()
        say("expiring all older snapshots")
        expired = procedures.call("expire_snapshots", older_than=timedelta(), retain_last=1)
        return Propagated(
            # The commit of the progress added a snapshot after ``before`` was counted.
            expired=before + 1 - snapshots(self._session, self._name),
            removed=sum(count or 0 for row in expired for count in row),
            retained_by=(
                *self._others(),
                *((f"{count(failed, 'file')} that others changed",) if failed else ()),
            ),
        )

    def _others(self) -> list[str]:
        """Branches and tags that are not at the newest snapshot."""
        self._branch.refresh()
        newest = self._table.currentSnapshot().snapshotId()
        refs = self._table.refs()
        return sorted(
            f"the branch or tag {name}"
            for name in map(str, refs)
            if name != TAG and refs.get(name).snapshotId() != newest
        )
