"""Rows of records that are gone, dropped from an Apache Iceberg table, and from its history.

A job counts on the newest snapshot that says how far the table is, and a tag keeps that one, rows
and all. So the deletion says it again, on a branch of its own that ``main`` is fast-forwarded to
where nobody has committed meanwhile, as a job's batch does
(:mod:`tidemark_pipeline.export.iceberg_branch`); the tag goes along.

Files are written anew without the rows. A position delete, which readers apply, would leave them in
the file; upserts have left such files, which are written anew as well once history is to go.
"""

import uuid
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from tidemark_pipeline.export.deletion_propagation import Propagated
from tidemark_pipeline.export.export_progress import Exported
from tidemark_pipeline.export.iceberg_branch import TAG, Branch
from tidemark_pipeline.export.iceberg_maintenance import COMPACTION, Procedures, snapshots
from tidemark_pipeline.export.maintenance import Say

_MODE = "write.delete.mode"
_COPY = "copy-on-write"


class IcebergPropagation:
    """In the table ``name`` with its catalog, such as ``lake.db.orders``."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session, self._name = session, name
        java: Any = session
        spark3 = java._jvm.org.apache.iceberg.spark.Spark3Util
        self._table = spark3.loadIcebergTable(java._jsparkSession, name)
        self._branch = Branch(session, name, self._table, uuid.uuid4().hex)

    def found(self) -> Exported | None:
        """See :class:`~tidemark_pipeline.export.deletion_propagation.DroppedFrom`."""
        self._branch.refresh()
        return None if self._table.currentSnapshot() is None else self._branch.found()

    def drop(self, where: str) -> None:
        """See :class:`~tidemark_pipeline.export.deletion_propagation.DroppedFrom`."""
        self._branch.refresh()
        if self._table.properties().get(_MODE) != _COPY:
            self._session.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{_MODE}'='{_COPY}')")
        target = f"{self._name}.branch_{self._branch.name}"
        self._branch.repeat_progress(lambda: self._delete(target, where))

    def _delete(self, target: str, where: str) -> None:
        self._session.sql(f"DELETE FROM {target} WHERE {where}")

    def drop_history(self, say: Say) -> Propagated:
        """See :class:`~tidemark_pipeline.export.deletion_propagation.DroppedFrom`."""
        procedures = Procedures(self._session, self._name)
        before = snapshots(self._session, self._name)
        failed = 0
        if int(self._table.currentSnapshot().summary().get("total-delete-files") or 0):
            say("files with rows that are marked as deleted are written anew")
            options = {**COMPACTION, "delete-file-threshold": "1"}
            (done,) = procedures.call("rewrite_data_files", options=options)
            failed = done["failed_data_files_count"]
            procedures.call("rewrite_position_delete_files", options={"rewrite-all": "true"})
        self._branch.repeat_progress()
        say("all older snapshots expire")
        expired = procedures.call("expire_snapshots", older_than=timedelta(), retain_last=1)
        return Propagated(
            expired=before + 1 - snapshots(self._session, self._name),
            removed=sum(count or 0 for row in expired for count in row),
            held=(*self._others(), *((f"{failed} files that others changed",) if failed else ())),
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
