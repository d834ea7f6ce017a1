"""Commits to an Iceberg table that are refused after a concurrent commit.

Iceberg accepts an append after any concurrent commit, so two jobs at the same offsets would both
succeed. So a job commits to its own branch, which readers do not use, and ``main`` is
fast-forwarded to it. The catalog's compare-and-set refuses this unless ``main`` is still the
snapshot from which the branch started. The same commit sets a tag, which keeps the snapshot with
the offsets from expiring after other commits. The tag survives a rollback, so it never decides the
table's progress (:mod:`tidemark_pipeline.export.iceberg_lineage`).

A killed job leaves a branch and files that readers do not see. The next claim removes the branch;
its files become Iceberg orphans.

Branches and tags use Iceberg's Java API through py4j, which needs no SQL extensions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from tidemark_pipeline.export.export_progress import PREFIX, Exported, ExportError
from tidemark_pipeline.export.iceberg_lineage import (
    Ancestor,
    TableProgress,
    progress_from_ancestors,
)
from tidemark_pipeline.export.row_shapes import prefix_of_record
from tidemark_pipeline.export.table import ATTEMPTS, RunRef, contended_error

TAG = "tidemark_export"
BRANCH = "tidemark_job_"
_MAIN = "main"
JAVA_ERRORS = (Py4JJavaError, PySparkException)
#: Iceberg's exception for a table that changed between reading and writing it.
_CONFLICT = "CommitFailedException"
#: A position delete removes one row; an equality delete removes any number.
_TOTALS = ("records", "position-deletes", "equality-deletes")
#: Last rows of a partition that are compared, and the last offsets in which they are looked for.
_LAST_ROWS = 10
_LAST_OFFSETS = 10_000
#: Partitions in one query.
_PARTITIONS_COMPARED = 200


#: The column's path, whether it is added, and Iceberg's type.
ColumnChange = tuple[tuple[str, ...], bool, Any]


def load_table(session: Any, name: str) -> Any:
    """Return Iceberg's own table object, in Spark's JVM."""
    spark3 = session._jvm.org.apache.iceberg.spark.Spark3Util
    return spark3.loadIcebergTable(session._jsparkSession, name)


def mark_run(session: Any, name: str, ref: RunRef, now_ms: int) -> None:
    """Create the tag or branch of a run at the newest snapshot of the table ``name``."""
    table, ref_name = load_table(session, name), ref.name(now_ms)
    # A run that is repeated in the same second has the same snapshot.
    if table.currentSnapshot() is None or table.refs().containsKey(ref_name):
        return
    snapshot_id = table.currentSnapshot().snapshotId()
    changes = table.manageSnapshots()
    create = changes.createBranch if ref.kind == "branch" else changes.createTag
    create(ref_name, snapshot_id).setMaxRefAgeMs(ref_name, ref.max_age_ms).commit()


class Branch:
    """A job's own branch of an Iceberg table, whose commits are published to ``main``.

    ``table``: the table as loaded from its catalog, called ``name`` in Spark's ``session``.
    ``job``: ID of the job. The table's state is that of the last :meth:`refresh`.
    """

    def __init__(self, session: Any, name: str, table: Any, job: str) -> None:
        self.name = BRANCH + job
        self._session, self._name, self._table = session, name, table
        #: The snapshot in which the rows of the last export were found.
        self._rows_checked: int | None = None
        #: Expired snapshots by ID, and the metadata files in which they were found.
        self._expired: dict[int, Ancestor] = {}
        self._metadata_read: set[str] = set()

    def refresh(self) -> None:
        """Read the table's current state."""
        self._table.refresh()

    def progress(self) -> Exported | None:
        """Return the progress in the newest ancestor of ``main`` that an export has committed.

        Raises :class:`ExportError` if the table has rows and no progress.
        """
        # A rollback does not move the tag, so the tagged snapshot serves only to explain an error.
        current, tagged = self._table.currentSnapshot(), self._table.snapshot(TAG)
        progress = progress_from_ancestors(
            self._name,
            None if current is None else _ancestor(current),
            self._ancestor_of_id,
            None if tagged is None else _ancestor(tagged),
        )
        # Rows without progress: an export could write their records again.
        if progress is None and self.rows() != 0:
            raise ExportError(
                f"{self._name} has rows, but no commit records which records of the topic they "
                "are. Export into a separate table"
            )
        if progress is None:
            return None
        # Comparing rows starts a Spark job, so each snapshot is checked once.
        if progress.is_rewritten and self._rows_checked != current.snapshotId():
            self._check_last_rows(progress)
            self._rows_checked = current.snapshotId()
        return progress.exported

    def _check_last_rows(self, progress: TableProgress) -> None:
        """Raise :class:`ExportError` if another tool has overwritten the table with older rows.

        ``INSERT OVERWRITE`` with an older version of the table takes it back without a rollback:
        the newest version follows the last export's and lacks its rows. Other tools may delete
        single rows. The last rows of each partition, which an older version lacks, tell the two
        cases apart.
        """
        # Compare the last exported rows with the version that the export committed.
        now = self._session.table(self._name)
        older = f"SELECT * FROM {self._name} VERSION AS OF {progress.snapshot_id}"
        prefix = prefix_of_record(self._name, now.schema)
        try:
            before = self._session.sql(older)
            # If all rows were replaced, the very last one decides; otherwise some of them.
            rows = 1 if progress.is_replaced else _LAST_ROWS
            missing = _without_last_rows(before, now, prefix, progress.exported.offsets, rows)
        except JAVA_ERRORS as error:
            raise ExportError(
                f"another writer has removed rows from {self._name} since the last export's "
                f"snapshot {progress.snapshot_id}, which is no longer readable. Export into a new "
                "table"
            ) from error
        # If it lacks them, its recorded offsets are wrong, and continuing would leave a gap.
        if missing:
            in_catalog = self._name.partition(".")[2]
            raise ExportError(
                f"another writer has overwritten {self._name}: it no longer has the last exported "
                f"rows of {progress.exported.topic}-{missing[0]}. Nothing is exported or deleted. "
                f"Roll the table back: CALL CATALOG.system.set_current_snapshot('{in_catalog}', "
                f"{progress.snapshot_id}), or export into a new table"
            )

    def _ancestor_of_id(self, snapshot_id: int) -> Ancestor | None:
        """Return a snapshot by ID, also an expired one if an older metadata file still has it.

        None if it is no longer known.
        """
        # Search the loaded table first, then metadata files that were read before, then the others.
        snapshot = self._table.snapshot(snapshot_id)
        if snapshot is not None:
            return _ancestor(snapshot)
        if snapshot_id in self._expired:
            return self._expired[snapshot_id]
        parser = self._session._jvm.org.apache.iceberg.TableMetadataParser
        files = [str(entry.file()) for entry in self._table.operations().current().previousFiles()]
        for file in reversed(files):  # newest first: it is deleted last
            if file in self._metadata_read:
                continue
            try:
                metadata = parser.read(self._table.io(), file)
            except JAVA_ERRORS:  # removed, as the oldest are
                return None
            self._metadata_read.add(file)
            for snapshot in metadata.snapshots():
                ancestor = _ancestor(snapshot)
                self._expired[ancestor.id] = ancestor
            if snapshot_id in self._expired:
                return self._expired[snapshot_id]
        return None

    def repeat_progress(self, write: Callable[[], object] | None = None) -> None:
        """Commit the table's progress again, so that the snapshot with it can expire.

        ``write``: makes another commit to the branch first, such as a deletion of rows. Raises
        :class:`ExportError`.
        """
        try:
            for _ in range(ATTEMPTS):
                self.refresh()
                exported = self.progress()
                base = self.reset_to_main()
                if exported is None or base is None:
                    continue
                if write is not None:
                    write()
                    self.refresh()
                # Iceberg offers no way to add properties to a deletion of whole files, so the
                # progress is a second commit.
                self.commit_progress(exported)
                commits = 1 if write is None else 2
                if self.publish(base, exported, commits=commits) and self.is_published():
                    return
        finally:
            self.refresh()
            self.remove()
        raise contended_error(str(self._table.name()))

    def rows(self) -> int | None:
        """Return the rows of ``main``; None if its newest commit does not tell."""
        summary = self._table.currentSnapshot().summary()
        total, position_deletes, equality_deletes = (
            summary.get(f"total-{name}") for name in _TOTALS
        )
        # Equality deletes do not tell how many rows they remove.
        if total is None or int(equality_deletes or 0):
            return None
        return int(total) - int(position_deletes or 0)

    def reset_to_main(self) -> int | None:
        """Point the job's branch at the snapshot of ``main`` and return that snapshot's ID.

        Returns None if the table changed at the same time; the caller retries.
        """
        base: int = self._table.currentSnapshot().snapshotId()
        head = self._table.snapshot(self.name)
        # The branch is at ``main`` already, so no commit is needed.
        if head is not None and head.snapshotId() == base:
            return base
        changes = self._table.manageSnapshots()
        try:
            if head is None:
                changes.createBranch(self.name, base).commit()
            else:
                changes.replaceBranch(self.name, base).commit()
        except JAVA_ERRORS as error:
            if _CONFLICT not in str(error):
                raise
            return None
        return base

    def rebase(self) -> int | None:
        """Place the branch's one commit, an append, after the current ``main``; rewrite no file.

        Returns the ID of the snapshot of ``main``, or None if the branch is missing or the table
        changed at the same time.
        """
        base: int = self._table.currentSnapshot().snapshotId()
        head = self._table.snapshot(self.name)
        # Another job that took over has removed the branch.
        if head is None:
            return None
        files = head.addedDataFiles(self._table.io()).iterator()
        # One transaction, so that the branch in the catalog always has the rows.
        transaction = self._table.newTransaction()
        try:
            transaction.manageSnapshots().replaceBranch(self.name, base).commit()
            append = transaction.newFastAppend().toBranch(self.name)
            while files.hasNext():
                append = append.appendFile(files.next())
            # Copy the export's own properties to the new commit; Iceberg adds its metrics itself.
            for key, value in head.summary().items():
                if key.startswith(PREFIX):
                    append = append.set(key, value)
            append.commit()
            transaction.commitTransaction()
        except JAVA_ERRORS as error:
            # Lost a race with another commit: the caller starts over.
            if _CONFLICT not in str(error):
                raise
            return None
        return base

    def grow(self, columns: Sequence[ColumnChange]) -> bool:
        """Add and widen columns of the table; return False if it changed at the same time.

        ``columns``: (path, whether it is added, Iceberg type).
        """
        update = self._table.updateSchema()
        for path, is_added, kind in columns:
            if is_added:
                parent = ".".join(path[:-1]) or None
                update = update.addColumn(parent, path[-1], kind)
            else:
                update = update.updateColumn(".".join(path), kind)
        try:
            # One commit for all columns. Another writer may have changed the schema since the last
            # refresh.
            update.commit()
        except JAVA_ERRORS as error:
            if _CONFLICT not in str(error):
                raise
            return False
        finally:
            self.refresh()
        return True

    def commit_progress(self, exported: Exported) -> None:
        """Commit the progress to the branch without rows."""
        append = self._table.newFastAppend().toBranch(self.name)
        for key, value in exported.to_properties().items():
            append = append.set(key, value)
        append.commit()

    def publish(
        self, base: int, exported: Exported, removed: tuple[str, ...] = (), commits: int = 1
    ) -> bool:
        """Fast-forward ``main`` to the branch; return False if ``main`` has moved meanwhile.

        ``base``: snapshot ID from which the branch started. ``exported``: progress of the branch.
        ``removed``: other branches to remove in the same commit. ``commits``: maximum number of
        commits on the branch.
        """
        failed: Exception | None = None
        for _ in range(ATTEMPTS):
            self.refresh()
            head = self._table.snapshot(self.name)
            # Another job that takes over removes this branch, and a write then creates it again
            # elsewhere.
            if head is None or not self._follows(head, base, commits):
                return False
            if self._table.currentSnapshot().snapshotId() != base:
                # Either another job moved ``main``, or an earlier attempt succeeded although it
                # raised an error.
                if self.progress() != exported:
                    return False
                break
            try:
                self._fast_forward(head.snapshotId(), removed)
            except JAVA_ERRORS as error:
                failed = error
            else:
                break
        else:
            raise contended_error(str(self._table.name())) from failed
        self.refresh()
        return True

    def is_published(self) -> bool:
        """Return whether the tag is at the branch's head, as of the last :meth:`refresh`.

        Other commits may follow it on ``main``.
        """
        head, tagged = self._table.snapshot(self.name), self._table.snapshot(TAG)
        return None not in (head, tagged) and head.snapshotId() == tagged.snapshotId()

    def _follows(self, head: Any, base: int, commits: int) -> bool:
        for _ in range(commits):
            parent = head.parentId()
            if parent == base:
                return True
            head = None if parent is None else self._table.snapshot(parent)
            if head is None:
                return False
        return False

    def summary(self) -> Mapping[str, str]:
        """Return Iceberg's summary of the branch's last commit."""
        summary: Mapping[str, str] = self._table.snapshot(self.name).summary()
        return summary

    def branches_of_others(self) -> tuple[str, ...]:
        """Return the branches of other jobs."""
        names = [str(name) for name in self._table.refs()]
        return tuple(n for n in names if n.startswith(BRANCH) and n != self.name)

    def remove(self) -> None:
        """Remove the branch if it exists."""
        if self._table.snapshot(self.name) is not None:
            self._table.manageSnapshots().removeBranch(self.name).commit()

    def _fast_forward(self, head: int, removed: tuple[str, ...]) -> None:
        # One commit, so that the tag never names a snapshot that was not published.
        changes = self._table.manageSnapshots().fastForwardBranch(_MAIN, self.name)
        if self._table.snapshot(TAG) is None:
            changes = changes.createTag(TAG, head)
        else:
            changes = changes.replaceTag(TAG, head)
        for name in removed:
            changes = changes.removeBranch(name)
        changes.commit()


def _ancestor(snapshot: Any) -> Ancestor:
    summary = dict(snapshot.summary())
    return Ancestor(snapshot.snapshotId(), snapshot.parentId(), summary, snapshot.operation())


def _without_last_rows(
    before: DataFrame, now: DataFrame, prefix: str, offsets: Mapping[int, int], rows: int
) -> list[int]:
    """Return the partitions whose last rows are in ``before`` and all missing in ``now``.

    ``prefix``: of the columns ``partition`` and ``offset``. ``offsets``: exclusive end offset of
    the rows by partition. ``rows``: number of last rows of each partition to compare.
    """
    place = (f.col(f"{prefix}partition"), f.col(f"{prefix}offset"))
    newest_first = Window.partitionBy("partition").orderBy(f.desc("offset"))
    partitions: list[int] = []
    # A condition over all partitions of a large topic would be too long for one query, so they are
    # divided.
    for some in _divided(offsets):
        # Only the last offsets of each partition are read.
        near = " OR ".join(
            f"({prefix}`partition` = {part} AND {prefix}`offset` >= {end - _LAST_OFFSETS})"
            for part, end in some.items()
        )
        numbered = (
            before.where(near).select(*place).withColumn("place", f.row_number().over(newest_first))
        )
        # The last rows of the last export, and those of them that the table lacks now.
        last = numbered.where(f.col("place") <= rows).select("partition", "offset")
        missing = last.join(now.where(near).select(*place), ["partition", "offset"], "left_anti")
        # Each last row counts once, and once more if it is missing.
        counts = (
            last.withColumn("is_gone", f.lit(0))
            .unionByName(missing.withColumn("is_gone", f.lit(1)))
            .groupBy("partition")
            .agg(f.sum("is_gone").alias("gone"), f.count("*").alias("all"))
        )
        # All last rows are missing if half of the counted rows are marked as gone.
        partitions += [
            int(row["partition"]) for row in counts.collect() if 2 * row["gone"] == row["all"]
        ]
    return sorted(partitions)


def _divided(offsets: Mapping[int, int]) -> Iterator[dict[int, int]]:
    ends = sorted(offsets.items())
    for first in range(0, len(ends), _PARTITIONS_COMPARED):
        yield dict(ends[first : first + _PARTITIONS_COMPARED])
