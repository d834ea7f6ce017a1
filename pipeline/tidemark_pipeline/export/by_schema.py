"""Values of Avro and Protobuf, by a schema that was given or by those of a registry."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidemark_pipeline.export.exported import ExportError
from tidemark_pipeline.export.worker_frames import through_workers
from tidemark_pipeline.schemas.decoding import UNKNOWN, Decoding, output_schema
from tidemark_pipeline.schemas.registered import Schemas
from tidemark_pipeline.schemas.sources import Source, columns_of, decoder_of
from tidemark_pipeline.schemas.values.refused import SchemaRefused

#: Ids of one batch that are looked at; see ASKED_MAX of the registry's schemas.
_IDS_MAX = 100_000


class Given:
    """All values are of one schema. ``wanted``: its columns; None: those that the table has."""

    def __init__(self, source: Source, wanted: StructType | None) -> None:
        self._source = source
        self._wanted = wanted

    @property
    def wanted(self) -> StructType | None:
        """See :class:`~tidemark_pipeline.schemas.values.reading.Reading`."""
        return self._wanted

    def read(self, frame: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`~tidemark_pipeline.schemas.values.reading.Reading`."""
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
    subject's latest schema, and else the table's. ``message``: of Protobuf, its full name."""

    def __init__(
        self, schemas: Schemas, subject: str, *, reads_latest: bool, message: str = ""
    ) -> None:
        self._schemas, self._subject, self._message = schemas, subject, message
        self._reads_latest = reads_latest
        self._reader: Source | None = None
        self._known = schemas.learn(())
        self._look()

    @property
    def wanted(self) -> StructType | None:
        """See :class:`~tidemark_pipeline.schemas.values.reading.Reading`."""
        return self._columns

    def read(self, frame: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`~tidemark_pipeline.schemas.values.reading.Reading`."""
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
            self._known = self._schemas.learn(())
            return False
        self._known = self._schemas.learn([row[UNKNOWN] for row in counts])
        self._look()
        return True

    def _look(self) -> None:
        self._columns: StructType | None = None
        if self._reads_latest:
            self._reader = self._schemas.latest(self._subject, self._message)
            try:
                self._columns = columns_of(self._reader)
            except SchemaRefused as error:
                raise ExportError(f"the latest schema of {self._subject}: {error}") from error


def _decoded(frame: DataFrame, columns: StructType, decoding: Decoding) -> DataFrame:
    return through_workers(frame, decoding, output_schema(frame.schema, columns))
