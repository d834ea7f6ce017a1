"""Port between an export and the formats JSON, Avro and Protobuf.

A reader names the columns of its schema, and converts each record's value to the table's columns,
or to a reason why that fails. A batch may contain a field or a schema id that the reader does not
know. The reader can learn it, and then the batch is read again.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: Columns of a decoded frame: the value's columns as a struct, and the reason if there are none,
#: else null.
PARSED, ERROR = "_parsed", "_error"
NO_VALUE = "no value"
#: Bound of one batch that a worker receives or returns.
_BATCH_BYTES = 64 * 1024 * 1024
_BATCH_OPTION = "spark.sql.execution.arrow.maxBytesPerBatch"


class ValueReader(Protocol):
    """Reader of values for one job."""

    @property
    def schema_columns(self) -> "StructType | None":
        """Columns of the current schema, or None for the columns of the table."""

    def read(self, frame: "DataFrame", columns: "StructType") -> "DataFrame":
        """Return the frame with :data:`ERROR`, and with :data:`PARSED` of type ``columns``."""

    def learn(self, read: "DataFrame") -> bool:
        """Learn from a decoded batch, and return whether it must be read again.

        Raises :class:`~tidemark_pipeline.export.export_progress.ExportError`.
        """


def map_in_workers(
    frame: "DataFrame",
    work: "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]",
    schema: "StructType",
) -> "DataFrame":
    """Return the frame that ``work`` makes of the batches of ``frame``, with ``schema``.

    Python workers process it in batches of bounded size.
    """
    # One record may have megabytes, so a bound on rows would not limit memory.
    frame.sparkSession.conf.set(_BATCH_OPTION, str(_BATCH_BYTES))
    return frame.mapInArrow(work, schema)
