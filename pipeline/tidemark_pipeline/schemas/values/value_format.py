"""What an export needs of a format: the port that JSON, Avro and Protobuf implement.

A reading says which columns it wants, and makes of each record's value those that the table has, or
the reason why there are none. What a batch shows it, a field or the id of a schema that it did not
know, it may learn, and read the batch once more.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: Columns of a frame that was read: the value's columns as a struct, and why there are none, null
#: where there are.
PARSED, ERROR = "_parsed", "_error"
NO_VALUE = "no value"


class ValueReader(Protocol):
    """Of one job."""

    @property
    def wanted(self) -> "StructType | None":
        """The columns that the schema comes to now; None: those that the table has."""

    def read(self, frame: "DataFrame", columns: "StructType") -> "DataFrame":
        """With :data:`PARSED`, of these columns, and :data:`ERROR`."""

    def learn(self, read: "DataFrame") -> bool:
        """Look at a batch as it was read; true where it is to be read again. Raises
        :class:`~tidemark_pipeline.export.export_progress.ExportError`."""
