"""Which table an export is to write, as its command line and an ``Export`` of Kubernetes say it.

Strings in, what the job works with out: Spark's configuration before there is a session, tables
once there is one. Without Spark until then, so that what is wrong is said before it starts.
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
    Partitioning,
    PartitionPeriod,
    TableLayout,
    TargetTable,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: By which the session knows the catalog.
CATALOG = "lake"
LETTERS_SUFFIX = "_dead_letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """``table``: with its namespace, as ``db.orders``. ``catalog``: properties of Iceberg's catalog
    (:func:`catalog_of`), or for Delta Lake the ``warehouse`` alone. ``schema`` to ``evolution``: as
    :class:`~tidemark_pipeline.export.schema_options.SchemaOptions` has them. ``dead_letters``: with
    a schema, the table of records that do not parse; "": the table's name with ``_dead_letters``.
    ``mode``: of a table's rows, see :mod:`~tidemark_pipeline.export.table`. Of a table that is not
    there yet ``partition``: the period of its partitions, ``key_buckets``: into how many they are
    divided by key, 0 is none, ``properties``: in its format's words. ``deletes``: what is committed
    is deleted from the topic (:mod:`~tidemark_pipeline.export.record_deletion`)."""

    table: str
    format: Format = Format.ICEBERG
    catalog: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    schema_file: str = ""
    message: str = ""
    registry: str = ""
    registry_options: Mapping[str, str] = field(default_factory=dict)
    evolution: Evolution = Evolution.REFUSE
    dead_letters: str = ""
    mode: WriteMode = WriteMode.APPEND
    partition: PartitionPeriod = PartitionPeriod.NONE
    key_buckets: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    deletes: bool = False

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "TableOptions":
        """Of the same fields as JSON has them, with the catalog's ``warehouse`` beside it. Raises
        :class:`ExportError`."""
        given = dict(fields)
        warehouse = str(given.pop("warehouse", ""))
        unknown = sorted(set(given) - {option.name for option in dataclasses.fields(cls)})
        if unknown or not given.get("table"):
            raise ExportError(
                f"this version of the job does not know {', '.join(unknown)} of a table: give it "
                "an image of the operator's version"
                if unknown
                else "name the table"
            )
        try:
            given["format"] = kind = Format(given.get("format", Format.ICEBERG))
            given["mode"] = WriteMode(given.get("mode", WriteMode.APPEND))
            given["partition"] = PartitionPeriod(given.get("partition", PartitionPeriod.NONE))
            given["evolution"] = Evolution(given.get("evolution", Evolution.REFUSE))
        except ValueError as error:
            raise ExportError(f"{error}: give the job an image of the operator's version") from None
        return cls(**{**given, "catalog": catalog_of(warehouse, given.get("catalog", {}), kind)})

    @property
    def letters(self) -> str:
        """The table of records that do not parse."""
        return self.dead_letters or self.table + LETTERS_SUFFIX

    def name_of(self, table: str) -> str:
        """As Spark knows a table of the catalog."""
        if self.format is Format.DELTA:
            return delta_name(self.catalog["warehouse"], table)
        return f"{CATALOG}.{table}"

    def settings(
        self, jars: Sequence[str] = (), conf: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Spark's configuration, with ``conf``. ``jars``: the format's and others; where none is
        named Spark fetches what it has not among its own, as in an image."""
        import pyspark

        home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        missing = [p for p in packages(self.format, self.catalog) if not is_among(p, home)]
        found = {"spark.jars": ",".join(jars)} if jars else {}
        if missing and not jars:
            found = {"spark.jars.packages": ",".join(missing)}
        if self.format is Format.DELTA:
            return {**found, **DELTA_SETTINGS, **(conf or {})}
        return {**found, **(conf or {}), **catalog_settings(CATALOG, self.catalog)}

    @property
    def asked(self) -> SchemaOptions:
        """The schema of values."""
        return SchemaOptions(
            schema=self.schema,
            schema_file=self.schema_file,
            message=self.message,
            registry=self.registry,
            registry_options=self.registry_options,
            evolution=self.evolution,
        )

    def check(self) -> None:
        """What can be said before Spark starts. Raises :class:`ExportError`."""
        self.asked.check()

    def tables(
        self,
        session: "SparkSession",
        source: Mapping[str, str],
        say: Callable[[str], None] = lambda _: None,
    ) -> "TargetTable":
        """What rows are written to. ``source``: options of the data source, whose topic may be
        looked at; ``say`` is told what was inferred, and how the table grows. Raises
        :class:`ExportError`."""
        from tidemark_pipeline.export.dead_letters import LetteredTables
        from tidemark_pipeline.export.row_shapes import (
            KAFKA,
            LETTERS_DDL,
            RAW_DDL,
            column_names,
            columns_ddl,
        )
        from tidemark_pipeline.export.schema_values import OfRegistry
        from tidemark_pipeline.export.value_reader_selection import choose

        self.check()
        if not self.asked.any:
            return self._open(session, self.table, self._layout(RAW_DDL))
        there = self._open(session, self.table, self._layout("")).columns()
        names = column_names(self.format)
        reading, fields = choose(self.asked, session, source, there, say, names)
        layout = self._layout(columns_ddl(fields), KAFKA)
        if isinstance(reading, OfRegistry) and self.mode is WriteMode.UPSERT:
            layout = dataclasses.replace(layout, keys=reading.keys)
        rows = self._open(session, self.table, layout)
        by = Partitioning(self.partition)
        of_letters = TableLayout(
            columns=LETTERS_DDL,
            partitioning=by,
            properties=self.properties,
            deletes=self.deletes,
        )
        return LetteredTables(
            reading,
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
            partitioning=Partitioning(self.partition, self.key_buckets),
            properties=self.properties,
            deletes=self.deletes,
        )


def catalog_of(
    warehouse: str, given: Mapping[str, str], kind: Format = Format.ICEBERG
) -> dict[str, str]:
    """Properties of Iceberg's catalog; of tables of Delta Lake, which need none, the ``warehouse``.
    Raises :class:`ExportError` where they say of no warehouse."""
    if kind is Format.DELTA:
        if given or not warehouse:
            raise ExportError(
                "tables of Delta Lake are known by their path: --warehouse FOLDER, and no --catalog"
            )
        return {"warehouse": warehouse}
    properties = {} if "catalog-impl" in given else {"type": "hadoop"}
    if warehouse:
        properties["warehouse"] = warehouse
    properties |= given
    if properties.get("type") == "hadoop" and "warehouse" not in properties:
        raise ExportError("say where the tables are: --warehouse FOLDER, or a catalog by --catalog")
    return properties


def delta_name(warehouse: str, table: str) -> str:
    """A table of Delta Lake by its place in the warehouse, as Spark's SQL writes it."""
    path = "/".join((warehouse.rstrip("/"), *table.split(".")))
    return "delta.`" + path.replace("`", "``") + "`"
