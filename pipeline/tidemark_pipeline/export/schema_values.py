"""Readers of Avro and Protobuf values, with one given schema or those of a registry."""

import logging
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidemark_avro.column_rules import SchemaRefused
from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.row_shapes import ANY_FORMAT, check_fields
from tidemark_pipeline.schemas.decoding import UNKNOWN, Decoding, output_schema
from tidemark_pipeline.schemas.registry.keys import RegistryKeys
from tidemark_pipeline.schemas.schema_cache import Schemas
from tidemark_pipeline.schemas.sources import SchemaSource, columns_of, decoder_of
from tidemark_pipeline.schemas.value_format import ColumnNames, map_in_workers

logger = logging.getLogger(__name__)

#: Unknown IDs of one batch that are examined; see QUERIES_MAX of the registry's schemas.
_IDS_MAX = 100_000


class GivenSchemaValues:
    """Reader of values that all have one schema.

    ``fields``: columns of the schema; None for those of the table.
    """

    def __init__(self, source: SchemaSource, fields: StructType | None) -> None:
        self._source = source
        self._schema_columns = fields

    @property
    def schema_columns(self) -> StructType | None:
        return self._schema_columns

    def read(self, frame: DataFrame, columns: StructType) -> DataFrame:
        try:  # report it here instead of from a worker
            decoder_of(self._source, columns.json(), self._source)
        except SchemaRefused as error:
            raise ExportError(f"the schema does not fit the table: {error}") from error
        decoding = Decoding(columns.json(), self._source, reader=self._source)
        return _decoded(frame, columns, decoding)

    def learn(self, read: DataFrame) -> bool:
        """Return False: the schema never changes."""
        return False


class RegistryValues:
    """Reader of values in a schema registry's wire format, which begin with the ID of their schema.

    ``subject``: name in the registry under which the topic's schemas are registered.
    ``reads_latest``: the columns are those of the subject's latest schema, otherwise the table's.
    ``message``: full name of the Protobuf message. ``keys``: comparison of record keys without the
    ID of their schema; None if keys are not compared. ``has_table``: the table exists, so its
    columns may be used. ``names``: column names that the table format permits.
    """

    def __init__(
        self,
        schemas: Schemas,
        subject: str,
        *,
        reads_latest: bool,
        message: str = "",
        keys: RegistryKeys | None = None,
        has_table: bool = False,
        names: ColumnNames = ANY_FORMAT,
    ) -> None:
        """Read the subject's latest schema and the known schemas from the registry.

        Raises :class:`ExportError` if no table can have the latest schema's columns and the table
        does not exist yet.
        """
        self._schemas, self._subject, self._message = schemas, subject, message
        self._has_table, self._names = has_table, names
        # The latest schema if no table can have its columns, otherwise None, and the reason.
        # Records of this schema become dead letters.
        self._refused: SchemaSource | None = None
        self._refusal = ""
        self._reads_latest = reads_latest
        self.keys = keys
        # The newest usable latest schema and its columns. Both are None before the first one.
        self._reader: SchemaSource | None = None
        self._columns: StructType | None = None
        # Read the latest schema first: it decides which of the known schemas are refused.
        self._read_latest_schema()
        # The known schemas by ID. For an ID without a usable schema, the value is the reason as
        # text.
        self._known = self._known_schemas(())

    @property
    def schema_columns(self) -> StructType | None:
        return self._columns

    def read(self, frame: DataFrame, columns: StructType) -> DataFrame:
        # Producers may register key schemas at any time.
        if self.keys is not None:
            self.keys.refresh()
        decoding = Decoding(columns.json(), known=self._known, reader=self._reader)
        return _decoded(frame, columns, decoding)

    def learn(self, read: DataFrame) -> bool:
        """Query the registry for the schema IDs of a batch that are unknown, most frequent first.

        Returns True if ``read`` must be decoded again with the new schemas. The latest schema is
        read as well, as a new ID may belong to it, and the table may then need more columns.
        """
        counts = (
            read.where(f.col(UNKNOWN).isNotNull())
            .groupBy(UNKNOWN)
            .count()
            .orderBy(f.desc("count"), UNKNOWN)
            .limit(_IDS_MAX)
            .collect()
        )
        if not counts:
            # IDs that were not registered are remembered for one batch, then queried again.
            self._known = self._known_schemas(())
            return False
        self._read_latest_schema()
        self._known = self._known_schemas([row[UNKNOWN] for row in counts])
        # Decode again even if the registry has none of the IDs: their reason has changed from
        # "unknown" to "not registered".
        return True

    def _known_schemas(self, ids: Sequence[int]) -> Mapping[int, SchemaSource | str]:
        """Return the schema of each known ID, after a query of the registry for ``ids``.

        For an ID without a usable schema, the value is the reason as text.
        """
        known = self._schemas.learn(ids)
        refused = self._refused
        if refused is None:
            return known
        return {
            number: self._refusal
            if isinstance(source, SchemaSource) and source.is_same_schema(refused)
            else source
            for number, source in known.items()
        }

    def _read_latest_schema(self) -> None:
        """Read the latest schema of the subject, whose columns the table should have.

        If no table can have its columns, an existing table keeps its own, and records of that
        schema become dead letters. Any producer may register such a schema, so it does not stop the
        export. Raises :class:`ExportError` for a new table.
        """
        if not self._reads_latest:
            return
        latest = self._schemas.latest(self._subject, self._message)
        try:
            columns = columns_of(latest)
            check_fields(columns, self._names)
        except (SchemaRefused, ExportError) as error:
            why = f"the latest schema of {self._subject}: {error}"
            # A new table has no columns to fall back on.
            if not self._has_table and self._columns is None:
                raise ExportError(why) from error
            logger.warning("%s: its records are dead letters", why)
            self._refused, self._refusal = latest, str(error)
        else:
            self._reader, self._columns, self._refused = latest, columns, None


def _decoded(frame: DataFrame, columns: StructType, decoding: Decoding) -> DataFrame:
    return map_in_workers(frame, decoding, output_schema(frame.schema, columns))
