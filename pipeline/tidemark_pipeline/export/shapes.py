"""What a record looks like in a table: as it is, or as the fields of its JSON.

The record's own columns stand in one column ``kafka`` beside the fields of JSON, so that no field's
name can meet one of theirs.
"""

from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidemark_pipeline import columns
from tidemark_pipeline.export.exported import ExportError, Mode
from tidemark_pipeline.export.table import DELETED

#: In the order of the table; which tier a row was read from is not the record's.
RAW = (
    "topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers",
    "leaderEpoch", "tieredEpoch",
)  # fmt: skip
KAFKA = "kafka"
_OF_KAFKA = tuple(name for name in RAW if name != "value")
_LETTER = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_TYPES = {column.name: column.type for column in columns.COLUMNS}
_WRITE = "write fields with their types, as in id BIGINT, name STRING"
_PARSED, _CORRUPT = "_parsed", "_corrupt"

RAW_DDL = ", ".join(f"`{name}` {_TYPES[name]}" for name in RAW)
LETTERS_DDL = ", ".join((*(f"`{name}` {_TYPES[name]}" for name in _LETTER), "error string"))


@dataclass(frozen=True, slots=True)
class Json:
    """Values that are JSON objects of these fields; ``schema`` as Spark's DDL has them. For an
    upsert a null value is no letter, but a row that goes, and a record without a key is one."""

    schema: StructType
    mode: Mode = Mode.APPEND

    @classmethod
    def of(cls, text: str, mode: Mode = Mode.APPEND) -> "Json":
        """Of a schema as Spark's DDL has it; there must be a session. Raises
        :class:`ExportError`."""
        try:
            schema = StructType.fromDDL(text)
        except PySparkException as error:
            raise ExportError(f"the schema is {text!r}; {_WRITE}: {error}") from error
        if not isinstance(schema, StructType):
            raise ExportError(f"the schema is {text!r}; {_WRITE}")
        taken = {KAFKA, _CORRUPT, DELETED} & {name.lower() for name in schema.fieldNames()}
        if taken:
            raise ExportError(f"a field of the schema is called {taken.pop()}, which is taken")
        return cls(schema, mode)

    @property
    def ddl(self) -> str:
        """The columns of the table."""
        kafka = ", ".join(f"`{name}`: {_TYPES[name]}" for name in _OF_KAFKA)
        fields = (f"`{each.name}` {each.dataType.simpleString()}" for each in self.schema)
        return ", ".join((f"{KAFKA} struct<{kafka}>", *fields))

    def parsed(self, frame: DataFrame) -> DataFrame:
        """With what its value comes to; nothing yet is left out."""
        schema = StructType([*self.schema.fields]).add(_CORRUPT, "string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        return frame.withColumn(
            _PARSED, f.from_json(f.col("value").cast("string"), schema, options)
        )

    def rows(self, parsed: DataFrame) -> DataFrame:
        """Those of the table."""
        kafka = f.struct(*_OF_KAFKA).alias(KAFKA)
        fields = [f.col(_PARSED)[name].alias(name) for name in self.schema.fieldNames()]
        if self.mode is Mode.UPSERT:
            fields.append(f.col("value").isNull().alias(DELETED))
        return parsed.where(self._fits()).select(kafka, *fields)

    def letters(self, parsed: DataFrame) -> DataFrame:
        """Those that do not parse, as they are, with why."""
        text = f.col("value").cast("string")
        error = (
            f.when(self._keyless(), "no key")
            .when(f.col("value").isNull(), "no value")
            .when(f.get_json_object(text, "$").isNull(), "not JSON")
            .otherwise("JSON that does not fit the schema")
        )
        return parsed.where(~self._fits()).select(*_LETTER, error.alias("error"))

    def _fits(self) -> Column:
        found = f.col(_PARSED)
        fits = found.isNotNull() & found[_CORRUPT].isNull()
        if self.mode is Mode.UPSERT:
            return ~self._keyless() & (f.col("value").isNull() | fits)
        return fits

    def _keyless(self) -> Column:
        return f.lit(self.mode is Mode.UPSERT) & f.col("key").isNull()
