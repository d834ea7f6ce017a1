"""Values that are JSON objects, read by Spark's own parser."""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidemark_pipeline.export.exported import ExportError
from tidemark_pipeline.export.inferring import extended, inferred, text_of_value
from tidemark_pipeline.export.json_decimals import loosened, misfits, tightened
from tidemark_pipeline.schemas.values.reading import ERROR, NO_VALUE, PARSED

_CORRUPT = "_corrupt"
_WRITE = "write fields with their types, as in id BIGINT, name STRING"
#: Fields that one batch may add to a table: more are no fields, but data.
NEW_MAX = 100


class Json:
    """``wanted``: the fields; None: those that the table has. ``grows``: fields that appear later
    are wanted, too."""

    def __init__(self, wanted: StructType | None, *, grows: bool = False) -> None:
        self._wanted = wanted
        self._grows = grows
        self._columns: StructType | None = None

    @property
    def wanted(self) -> StructType | None:
        """See :class:`~tidemark_pipeline.schemas.values.reading.Reading`."""
        return self._wanted

    def read(self, frame: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`~tidemark_pipeline.schemas.values.reading.Reading`."""
        self._columns = columns
        corrupt = _CORRUPT
        while corrupt in {each.name.lower() for each in columns}:
            corrupt += "_"
        loose = loosened(columns)
        assert isinstance(loose, StructType)
        schema = StructType([*loose.fields]).add(corrupt, "string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
        value, parsed = f.col("value"), f.col(PARSED)
        text = text_of_value()
        fits = parsed.isNotNull() & parsed[corrupt].isNull()
        if loose != columns:
            fits = fits & ~misfits(parsed, columns)
        error = (
            f.when(fits, None)
            .when(value.isNull(), NO_VALUE)
            .when(f.get_json_object(text, "$").isNull(), "not JSON")
            .otherwise("JSON that does not fit the schema")
        )
        read = frame.withColumn(PARSED, f.from_json(text, schema, options))
        read = read.withColumn(ERROR, error)
        return read if loose == columns else read.withColumn(PARSED, tightened(parsed, columns))

    def learn(self, read: DataFrame) -> bool:
        """Fields that the table has not, where they are asked for."""
        if not self._grows or self._columns is None:
            return False
        found, added = extended(self._columns, inferred(read))
        if added > NEW_MAX:
            raise ExportError(
                f"the values have {added} fields that the table has not, and {NEW_MAX} at once are "
                "the most that are added: are their names data? Give a schema, or leave them out "
                "(evolution=ignore)"
            )
        if added:
            self._wanted = found
        return added > 0


def fields_of(text: str, session: SparkSession) -> StructType:
    """Of a schema as Spark's DDL has it. Raises :class:`ExportError`."""
    del session  # types are parsed by the JVM that it has
    try:
        schema = StructType.fromDDL(text)
    except PySparkException as error:
        raise ExportError(f"the schema is {text!r}; {_WRITE}: {error}") from error
    if not isinstance(schema, StructType):
        raise ExportError(f"the schema is {text!r}; {_WRITE}")
    return schema
