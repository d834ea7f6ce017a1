"""Apache Iceberg table that one job at a time writes, exactly once.

Spark's writer makes the data files, and the ``MERGE`` of an upsert makes the delete files. Both
commit to the job's own branch. If no other commit was made since,
:mod:`tidemark_pipeline.export.iceberg_branch` publishes it as the table's state. Otherwise the
batch is placed after the other commits: appended files unchanged, an upsert written again.
"""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, cast

from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from tidemark_pipeline.errors import project_error
from tidemark_pipeline.export.evolution import Change
from tidemark_pipeline.export.export_progress import (
    Exported,
    ExportError,
    WriteMode,
    check_not_superseded,
    new_claim,
)
from tidemark_pipeline.export.iceberg_branch import (
    BRANCH,
    JAVA_ERRORS,
    Branch,
    ColumnChange,
    load_table,
)
from tidemark_pipeline.export.row_shapes import bounded
from tidemark_pipeline.export.table import (
    ATTEMPTS,
    AddedColumn,
    PartitionField,
    RowCounts,
    SortField,
    TableLayout,
    Written,
    contended_error,
)
from tidemark_pipeline.export.upsert import configured, keyless_record_error, merge_into

_SUMMARY = "spark.sql.iceberg.snapshot-property."
#: Metadata files that are kept; each commit leaves one.
_METADATA_FILES = 100
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": str(_METADATA_FILES),
    # A batch changes few rows, so delete files replace the copying of whole files.
    "write.merge.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
}
#: For a sorted table its default is ``range``: Spark would sort across tasks, and read the batch
#: twice for it.
_DISTRIBUTION = "write.distribution-mode"
_DELETED = "spark.merge-into.num-target-rows-deleted"


class IcebergTable:
    """Iceberg table ``name`` with its catalog, such as ``lake.db.orders``."""

    def __init__(self, session: SparkSession, name: str, layout: TableLayout) -> None:
        self.name = name
        self._session = session
        self._layout = layout
        self._job = uuid.uuid4().hex
        # Progress of this job's last commit, None before it has claimed the table.
        self._own_progress: Exported | None = None
        self._opened: Branch | None = None

    @property
    def branch(self) -> str:
        """Return the name of the job's own branch."""
        return BRANCH + self._job

    @property
    def _branch(self) -> Branch:
        if self._opened is None:
            raise ExportError("claim the table first")
        return self._opened

    def claim(self, topic: str, topic_id: str) -> Exported:
        """Take over the table with an empty commit that fences older jobs; return its progress.

        It is published only if the branch ``main`` has not moved meanwhile; otherwise it is
        retried.
        """
        self._open()
        for _ in range(ATTEMPTS):
            self._branch.refresh()
            progress = self._branch.progress()
            claimed = new_claim(
                *(progress, topic, topic_id, self._job, self._layout.mode),
                deletes=self._layout.deletes,
            )
            # The claim is a commit without rows. Publishing it fences all older jobs.
            base = self._branch.reset_to_main()
            if base is None:
                continue
            self._branch.commit_progress(claimed)
            # The branches of killed jobs are removed in the commit that takes the table over.
            if self._branch.publish(base, claimed, self._branch.branches_of_others()):
                self._own_progress = claimed
                return claimed
        raise contended_error(self.name)

    def commit(self, frame: DataFrame, exported: Exported) -> Written:
        """Write a batch to the job's branch and publish it; retry after concurrent commits.

        ``exported``: progress after the batch. Returns the commit's metrics. Raises
        :class:`Superseded` if another job took over.
        """
        is_written = False
        for _ in range(ATTEMPTS):
            # Each attempt starts from the current ``main``, if the job still owns the table.
            self._check_not_superseded()
            base = self._branch.rebase() if is_written else self._branch.reset_to_main()
            if base is None:
                is_written = False
                continue
            if not is_written:
                self._write(frame, exported)
            if self.publish(base, exported):
                self._own_progress = exported
                return self._written()
            # After a conflict, appended files are committed again on the new ``main``. An upsert
            # must be written again, as its position deletes refer to files that may have been
            # replaced.
            is_written = self._layout.mode is WriteMode.APPEND
        raise contended_error(self.name)

    def _write(self, frame: DataFrame, exported: Exported) -> None:
        try:
            self.write(frame, exported)
        except JAVA_ERRORS as error:
            self._check_not_superseded()  # a job that took over has removed the branch
            refusal = keyless_record_error(error)
            if refusal is not None:
                raise refusal from error
            raise

    def write(self, frame: DataFrame, exported: Exported) -> None:
        """Write the data files and commit them to the branch."""
        target = f"{self.name}.branch_{self.branch}"
        frame = bounded(frame, self._layout.kafka)
        properties = {_SUMMARY + key: value for key, value in exported.to_properties().items()}
        with configured(frame.sparkSession, properties):
            if self._layout.mode is WriteMode.APPEND:
                frame.writeTo(target).append()
            else:
                merge_into(target, frame, self._layout, self.branch)

    def publish(self, base: int, exported: Exported) -> bool:
        """Make the rows visible to readers; return False if ``main`` has moved."""
        return self._branch.publish(base, exported)

    def columns(self) -> StructType | None:
        if not self._session.catalog.tableExists(self.name):
            return None
        return self._session.table(self.name).schema

    def grow(self, needed: Sequence[Change]) -> bool:
        self._check_not_superseded()
        return self._branch.grow([_change_of(self._session, change) for change in needed])

    def progress(self) -> Exported:
        self._check_not_superseded()
        assert self._own_progress is not None
        return self._own_progress

    def counts(self) -> RowCounts:
        return RowCounts(rows=self._branch.rows())

    def close(self) -> None:
        """Remove the job's branch. A failure is ignored, because the next claim removes it."""
        if self._opened is None:
            return
        try:
            self._opened.refresh()
            self._opened.remove()
        except JAVA_ERRORS:
            pass

    def _check_not_superseded(self) -> None:
        self._branch.refresh()
        if self._own_progress is None:
            raise ExportError("claim the table first")
        check_not_superseded(self._own_progress, self._branch.progress())

    def _open(self) -> None:
        """Create the namespace and the table if they are missing, and load the table.

        Raises :class:`ExportError` if the catalog caches tables.
        """
        # A cached table would hide the commits of other jobs.
        cached = f"spark.sql.catalog.{self.name.partition('.')[0]}.cache-enabled"
        if self._session.conf.get(cached, "true") != "false":
            raise ExportError(f"a table must be seen as it is: set {cached} to false")
        namespace = self.name.rpartition(".")[0]
        # A hadoop catalog creates folders itself, but a REST catalog refuses a table without a
        # namespace.
        if not self._session.catalog.databaseExists(namespace):
            self._session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        if not self._session.catalog.tableExists(self.name):
            self._create()
        table = load_table(self._session, self.name)
        if table.currentSnapshot() is None:
            table.newFastAppend().commit()  # empty: a branch needs a snapshot to start from
        self._opened = Branch(self._session, self.name, table, self._job)

    def _create(self) -> None:
        """Create the table with its partitions and its order in one commit.

        Raises :class:`ExportError` if these do not fit the columns.
        """
        # Spark's SQL cannot write a sort order or the transform void, so this is Iceberg's own API.
        layout, jvm = self._layout, cast(Any, self._session)._jvm
        iceberg = jvm.org.apache.iceberg
        columns = jvm.org.apache.spark.sql.types.StructType.fromDDL(layout.columns)
        schema = iceberg.spark.SparkSchemaUtil.convert(columns)
        fields, sort = layout.partition_fields(), layout.partitioning.sort
        properties = {**_PROPERTIES, **layout.properties}
        if sort:
            properties.setdefault(_DISTRIBUTION, "hash" if fields else "none")
        catalog, spark = self.name.partition(".")[0], cast(Any, self._session)._jsparkSession
        spark3 = iceberg.spark.Spark3Util
        try:
            # Spark's parser, because parts of the name may be quoted.
            identifier = spark3.catalogAndIdentifier(spark, self.name).identifier()
            (
                spark3.loadIcebergCatalog(spark, catalog)
                .buildTable(spark3.identifierToTableIdentifier(identifier), schema)
                .withPartitionSpec(_partition_spec(iceberg, schema, fields))
                .withSortOrder(_sort_order(iceberg, schema, sort))
                .withProperties(properties)
                .create()
            )
        except JAVA_ERRORS as error:
            # Another job created it at the same moment.
            if "AlreadyExistsException" in str(error):
                return
            is_refused = isinstance(error, IllegalArgumentException)
            if not is_refused and "ValidationException" not in str(error):
                raise
            raise ExportError(
                f"{self.name} cannot be created with these partitions and this order: "
                f"{project_error(str(error))[1]}. Correct partitionBy and sortBy"
            ) from error

    def _written(self) -> Written:
        summary = self._branch.summary()
        rows, size, files, deletes, deleted = (
            int(summary.get(name) or 0)
            for name in (
                *("added-records", "added-files-size", "added-data-files"),
                *("added-delete-files", _DELETED),
            )
        )
        return Written(rows=rows, bytes=size, files=files + deletes, deleted=deleted)


def _partition_spec(iceberg: Any, schema: Any, fields: Iterable[PartitionField]) -> Any:
    """Return Iceberg's partition spec. ``iceberg``: package of its classes in the JVM."""
    spec = iceberg.PartitionSpec.builderFor(schema)
    for field in fields:
        transform, arguments = field.parsed()
        build = getattr(spec, "alwaysNull" if transform == "void" else transform)
        spec = build(field.column, *arguments)
    return spec.build()


def _sort_order(iceberg: Any, schema: Any, fields: Iterable[SortField]) -> Any:
    """Return Iceberg's sort order. ``iceberg``: package of its classes in the JVM."""
    order, nulls = iceberg.SortOrder.builderFor(schema), iceberg.NullOrder
    for field in fields:
        transform, arguments = field.parsed()
        of_term = "ref" if transform == "identity" else transform
        term = getattr(iceberg.expressions.Expressions, of_term)(field.column, *arguments)
        if field.direction == "desc":
            order = order.desc(term, nulls.NULLS_LAST)
        else:
            order = order.asc(term, nulls.NULLS_FIRST)
    return order.build()


def _change_of(session: Any, change: Change) -> ColumnChange:
    """Return the change with its type converted to Iceberg's Java type."""
    # Types convert only as part of a schema, so the column is wrapped in one.
    schema_json = StructType([StructField("c", change.type)]).json()
    java = session._jsparkSession.parseDataType(schema_json)
    schema = session._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(java)
    return change.path, isinstance(change, AddedColumn), schema.columns().get(0).type()
