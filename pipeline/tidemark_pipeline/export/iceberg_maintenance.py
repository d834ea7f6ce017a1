"""The upkeep of an Apache Iceberg table, by Iceberg's own procedures.

The table's progress is in an ancestor of its newest snapshot, and is committed again before
ancestors expire. The snapshot of a running job has a branch: it does not expire, nor do the files
that it names. A job that has written files and not committed them yet is younger
than what counts as an orphan.
"""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Row, SparkSession

from tidemark_pipeline.export import quoting
from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.iceberg_branch import Branch
from tidemark_pipeline.export.maintenance import Maintained, Say, TableMaintenance, text_of

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
    # Compaction comes first, so that files it replaces can expire as soon as their snapshots do.
    compacted, into, failed = _compact(procedures, say) if upkeep.compact else (0, 0, 0)
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


def _repeat_progress(session: Any, name: str) -> None:
    """Commit the table's progress again, because the snapshot that has it may expire.

    A table that no export has written stays unchanged. If the progress cannot be read, the next
    export reports why.
    """
    spark3 = session._jvm.org.apache.iceberg.spark.Spark3Util
    table = spark3.loadIcebergTable(session._jsparkSession, name)
    if table.currentSnapshot() is None:
        return
    branch = Branch(session, name, table, uuid.uuid4().hex)
    try:
        if branch.progress() is None:
            return
    except ExportError:
        return
    branch.repeat_progress()


def _compact(procedures: "Procedures", say: Say) -> tuple[int, int, int]:
    say("small files are compacted")
    (data,) = procedures.call("rewrite_data_files", options=COMPACTION)
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
