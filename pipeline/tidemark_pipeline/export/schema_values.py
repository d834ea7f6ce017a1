"""Values of Avro and Protobuf, by a schema that was given or by those of a registry."""

import logging
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.row_shapes import ANY_FORMAT, check_fields
from tidemark_pipeline.export.worker_frames import map_in_workers
from tidemark_pipeline.schemas.decoding import UNKNOWN, Decoding, output_schema
from tidemark_pipeline.schemas.registry.keys import RegistryKeys
from tidemark_pipeline.schemas.schema_cache import Schemas
from tidemark_pipeline.schemas.sources import SchemaSource, columns_of, decoder_of
from tidemark_pipeline.schemas.values.names import ColumnNames
from tidemark_pipeline.schemas.values.schema_errors import SchemaRefused

logger = logging.getLogger(__name__)

#: Ids of one batch that are looked at; see ASKED_MAX of the registry's schemas.
_IDS_MAX = 100_000


class Given:
    """All values are of one schema. ``wanted``: its columns; None: those that the table has."""

    def __init__(self, source: SchemaSource, wanted: StructType | None) -> None:
        self._source = source
        self._wanted = wanted

    @property
    def wanted(self) -> StructType | None:
        """See :class:`~tidemark_pipeline.schemas.values.value_format.ValueReader`."""
        return self._wanted

    def read(self, frame: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`~tidemark_pipeline.schemas.values.value_format.ValueReader`."""
        try:  # it is said here rather than by a worker
            decoder_of(self._source, columns.json(), self._source)
        except SchemaRefused as error:
            raise ExportError(f"the schema does not fit the table: {error}") from error
        decoding = Decoding(columns.json(), self._source, reader=self._source)
        return _decoded(frame, columns, decoding)

    def learn(self, read: DataFrame) -> bool:
        """There is nothing more to know."""
        return False


class OfRegistry:
    """Each value says the id of its schema. ``reads_latest``: the columns are those of the
    subject's latest schema, and else the table's. ``message``: full name of the Protobuf message.
    ``keys``: the registry's keys, if keys are compared by it. ``has_table``: the table exists, so
    its columns may be used. ``names``: names that columns may have."""

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
        self._schemas, self._subject, self._message = schemas, subject, message
        self._has_table, self._names = has_table, names
        self._refused: SchemaSource | None = None
        self._refusal = ""
        self._reads_latest = reads_latest
        self.keys = keys
        self._reader: SchemaSource | None = None
        self._columns: StructType | None = None
        self._look()
        self._known = self._learned(())

    @property
    def wanted(self) -> StructType | None:
        """See :class:`~tidemark_pipeline.schemas.values.value_format.ValueReader`."""
        return self._columns

    def read(self, frame: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`~tidemark_pipeline.schemas.values.value_format.ValueReader`."""
        if self.keys is not None:
            self.keys.refresh()
        decoding = Decoding(columns.json(), known=self._known, reader=self._reader)
        return _decoded(frame, columns, decoding)

    def learn(self, read: DataFrame) -> bool:
        """Ask for the ids that were not known, the most frequent first; and for the latest schema,
        for where an id is new its columns may be."""
        counts = (
            read.where(f.col(UNKNOWN).isNotNull())
            .groupBy(UNKNOWN)
            .count()
            .orderBy(f.desc("count"), UNKNOWN)
            .limit(_IDS_MAX)
            .collect()
        )
        if not counts:
            # Strings of ids that were not there are of one batch; they are asked for again.
            self._known = self._learned(())
            return False
        self._look()
        self._known = self._learned([row[UNKNOWN] for row in counts])
        return True

    def _learned(self, ids: Sequence[int]) -> Mapping[int, SchemaSource | str]:
        """Return the known schemas with those of ``ids``; a reason replaces a refused one."""
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

    def _look(self) -> None:
        """Read the latest schema. If no table can have its columns, an existing table keeps its own
        and records of that schema are dead letters, because any producer may register one."""
        if not self._reads_latest:
            return
        latest = self._schemas.latest(self._subject, self._message)
        try:
            columns = columns_of(latest)
            check_fields(columns, self._names)
        except (SchemaRefused, ExportError) as error:
            why = f"the latest schema of {self._subject}: {error}"
            if not self._has_table and self._columns is None:
                raise ExportError(why) from error
            logger.warning("%s: its records are dead letters", why)
            self._refused, self._refusal = latest, str(error)
        else:
            self._reader, self._columns, self._refused = latest, columns, None


def _decoded(frame: DataFrame, columns: StructType, decoding: Decoding) -> DataFrame:
    return map_in_workers(frame, decoding, output_schema(frame.schema, columns))
