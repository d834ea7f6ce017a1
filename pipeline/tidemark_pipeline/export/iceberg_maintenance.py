"""The upkeep of an Apache Iceberg table, by Iceberg's own procedures.

The table's progress is in an ancestor of its newest snapshot, and is committed again before
ancestors expire. The snapshot of a running job has a branch: it does not expire, nor do the files
that it names. A job that has written files and not committed them yet is younger
than what counts as an orphan.
"""

import uuid
from datetime import UTC, datetime, timedelta

from pyspark.sql import Row, SparkSession

from tidemark.message_text import count
from tidemark_pipeline.export import quoting
from tidemark_pipeline.export.export_progress import Exported, ExportError
from tidemark_pipeline.export.iceberg_branch import TAG, Branch, load_table
from tidemark_pipeline.export.maintenance import (
    Maintained,
    Propagated,
    Say,
    TableMaintenance,
    text_of,
)

#: File groups are committed separately, so a conflict in one group does not lose the others.
COMPACTION = {
    "partial-progress.enabled": "true",
    "partial-progress.max-commits": "10",
    "partial-progress.max-failed-commits": "10",
    "remove-dangling-deletes": "true",
    # Rewrite a file of sufficient size only if it has three delete files, or a third of its rows
    # are deleted.
    "delete-file-threshold": "3",
}


def maintain(session: SparkSession, name: str, upkeep: TableMaintenance, say: Say) -> Maintained:
    """Compact an Iceberg table, expire snapshots and remove orphaned files, as ``upkeep`` says.

    ``name``: with its catalog, such as ``lake.db.orders``. Returns what was done.
    """
    procedures = Procedures(session, name)
    # Spark's own lookup loads the catalog. In a new thread Iceberg's would not find its jars.
    session.catalog.tableExists(name)
    # Compaction comes first, so that files it replaces can expire as soon as their snapshots do.
    is_sorted = load_table(session, name).sortOrder().isSorted()
    compacted, into, failed = (
        _compact(procedures, say, is_sorted=is_sorted) if upkeep.compact else (0, 0, 0)
    )
    expired = removed = orphans = 0
    if upkeep.keep is not None:
        say(f"snapshots older than {text_of(upkeep.keep)} expire")
        # The snapshot with the export's progress may be among those that expire.
        _repeat_progress(session, name)
        before = snapshots(session, name)
        done = procedures.call(
            "expire_snapshots", older_than=upkeep.keep, retain_last=upkeep.keep_last
        )
        # The procedure returns one count for each kind of file, null for none.
        removed = sum(count or 0 for row in done for count in row)
        expired = before - snapshots(session, name)
    # Orphans come last, as expiry deletes the files of its snapshots itself.
    if upkeep.orphans is not None:
        say(f"files that no snapshot names, and older than {text_of(upkeep.orphans)}, are removed")
        orphans = len(procedures.call("remove_orphan_files", older_than=upkeep.orphans))
    return Maintained(
        compacted=compacted,
        into=into,
        failed=failed,
        expired=expired,
        removed=removed,
        orphans=orphans,
    )


def _repeat_progress(session: SparkSession, name: str) -> None:
    """Commit the table's progress again, because the snapshot that has it may expire.

    A table that no export has written stays unchanged. If the progress cannot be read, the next
    export reports why.
    """
    table = load_table(session, name)
    if table.currentSnapshot() is None:
        return
    branch = Branch(session, name, table, uuid.uuid4().hex)
    try:
        if branch.progress() is None:
            return
    except ExportError:
        return
    branch.repeat_progress()


def _compact(procedures: "Procedures", say: Say, *, is_sorted: bool) -> tuple[int, int, int]:
    """Return the numbers of compacted, written and failed files."""
    say("small files are compacted")
    # The strategy binpack would leave the rows of different files unsorted.
    strategy = quoting.literal("sort" if is_sorted else "binpack")
    (data,) = procedures.call("rewrite_data_files", strategy=strategy, options=COMPACTION)
    (deletes,) = procedures.call("rewrite_position_delete_files")
    # Many small commits leave many manifests, which slow down the planning of queries.
    procedures.call("rewrite_manifests")
    return (
        data["rewritten_data_files_count"] + deletes["rewritten_delete_files_count"],
        data["added_data_files_count"] + deletes["added_delete_files_count"],
        data["failed_data_files_count"],
    )


class Procedures:
    """Procedures of the catalog, called for one table."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session = session
        self._catalog, _, self._table = name.partition(".")

    def call(self, procedure: str, **arguments: object) -> list[Row]:
        """Call a procedure; a ``timedelta`` argument becomes the time that long ago."""
        named = [f"{name} => {_literal(value)}" for name, value in arguments.items()]
        given = ", ".join([f"table => {quoting.literal(self._table)}", *named])
        return self._session.sql(f"CALL {self._catalog}.system.{procedure}({given})").collect()


def _literal(value: object) -> str:
    if isinstance(value, timedelta):
        return f"timestamp_millis({int((datetime.now(UTC) - value).timestamp() * 1000)})"
    if isinstance(value, dict):
        return f"map({', '.join(quoting.literal(text) for pair in value.items() for text in pair)})"
    return str(value)


def snapshots(session: SparkSession, name: str) -> int:
    """Return the number of the table's snapshots."""
    return session.table(f"{name}.snapshots").count()


# ------------------------------------------------------------ Deletion of rows

# Deletion of rows of deleted records from an Apache Iceberg table and from its history.
#
# A job relies on the newest snapshot that has the table's progress, and a tag keeps that snapshot
# with all its rows. So the deletion repeats the progress. It commits to a branch of its own, and
# ``main`` is fast-forwarded to it unless another commit was made, as for a job's batch
# (:mod:`tidemark_pipeline.export.iceberg_branch`). The tag moves along.
#
# Files are rewritten without the rows. A position delete would only hide the rows from readers and
# leave them in the file. Upserts have left such files, which are rewritten before the history is
# deleted.

_MODE = "write.delete.mode"
_COPY = "copy-on-write"


class IcebergPropagation:
    """Deletion from the table ``name`` with its catalog, such as ``lake.db.orders``."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session, self._name = session, name
        self._table = load_table(session, name)
        self._branch = Branch(session, name, self._table, uuid.uuid4().hex)

    def progress(self) -> Exported | None:
        self._branch.refresh()
        return None if self._table.currentSnapshot() is None else self._branch.progress()

    def delete_rows(self, where: str) -> None:
        self._branch.refresh()
        # Merge-on-read would leave the rows in the files and only mark them.
        if self._table.properties().get(_MODE) != _COPY:
            self._session.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{_MODE}'='{_COPY}')")
        delete = f"DELETE FROM {self._name}.branch_{self._branch.name} WHERE {where}"
        self._branch.repeat_progress(lambda: self._session.sql(delete))

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
