"""Spark SQL statements over topics as views, with a limited number of rows.

The driver receives no more rows than the limit, whatever the topic's size. Columns are converted to
values that can be printed. Python has no time after the year 9999, which a record may contain, and
converts times to the machine's time zone. So Spark converts every value that is not a number, text,
bytes or boolean to text, in the session's time zone.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.errors import PySparkException
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

from tidemark.message_text import closest
from tidemark_pipeline.export.iceberg_branch import JAVA_ERRORS
from tidemark_pipeline.export.quoting import identifier
from tidemark_pipeline.read.topic_source import read_topic

#: Most namespaces whose tables are listed for a suggestion, and most tables of each.
_NAMESPACES_MAX = 20
_TABLES_MAX = 1000
SUGGESTED_MAX = 3
_QUOTED = re.compile(r"`((?:[^`]|``)+)`")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    view = read_topic(session, {**options, "topic": topic})
    view.createOrReplaceTempView(identifier(topic))


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


# ------------------------------------------------------------ misspelt names


def suggestions(session: SparkSession, error: PySparkException, topics: Iterable[str]) -> list[str]:
    """Return the names that a statement may mean by one that Spark does not know.

    They are written as in a statement. ``topics``: names of topics that can be views. Empty for
    another error, and for columns, for which Spark's own message has the suggestions.
    """
    # A catalog that cannot be listed must not hide the error of the statement.
    try:
        return _suggestions(session, error, topics)
    except JAVA_ERRORS:
        return []


def _suggestions(
    session: SparkSession, error: PySparkException, topics: Iterable[str]
) -> list[str]:
    given = error.getMessageParameters() or {}
    match error.getCondition():
        case "TABLE_OR_VIEW_NOT_FOUND":
            return _tables_like(session, _names(given.get("relationName", "")), topics)
        case "FIELD_NOT_FOUND":
            wanted, known = (_names(given.get(name, "")) for name in ("fieldName", "fields"))
            return [_written(name) for text in wanted[-1:] for name in closest(text, known)]
        case "UNRESOLVED_ROUTINE":
            wanted = _names(given.get("routineName", ""))[-1:]
            functions = [str(row[0]) for row in session.sql("SHOW FUNCTIONS").collect()]
            return [name for text in wanted for name in closest(text, functions)]
        case _:
            return []


def _tables_like(session: SparkSession, path: list[str], topics: Iterable[str]) -> list[str]:
    """Return the topics and tables whose names are similar to an unknown one."""
    if not path:
        return []
    # The full name as it is compared, and as a statement has it. Names of topics may have dots.
    tables = _tables(session, path)
    known = {topic: _written(topic) for topic in topics}
    known |= {".".join(table): ".".join(map(_written, table)) for table in tables}
    # The namespace may be wrong or missing, and the table's own name right.
    own: dict[str, list[str]] = {}
    for table in tables:
        own.setdefault(table[-1], []).append(".".join(table))
    similar = closest(".".join(path), known)
    similar += [table for name in closest(path[-1], own) for table in own[name]]
    return list(dict.fromkeys(known[name] for name in similar))[:SUGGESTED_MAX]


def _tables(session: SparkSession, path: list[str]) -> list[tuple[str, ...]]:
    """Return tables of the current catalog, first those of the namespace of a name."""
    named, spaces = path[-2:-1], _namespaces(session)
    nearest = [space for text in named for space in closest(text, spaces, shown=_NAMESPACES_MAX)]
    found = []
    for space in list(dict.fromkeys([*nearest, *spaces]))[:_NAMESPACES_MAX]:
        try:
            rows = session.sql(f"SHOW TABLES IN {identifier(space)}").take(_TABLES_MAX)
        except JAVA_ERRORS:  # One that may not be listed.
            continue
        found += [(space, str(row.tableName)) for row in rows if not row.isTemporary]
    return [table for table in found if all(map(str.isprintable, table))]


def _namespaces(session: SparkSession) -> list[str]:
    """Return the namespaces of the current catalog."""
    rows = session.sql("SHOW NAMESPACES").take(_TABLES_MAX)
    return [name for row in rows for name in (_names(str(row[0])) or [str(row[0])])[:1]]


def _names(path: str) -> list[str]:
    """Return the names of a path in one of Spark's messages, which are in backticks."""
    return [name.replace("``", "`") for name in _QUOTED.findall(path)]


def _written(name: str) -> str:
    """Return a name as a statement has it: with backticks if it needs them."""
    return name if _PLAIN.fullmatch(name) else identifier(name)
