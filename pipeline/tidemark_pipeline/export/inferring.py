"""Which fields JSON has that nobody has described: Spark's own inference, of a bounded sample.

The sample is of both ends of each partition, for what is written today may differ from what was
written first. Types are those that all of it agrees on: bigint, double, decimal, boolean, string,
lists, structs. A field that is null wherever it was seen has no type, and is left out.
"""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from tidemark_pipeline.survey import Survey
from tidemark_pipeline.topic_source import read_topic, topic_options

#: Of all partitions together.
SAMPLE_OFFSETS = 10_000
#: A value that is longer says nothing.
_VALUE_BYTES_MAX = 1024 * 1024


def sample(
    session: SparkSession, options: Mapping[str, str], offsets: int = SAMPLE_OFFSETS
) -> DataFrame:
    """Values of about so many records of a topic, from both ends of each partition. ``options`` are
    the source's."""
    with Survey(topic_options(options)) as survey:
        extents = survey.extents(survey.parts())
    each = max(1, offsets // (2 * max(1, len(extents))))
    spans: list[dict[int, tuple[int, int]]] = [{}, {}]
    for part, extent in extents.items():
        middle = min(extent.log_start + each, extent.end)
        spans[0][part.partition] = extent.log_start, middle
        spans[1][part.partition] = max(middle, extent.end - each), extent.end
    frames = [_between(session, options, span) for span in spans]
    return frames[0].union(frames[1])


def _between(
    session: SparkSession, options: Mapping[str, str], span: Mapping[int, tuple[int, int]]
) -> DataFrame:
    topic = options["topic"]
    given = {
        name: value
        for name, value in options.items()
        if not name.lower().startswith(("starting", "ending", "max"))
    }
    starts, ends = (
        json.dumps({topic: {str(part): ends[place] for part, ends in span.items()}})
        for place in (0, 1)
    )
    positions = {"startingOffsets": starts, "endingOffsets": ends, "failOnDataLoss": "false"}
    return read_topic(session, {**given, **positions, "columns": "value"})


def text_of_value() -> Column:
    """A value's JSON, without the frame that a registry's serializer puts before it: a zero byte,
    with which no JSON begins, and four of an id."""
    return f.expr("if(startswith(value, X'00'), substring(value, 6), value)").cast("string")


def inferred(values: DataFrame) -> StructType:
    """The fields of the values that are JSON objects."""
    short = f.octet_length("value") <= _VALUE_BYTES_MAX
    texts = values.where(short).select(text_of_value().alias("value"))
    session: Any = values.sparkSession
    encoder = session._jvm.org.apache.spark.sql.Encoders.STRING()
    reader = session._jsparkSession.read().option("mode", "DROPMALFORMED")
    reader = reader.option("dropFieldIfAllNull", "true")
    found = reader.json(getattr(texts._jdf, "as")(encoder))
    return StructType.fromJson(json.loads(found.schema().json()))


def extended(table: StructType, found: StructType) -> tuple[StructType, int]:
    """The table's columns, and behind them what else was found; how many these are. Where types
    differ the table's stands, and so it does where names differ by case only."""
    made, added = _extended(table, found)
    assert isinstance(made, StructType)
    return made, added


def _extended(table: DataType, found: DataType) -> tuple[DataType, int]:
    if isinstance(table, ArrayType) and isinstance(found, ArrayType):
        made, added = _extended(table.elementType, found.elementType)
        return ArrayType(made), added
    if not isinstance(table, StructType) or not isinstance(found, StructType):
        return table, 0
    there = {each.name: each for each in found}
    taken = {each.name.lower() for each in table}
    fields, count = [], 0
    for each in table:
        kind, added = each.dataType, 0
        if each.name in there:
            kind, added = _extended(kind, there[each.name].dataType)
        fields.append(StructField(each.name, kind))
        count += added
    for each in found:
        if each.name.lower() not in taken:
            taken.add(each.name.lower())
            fields.append(StructField(each.name, each.dataType))
            count += _size(each.dataType)
    return StructType(fields), count


def _size(kind: DataType) -> int:
    if isinstance(kind, StructType):
        return 1 + sum(_size(each.dataType) for each in kind)
    return 1 + _size(kind.elementType) if isinstance(kind, ArrayType) else 1
