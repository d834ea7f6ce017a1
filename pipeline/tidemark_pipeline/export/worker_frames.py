"""Frames that Python workers process in batches of bounded size."""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

#: Bound of one batch that a worker receives or returns.
_BATCH_BYTES = 64 * 1024 * 1024
_CONF = "spark.sql.execution.arrow.maxBytesPerBatch"


def map_in_workers(
    frame: DataFrame,
    work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    """Return the frame that ``work`` makes of the batches of ``frame``, with ``schema``."""
    # One record may have megabytes, so a bound on rows would not limit memory.
    frame.sparkSession.conf.set(_CONF, str(_BATCH_BYTES))
    return frame.mapInArrow(work, schema)
