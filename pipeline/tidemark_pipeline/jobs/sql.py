"""Spark SQL statements over topics as views, with a limited number of rows.

The driver receives no more rows than the limit, whatever the topic's size. Columns are converted to
values that can be printed. Python has no time after the year 9999, which a record may contain, and
converts times to the machine's time zone. So Spark converts every value that is not a number, text,
bytes or boolean to text, in the session's time zone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from tidemark_pipeline.read.topic_source import read_topic


@dataclass(frozen=True, slots=True)
class StatementResult:
    """Result of a statement.

    ``columns``: names as in the statement; two may be equal. ``rows``: values are None, bool, int,
    float, Decimal, str, bytes, and lists and dicts of them. ``is_truncated``: more rows exist than
    the limit.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    is_truncated: bool


def make_view(session: SparkSession, topic: str, options: Mapping[str, str]) -> None:
    """Create a view with the topic's name and the columns of :mod:`tidemark_pipeline.read.columns`.

    A statement quotes a name that contains a dot or a dash in backticks.
    """
    name = "`" + topic.replace("`", "``") + "`"
    read_topic(session, {**options, "topic": topic}).createOrReplaceTempView(name)


def run_statement(session: SparkSession, statement: str, limit: int) -> StatementResult:
    """Return the first ``limit`` rows of a statement. Raises PySparkException."""
    table = session.sql(statement)
    names = tuple(table.columns)
    if not names:  # A command may have no columns.
        return StatementResult((), (), is_truncated=False)
    # One row more than the limit shows whether there are further rows.
    rows = _readable(table).limit(limit + 1).collect()
    plain = tuple(tuple(_plain(value) for value in row) for row in rows[:limit])
    return StatementResult(names, plain, is_truncated=len(rows) > limit)


def _readable(table: DataFrame) -> DataFrame:
    """Convert columns to readable types, by position because two names may be equal."""
    numbered = table.toDF(*(f"c{at}" for at in range(len(table.columns))))
    return numbered.select(
        *(f.col(column.name).cast(_readable_type(column.dataType)) for column in numbered.schema)
    )


def _readable_type(kind: DataType) -> DataType:
    """Return the type to which a column is cast, so that Python can print its values.

    Numbers, bytes and booleans stay. Everything else becomes text, also within lists and structs.
    """
    match kind:
        case NumericType() | BinaryType() | BooleanType():
            return kind
        case ArrayType():
            return ArrayType(_readable_type(kind.elementType), kind.containsNull)
        case MapType():
            value = _readable_type(kind.valueType)
            # Keys of any type become text, as only values are converted in Python.
            return MapType(StringType(), value, kind.valueContainsNull)
        case StructType():
            return StructType(
                [
                    StructField(field.name, _readable_type(field.dataType), field.nullable)
                    for field in kind
                ]
            )
        case _:
            return StringType()


def _plain(value: object) -> object:
    match value:
        case Row():
            return {name: _plain(item) for name, item in zip(value.__fields__, value, strict=True)}
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case bytearray():
            return bytes(value)
        case _:
            return value
