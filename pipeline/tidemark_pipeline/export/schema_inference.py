"""Inference of JSON fields from a bounded sample.

The sample has both ends of each partition, because recent values may differ from the first ones.
:mod:`tidemark_pipeline.schemas.json.inference` determines the types.
"""

import json
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from tidemark_avro.column_rules import COLUMNS_MAX
from tidemark_pipeline.export.row_shapes import ANY_FORMAT
from tidemark_pipeline.read.topic_source import read_topic, topic_options
from tidemark_pipeline.read.topic_survey import Survey
from tidemark_pipeline.schemas.json.inference import RecordShape, grown
from tidemark_pipeline.schemas.json.record_check import SHAPE, Summary, WorkerRecordCheck, merged
from tidemark_pipeline.schemas.value_format import ColumnNames, map_in_workers

#: Offsets in the sample, in all partitions together.
SAMPLE_OFFSETS = 10_000
#: Longer values are not part of the sample.
_VALUE_BYTES_MAX = 1024 * 1024


def sample(
    session: SparkSession, options: Mapping[str, str], offsets: int = SAMPLE_OFFSETS
) -> DataFrame:
    """Return the values of about ``offsets`` records of a topic, from both ends of each partition.

    ``options``: options of the data source.
    """
    with Survey(topic_options(options)) as survey:
        extents = survey.extents(survey.parts())
    # Offsets for each end of a partition, at least one.
    per_end = max(1, offsets // (2 * max(1, len(extents))))
    # Two spans for each partition: the first records and the last ones, each (start, exclusive
    # end).
    spans: list[dict[int, tuple[int, int]]] = [{}, {}]
    for part, extent in extents.items():
        # The two spans do not overlap, so a short partition is not read twice.
        middle = min(extent.log_start + per_end, extent.end)
        spans[0][part.partition] = extent.log_start, middle
        spans[1][part.partition] = max(middle, extent.end - per_end), extent.end
    frames = [_between(session, options, span) for span in spans]
    return frames[0].union(frames[1])


def _between(
    session: SparkSession, options: Mapping[str, str], span: Mapping[int, tuple[int, int]]
) -> DataFrame:
    """Read the values of an offset range of each partition. ``span``: start and exclusive end."""
    topic = options["topic"]
    # The sample has its own positions and no limits, so those of the export's options are removed.
    given = {
        name: value
        for name, value in options.items()
        if not name.lower().startswith(("starting", "ending", "max"))
    }
    starts, ends = (
        json.dumps({topic: {str(part): ends[place] for part, ends in span.items()}})
        for place in (0, 1)
    )
    # Retention may delete records of the sample before they are read.
    positions = {"startingOffsets": starts, "endingOffsets": ends, "failOnDataLoss": "false"}
    return read_topic(session, {**given, **positions, "columns": "value"})


def text_of_value() -> Column:
    """Return a value's JSON without the frame of a registry's serializer.

    The frame is a zero byte, with which no JSON begins, and the four bytes of a schema ID.
    """
    return f.expr("if(startswith(value, X'00'), substring(value, 6), value)").cast("string")


def inferred(values: DataFrame, names: ColumnNames = ANY_FORMAT) -> StructType:
    """Return the fields of the values that are JSON objects, except for records with a name that
    ``names`` refuses."""
    short = f.coalesce(f.octet_length("value") <= _VALUE_BYTES_MAX, f.lit(False))
    nothing = StructType([])
    checking = WorkerRecordCheck(nothing.json(), names, grows=True, new_max=COLUMNS_MAX)
    return grown(nothing, summary(values.where(short), checking), COLUMNS_MAX)[0]


def summary(values: DataFrame, checking: WorkerRecordCheck) -> RecordShape:
    """Return the shape of the fields that the columns do not have yet."""
    schema = StructType([StructField(SHAPE, StringType())])
    rows = map_in_workers(values.select("value"), Summary(checking), schema).collect()
    return merged(row[SHAPE] for row in rows)
