"""Which table an export is to write, as its command line and an ``Export`` of Kubernetes say it.

Strings in, what the job works with out: Spark's configuration before there is a session, tables
once there is one. Without Spark until then, so that what is wrong is said before it starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemark_pipeline.export.exported import ExportError, Mode
from tidemark_pipeline.export.table import Layout, Partitioning, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: By which the session knows the catalog.
CATALOG = "lake"
LETTERS_SUFFIX = "_dead_letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``table``: with its namespace, as ``db.orders``. ``catalog``: properties of Iceberg's catalog
    (:func:`catalog_of`). ``schema``: of values that are JSON, as Spark's DDL has it; "": rows are
    records as they are. ``dead_letters``: with a schema, the table of records that do not parse;
    "": the table's name with ``_dead_letters``. ``mode``, ``partitioning``, ``properties``: as a
    :class:`~tidemark_pipeline.export.table.Layout` has them."""

    table: str
    catalog: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    dead_letters: str = ""
    mode: Mode = Mode.APPEND
    partitioning: Partitioning = field(default_factory=Partitioning)
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def letters(self) -> str:
        """The table of records that do not parse."""
        return self.dead_letters or self.table + LETTERS_SUFFIX

    def settings(
        self, jars: Sequence[str] = (), conf: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Spark's configuration, with ``conf``. ``jars``: Iceberg's and others; where none is named
        Iceberg's is fetched."""
        from tidemark_pipeline.export.iceberg import PACKAGE, catalog_settings

        found = {"spark.jars": ",".join(jars)} if jars else {"spark.jars.packages": PACKAGE}
        return {**found, **(conf or {}), **catalog_settings(CATALOG, self.catalog)}

    def tables(self, session: "SparkSession") -> "Table":
        """What rows are appended to. Raises :class:`ExportError`."""
        from tidemark_pipeline.export.dead_letters import JsonTables
        from tidemark_pipeline.export.iceberg import IcebergTable
        from tidemark_pipeline.export.shapes import KAFKA, LETTERS_DDL, RAW_DDL, Json

        name, letters = f"{CATALOG}.{self.table}", f"{CATALOG}.{self.letters}"
        if not self.schema:
            return IcebergTable(session, name, self._layout(RAW_DDL))
        json = Json.of(self.schema, self.mode)
        rows = IcebergTable(session, name, self._layout(json.ddl, KAFKA))
        by = Partitioning(self.partitioning.period)
        of_letters = Layout(columns=LETTERS_DDL, partitioning=by, properties=self.properties)
        return JsonTables(json, rows, IcebergTable(session, letters, of_letters))

    def _layout(self, columns: str, kafka: str = "") -> Layout:
        return Layout(
            columns=columns,
            kafka=kafka,
            mode=self.mode,
            partitioning=self.partitioning,
            properties=self.properties,
        )


def catalog_of(warehouse: str, given: Mapping[str, str]) -> dict[str, str]:
    """Properties of Iceberg's catalog. Raises :class:`ExportError` where they say of no
    warehouse."""
    properties = {} if "catalog-impl" in given else {"type": "hadoop"}
    if warehouse:
        properties["warehouse"] = warehouse
    properties |= given
    if properties.get("type") == "hadoop" and "warehouse" not in properties:
        raise ExportError("say where the tables are: --warehouse FOLDER, or a catalog by --catalog")
    return properties
