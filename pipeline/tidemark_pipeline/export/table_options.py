"""Table options of an export, from the command line or a Kubernetes ``Export``.

Strings are converted to Spark's configuration before a session exists, and to tables afterwards.
Spark is not needed until then, so that invalid options are reported before it starts.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark_pipeline.export.export_progress import ExportError, WriteMode
from tidemark_pipeline.export.formats import (
    DELTA_SETTINGS,
    Format,
    catalog_settings,
    is_among,
    packages,
)
from tidemark_pipeline.export.schema_options import SchemaOptions
from tidemark_pipeline.export.table import (
    Evolution,
    NamedTable,
    PartitionField,
    Partitioning,
    PartitionPeriod,
    RunRef,
    SortField,
    TableLayout,
    TargetTable,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Name of the catalog in the session.
CATALOG = "lake"
LETTERS_SUFFIX = "_dead_letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(SchemaOptions):
    """Table of an export, and the source of its schema.

    ``table``: name with its namespace, as ``db.orders``. ``catalog``: properties of Iceberg's
    catalog (:func:`catalog_of`), or for Delta Lake the ``warehouse`` alone. ``dead_letters``: with
    a schema, the table of records that do not parse; by default the table's name with
    ``_dead_letters``. ``mode``: see :mod:`~tidemark_pipeline.export.table`. ``deletes``: committed
    records are deleted from the topic (:mod:`~tidemark_pipeline.export.record_deletion`).
    ``run_ref``: tag or branch of each run of a job that ends, None for none.

    These apply to a table that is created. ``partition``: period of its partitions.
    ``key_buckets``: number of key buckets in each, 0 for none. ``partition_by``, ``sort_by``: of
    the target table alone. ``properties``: as its format names them.
    """

    table: str
    format: Format = Format.ICEBERG
    catalog: Mapping[str, str] = field(default_factory=dict)
    dead_letters: str = ""
    mode: WriteMode = WriteMode.APPEND
    partition: PartitionPeriod = PartitionPeriod.NONE
    key_buckets: int = 0
    partition_by: tuple[PartitionField, ...] = ()
    sort_by: tuple[SortField, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    deletes: bool = False
    run_ref: RunRef | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "TableOptions":
        """Return the table options in the JSON of an export job.

        The JSON also has the catalog's ``warehouse``. Raises :class:`ExportError` if a field is
        unknown or has an unknown value.
        """
        given = dict(fields)
        warehouse = str(given.pop("warehouse", ""))
        # A newer operator may set fields that this image does not have.
        unknown = sorted(set(given) - {option.name for option in dataclasses.fields(cls)})
        if unknown or not given.get("table"):
            raise ExportError(
                f"this version of the job does not know {', '.join(unknown)} of a table: give it "
                "an image of the operator's version"
                if unknown
                else "name the table"
            )
        # JSON has the enums' values as text.
        try:
            given["format"] = kind = Format(given.get("format", Format.ICEBERG))
            given["mode"] = WriteMode(given.get("mode", WriteMode.APPEND))
            given["partition"] = PartitionPeriod(given.get("partition", PartitionPeriod.NONE))
            given["evolution"] = Evolution(given.get("evolution", Evolution.REFUSE))
            by, order = given.get("partition_by", ()), given.get("sort_by", ())
            given["partition_by"] = tuple(PartitionField(**field) for field in by)
            ref = given.get("run_ref")
            given["run_ref"] = None if ref is None else RunRef(**ref)
            given["sort_by"] = tuple(SortField(**field) for field in order)
        except (ValueError, TypeError) as error:
            raise ExportError(f"{error}: give the job an image of the operator's version") from None
        return cls(**{**given, "catalog": catalog_of(warehouse, given.get("catalog", {}), kind)})

    @property
    def letters(self) -> str:
        """Return the name of the table of records that do not parse."""
        return self.dead_letters or self.table + LETTERS_SUFFIX

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all tables that the export writes, as Spark's SQL writes them."""
        tables = (self.table, self.letters) if self.has_schema else (self.table,)
        return tuple(map(self.name_of, tables))

    def name_of(self, table: str) -> str:
        """Return a table's name as Spark's SQL writes it."""
        if self.format is Format.DELTA:
            return delta_name(self.catalog["warehouse"], table)
        # Names of topics may begin with a digit, which SQL would read as a number.
        names = (f"`{name}`" if name[:1].isdigit() else name for name in table.split("."))
        return ".".join((CATALOG, *names))

    def settings(
        self, jars: Sequence[str] = (), conf: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return Spark's configuration for the table format: ``conf`` and what the format needs.

        ``jars``: the format's jars and others. If none are given, Spark downloads packages that are
        missing from its own jars; a container image contains them.
        """
        import pyspark

        home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        missing = [p for p in packages(self.format, self.catalog) if not is_among(p, home)]
        spark_conf = {"spark.jars": ",".join(jars)} if jars else {}
        if missing and not jars:
            spark_conf = {"spark.jars.packages": ",".join(missing)}
        if self.format is Format.DELTA:
            return {**spark_conf, **DELTA_SETTINGS, **(conf or {})}
        # The catalog's settings come last, so that ``conf`` cannot enable its cache, which would
        # hide other jobs' commits.
        return {**spark_conf, **(conf or {}), **catalog_settings(CATALOG, self.catalog)}

    def tables(
        self,
        session: "SparkSession",
        source: Mapping[str, str],
        say: Callable[[str], None] = lambda _: None,
    ) -> "TargetTable":
        """Open the target table, and its dead letters if values have a schema.

        ``source``: options of the data source, whose topic may be sampled. ``say``: receives the
        inferred fields and each change of columns. Raises :class:`ExportError`.
        """
        # These modules import PySpark, which is needed only from here on.
        from tidemark_pipeline.export.dead_letters import TableWithDeadLetters
        from tidemark_pipeline.export.row_shapes import (
            KAFKA,
            LETTERS_DDL,
            RAW_DDL,
            column_names,
            columns_ddl,
        )
        from tidemark_pipeline.export.schema_values import RegistryValues
        from tidemark_pipeline.export.value_reader_selection import choose_reader, fields_of_table

        self.check()
        # Without a schema a row is the record itself, so no record can fail to parse.
        if not self.has_schema:
            return self._open(session, self.table, self._layout(RAW_DDL))
        # The columns of an existing table determine the fields if the options give no schema.
        table_columns = self._open(session, self.table, self._layout("")).columns()
        names = column_names(self.format)
        reader = choose_reader(self, session, source, table_columns, say, names)
        fields = fields_of_table(reader, table_columns, names)
        layout = self._layout(columns_ddl(fields), KAFKA)
        # A registry's serializer puts the schema ID before the key. Equal keys may have different
        # IDs, so an upsert compares keys without it.
        if isinstance(reader, RegistryValues) and self.mode is WriteMode.UPSERT:
            layout = dataclasses.replace(layout, keys=reader.keys)
        rows = self._open(session, self.table, layout)
        # Dead letters are not upserted, so they have no key buckets.
        period = Partitioning(self.partition)
        of_letters = TableLayout(
            columns=LETTERS_DDL,
            partitioning=period,
            properties=self.properties,
            deletes=self.deletes,
        )
        return TableWithDeadLetters(
            reader,
            rows,
            self._open(session, self.letters, of_letters),
            mode=self.mode,
            evolution=self.evolution,
            names=names,
            say=say,
        )

    def _open(self, session: "SparkSession", table: str, layout: TableLayout) -> "NamedTable":
        if self.format is Format.DELTA:
            from tidemark_pipeline.export.delta import DeltaTable

            return DeltaTable(session, self.name_of(table), layout)
        from tidemark_pipeline.export.iceberg import IcebergTable

        return IcebergTable(session, self.name_of(table), layout)

    def _layout(self, columns: str, kafka: str = "") -> TableLayout:
        return TableLayout(
            columns=columns,
            kafka=kafka,
            mode=self.mode,
            partitioning=Partitioning(
                self.partition, self.key_buckets, self.partition_by, self.sort_by
            ),
            properties=self.properties,
            deletes=self.deletes,
        )


def catalog_of(
    warehouse: str, given: Mapping[str, str], kind: Format = Format.ICEBERG
) -> dict[str, str]:
    """Return the catalog's properties: ``given`` ones with the warehouse.

    For Delta Lake, which has no catalog, that is the ``warehouse`` alone. Raises
    :class:`ExportError` if the warehouse is missing.
    """
    if kind is Format.DELTA:
        # Delta's tables are addressed by path, so there is no catalog to configure.
        if given or not warehouse:
            raise ExportError(
                "tables of Delta Lake are known by their path: --warehouse FOLDER, and no --catalog"
            )
        return {"warehouse": warehouse}
    # ``catalog-impl`` and ``type`` exclude each other in Iceberg.
    properties = {} if "catalog-impl" in given else {"type": "hadoop"}
    if warehouse:
        properties["warehouse"] = warehouse
    properties |= given
    if properties.get("type") == "hadoop" and "warehouse" not in properties:
        raise ExportError("say where the tables are: --warehouse FOLDER, or a catalog by --catalog")
    return properties


def delta_name(warehouse: str, table: str) -> str:
    """Return the name of a Delta Lake table, by its path in the warehouse, in Spark's SQL."""
    path = "/".join((warehouse.rstrip("/"), *table.split(".")))
    return "delta.`" + path.replace("`", "``") + "`"
