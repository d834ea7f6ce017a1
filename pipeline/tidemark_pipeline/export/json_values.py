"""Reader of values that are JSON objects.

Python workers check the values against the columns, and Spark's parser reads those that pass.
"""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidemark_avro.column_rules import COLUMNS_MAX
from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.json_decimals import LAST_WINS, is_exact, loosened, misfits, tightened
from tidemark_pipeline.export.row_shapes import ANY_FORMAT
from tidemark_pipeline.export.schema_inference import summary, text_of_value
from tidemark_pipeline.schemas.json.inference import grown, size_of
from tidemark_pipeline.schemas.json.record_check import (
    CAUSE,
    HAS_NEW_FIELDS,
    NEW_MAX,
    WorkerRecordCheck,
    checked_schema,
)
from tidemark_pipeline.schemas.json.text import DOES_NOT_FIT
from tidemark_pipeline.schemas.value_format import (
    ERROR,
    NO_VALUE,
    PARSED,
    ColumnNames,
    map_in_workers,
)

_CORRUPT = "_corrupt"
_WRITE = "write fields with their types, as in id BIGINT, name STRING"


class JsonValues:
    """Reader of JSON values.

    ``fields``: columns of the schema; None for those of the table. ``grows``: add fields that
    appear later, if ``names`` allows them.
    """

    def __init__(
        self,
        fields: StructType | None,
        *,
        grows: bool = False,
        names: ColumnNames = ANY_FORMAT,
    ) -> None:
        self._schema_columns = fields
        self._grows = grows
        self._names = names
        # Columns and frame of the last batch that was read.
        self._columns = StructType()
        #: The batch whose new fields were added.
        self._extended_frame: DataFrame | None = None
        self._frame: DataFrame | None = None

    @property
    def schema_columns(self) -> StructType | None:
        return self._schema_columns

    def read(self, frame: DataFrame, columns: StructType) -> DataFrame:
        """Check the values in Python workers, then parse those that pass with Spark's parser.

        Adds the columns PARSED (a struct of ``columns``) and ERROR (the reason of a dead letter,
        null for a row).
        """
        self._columns, self._frame = columns, frame
        # Spark fails on a repeated key of a map by default.
        frame.sparkSession.conf.set(*LAST_WINS)
        checking = WorkerRecordCheck(columns.json(), self._names, self._grows)
        checked = map_in_workers(frame, checking, checked_schema(frame.schema))
        # The parser marks text that does not fit in a column whose name no field of the values may
        # have.
        corrupt = _CORRUPT
        while corrupt in {column.name.lower() for column in columns}:
            corrupt += "_"
        # Decimals stay text until they are checked, because the parser converts any number.
        loose = loosened(columns)
        assert isinstance(loose, StructType)
        schema = StructType([*loose.fields]).add(corrupt, "string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
        value, parsed, cause = f.col("value"), f.col(PARSED), f.col(CAUSE)
        # Refused values are not parsed: they may be nested without a limit.
        text = f.when(cause.isNull(), text_of_value())
        fits = parsed.isNotNull() & parsed[corrupt].isNull() & ~misfits(parsed, columns)
        error = (
            f.when(value.isNull(), NO_VALUE)
            .when(cause.isNotNull(), cause)
            .when(fits, None)
            .otherwise(DOES_NOT_FIT)
        )
        read = checked.withColumn(PARSED, f.from_json(text, schema, options))
        read = read.withColumn(ERROR, error)
        return read if is_exact(columns) else read.withColumn(PARSED, tightened(parsed, columns))

    def learn(self, read: DataFrame) -> bool:
        """Add new fields of a batch to the schema's columns; return whether there were any.

        ``read``: the frame that :meth:`read` returned. Fields are added at most once for each
        batch. Records whose fields exceed the limit become dead letters.
        """
        room = min(NEW_MAX, COLUMNS_MAX - size_of(self._columns))
        if not self._grows or room <= 0 or self._extended_frame is self._frame:
            return False
        new = read.where(f.col(HAS_NEW_FIELDS))
        checking = WorkerRecordCheck(self._columns.json(), self._names, grows=True)
        extended, added = grown(self._columns, summary(new, checking), room)
        if added:
            self._schema_columns, self._extended_frame = extended, self._frame
        return added > 0


def fields_of(text: str, session: SparkSession) -> StructType:
    """Return the fields of a schema in Spark's DDL. Raises :class:`ExportError`."""
    del session  # the types are parsed by its JVM, which must be running
    try:
        schema = StructType.fromDDL(text)
    except PySparkException as error:
        raise ExportError(f"the schema is {text!r}; {_WRITE}: {error}") from error
    if not isinstance(schema, StructType):
        raise ExportError(f"the schema is {text!r}; {_WRITE}")
    return schema
