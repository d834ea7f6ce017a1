"""Columns of a record in a table: the record as it is, or the fields of its value.

With fields, the record's own columns are in one column ``kafka``, so that no field name conflicts
with them.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tidemark_avro.column_rules import folded
from tidemark_pipeline.export import quoting
from tidemark_pipeline.export.export_progress import ExportError, WriteMode
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.table import DELETED, PERIOD_COLUMNS
from tidemark_pipeline.read import columns
from tidemark_pipeline.schemas.value_format import (
    END_SECOND,
    ERROR,
    FIRST_SECOND,
    PARSED,
    ColumnNames,
)

#: In the order of the table. Which tier a row was read from does not belong to the record.
RAW = (
    "topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers",
    "leaderEpoch", "tieredEpoch",
)  # fmt: skip
KAFKA = "kafka"
_OF_KAFKA = tuple(name for name in RAW if name != "value")
_LETTER = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_PLACE = {"partition", "offset"}
_TYPES = {column.name: column.type for column in columns.COLUMNS}
#: Top-level names that an export uses itself.
RESERVED = frozenset({KAFKA, DELETED, *PERIOD_COLUMNS.values()})
ANY_FORMAT = ColumnNames(reserved=RESERVED)

RAW_DDL = ", ".join(f"`{name}` {_TYPES[name]}" for name in RAW)
LETTERS_DDL = ", ".join((*(f"`{name}` {_TYPES[name]}" for name in _LETTER), "error string"))
#: Top-level names that a format reserves for its own columns.
_OF_FORMAT = {
    Format.ICEBERG: (
        *("_file", "_pos", "_spec_id", "_partition", "_row_id", "_commit_snapshot_id"),
        *("_last_updated_sequence_number", "_change_type", "_change_ordinal"),
    ),
    Format.DELTA: ("_change_type", "_commit_version", "_commit_timestamp"),
}
_FORBIDDEN = {Format.ICEBERG: "", Format.DELTA: " ,;{}()="}


def column_names(kind: Format) -> ColumnNames:
    """Return the names that fields of values may have in a table of a format."""
    return ColumnNames(_FORBIDDEN[kind], RESERVED | {*_OF_FORMAT[kind]})


def bounded(frame: DataFrame, kafka: str) -> DataFrame:
    """Return the rows with record timestamps limited to the years 1 to 9999.

    ``kafka``: name of the struct column with the record's own fields, "" if they are top-level
    columns. Producers may send any timestamp; others become the nearest bound. Iceberg's hours have
    32 bits, so a query does not find a row in a partition beyond them. Delta fails to write the
    statistics of the largest timestamps.
    """
    first, last = (f.expr(f"timestamp_seconds({second})") for second in (FIRST_SECOND, END_SECOND))
    # The last microsecond of the year 9999.
    last = last - f.expr("INTERVAL '0.000001' SECOND")
    if kafka:
        # ``withField`` replaces one field of the struct and keeps the others.
        timestamp = f.col(kafka)["timestamp"]
        return frame.withColumn(
            kafka, f.col(kafka).withField("timestamp", _between(timestamp, first, last))
        )
    return frame.withColumn("timestamp", _between(f.col("timestamp"), first, last))


def _between(time: Column, first: Column, last: Column) -> Column:
    return f.when(time > last, last).when(time < first, first).otherwise(time)


def raw(frame: DataFrame) -> DataFrame:
    """Return records as a table has them; a column that their engine lacks is null."""
    nothing = f.lit(None)
    return frame.select(
        *(
            f.col(name) if name in frame.columns else nothing.cast(_TYPES[name]).alias(name)
            for name in RAW
        )
    )


def check_fields(fields: StructType, names: ColumnNames = ANY_FORMAT) -> None:
    """Raise :class:`ExportError` if the fields conflict with other columns or each other."""
    if not len(fields):
        raise ExportError("the schema has no fields")
    _check_names(fields, "", names)


def _check_names(kind: DataType, path: str, names: ColumnNames) -> None:
    """Raise :class:`ExportError` if a field name, at any depth, cannot be a column's name.

    ``path``: that of the enclosing field, "" at the top.
    """
    if isinstance(kind, StructType):
        seen: dict[str, str] = {}
        for field in kind:
            where = f"{path}.{field.name}" if path else field.name
            if not path and folded(field.name) in names.reserved:
                raise ExportError(f"a field of the schema is called {field.name}, which is taken")
            # Spark compares column names without case.
            other = seen.setdefault(folded(field.name), field.name)
            if other is not field.name:
                raise ExportError(f"{where}: {other} differs from it by case only, if at all")
            objection = names.objection(field.name, is_top_level=not path)
            if objection:
                raise ExportError(f"{where!r} is no name that a column can have: {objection}")
            _check_names(field.dataType, where, names)
    elif isinstance(kind, ArrayType):
        _check_names(kind.elementType, f"{path}.element", names)
    elif isinstance(kind, MapType):
        _check_names(kind.valueType, f"{path}.value", names)


def check_table(name: str, table: StructType | None) -> None:
    """Raise :class:`ExportError` if the table has no column for the record's own fields."""
    if table is None or KAFKA not in table.fieldNames():
        raise ExportError(
            f"{name} has no column {KAFKA}, in which the record's own are: "
            f"ALTER TABLE {name} ADD COLUMN {_kafka_ddl()}, or export into a new table"
        )


def prefix_of_record(name: str, table: StructType) -> str:
    """Return the prefix of the columns that identify a row's record.

    Raises :class:`ExportError` if the table has no such columns.
    """
    kafka = table[KAFKA].dataType if KAFKA in table.fieldNames() else None
    if isinstance(kafka, StructType) and set(kafka.fieldNames()) >= _PLACE:
        return f"{KAFKA}."
    if {*_PLACE, "topic"} <= set(table.fieldNames()):
        return ""
    raise ExportError(
        f"{name} has neither columns topic, partition and offset nor a column {KAFKA} with them: "
        "nothing says which records its rows are of"
    )


def _kafka_ddl() -> str:
    return f"{KAFKA} struct<{', '.join(f'`{name}`: {_TYPES[name]}' for name in _OF_KAFKA)}>"


def columns_ddl(fields: StructType) -> str:
    """Return the columns of a table with the fields of the value, as Spark's DDL."""
    return f"{_kafka_ddl()}, {quoting.columns_of(fields)}"


def value_fields(table: StructType) -> StructType:
    """Return the columns of a table that are fields of the value."""
    return StructType([column for column in table if column.name != KAFKA])


def rows(read: DataFrame, fields: StructType, mode: WriteMode) -> DataFrame:
    """Return the table's rows for records that were read.

    ``read``: frame of a :class:`~tidemark_pipeline.schemas.value_format.ValueReader`. In an
    upsert a null value deletes the row of its key.
    """
    kafka = f.struct(*_OF_KAFKA).alias(KAFKA)
    value_columns = [f.col(PARSED)[field.name].alias(field.name) for field in fields]
    if mode is WriteMode.UPSERT:
        value_columns.append(f.col("value").isNull().alias(DELETED))
    return read.where(_fits(mode)).select(kafka, *value_columns)


def letters(read: DataFrame, mode: WriteMode) -> DataFrame:
    """Return the records that do not parse, unchanged, with the reason.

    In an upsert records without a key are included.
    """
    # A missing key is reported first: the value may be valid.
    error = f.when(_keyless(mode), "no key").otherwise(f.col(ERROR))
    return read.where(~_fits(mode)).select(*_LETTER, error.alias("error"))


def _fits(mode: WriteMode) -> Column:
    fits = f.col(ERROR).isNull()
    if mode is WriteMode.UPSERT:
        # A null value is a deletion in an upsert, although it does not parse.
        return ~_keyless(mode) & (f.col("value").isNull() | fits)
    return fits


def _keyless(mode: WriteMode) -> Column:
    return f.lit(mode is WriteMode.UPSERT) & f.col("key").isNull()
