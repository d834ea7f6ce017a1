"""A statement of Spark's SQL over topics, each of which is a view, with an answer that has an end.

Somebody looks at a topic of any size: no more rows come to the driver than are asked for. Columns
come as what can be written down: Python has no time behind the year 9999, which a record may well
have, and knows it in the machine's time zone; so Spark makes text of whatever is no number, text,
bytes or truth, in the session's time zone.
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

from tidemark_pipeline.topic_source import read_topic


@dataclass(frozen=True, slots=True)
class StatementResult:
    """``columns``: names as the statement has them, which may be the same; ``rows``: values are
    None, bool, int, float, Decimal, str, bytes, and lists and dicts of these. ``cut``: there are
    more rows than were asked for."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    cut: bool


def make_view(session: SparkSession, topic: str, options: Mapping[str, str]) -> None:
    """The topic by its own name, with the columns of :mod:`tidemark_pipeline.columns`; where the
    name has a dot or a dash, a statement writes it in backticks."""
    name = "`" + topic.replace("`", "``") + "`"
    read_topic(session, {**options, "topic": topic}).createOrReplaceTempView(name)


def ask(session: SparkSession, statement: str, limit: int) -> StatementResult:
    """The first ``limit`` rows. Raises PySparkException."""
    table = session.sql(statement)
    names = tuple(table.columns)
    if not names:  # a command that has nothing to say
        return StatementResult((), (), cut=False)
    rows = _readable(table).limit(limit + 1).collect()
    plain = tuple(tuple(_plain(value) for value in row) for row in rows[:limit])
    return StatementResult(names, plain, cut=len(rows) > limit)


def _readable(table: DataFrame) -> DataFrame:
    """By number, for names may be the same."""
    numbered = table.toDF(*(f"c{at}" for at in range(len(table.columns))))
    return numbered.select(
        *(f.col(column.name).cast(_readable_type(column.dataType)) for column in numbered.schema)
    )


def _readable_type(kind: DataType) -> DataType:
    match kind:
        case NumericType() | BinaryType() | BooleanType():
            return kind
        case ArrayType():
            return ArrayType(_readable_type(kind.elementType), kind.containsNull)
        case MapType():
            value = _readable_type(kind.valueType)
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
