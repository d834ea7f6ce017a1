"""Port between an export and the formats JSON, Avro and Protobuf.

A reader names the columns of its schema, and converts each record's value to the table's columns,
or to a reason why that fails. A batch may contain a field or a schema id that the reader does not
know. The reader can learn it, and then the batch is read again.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemark_avro.column_rules import folded

# ------------------------------------------------------------ Limits of columns

# Limits of a table's columns: names and times.
#
# Producers choose field names. Tables reserve some names, and use some characters as separators. So
# a name is checked before it becomes a column.

#: Separators of paths, quotes and the escape character. No format quotes all of them in all places.
FORBIDDEN_CHARACTERS = ".`\\"
#: The limit of the Hive metastore and AWS Glue, which is below that of the formats.
NAME_LENGTH_MAX = 255
_FIRST_PRINTABLE, _DELETE = 0x20, 0x7F
_SURROGATES = range(0xD800, 0xE000)
#: First second and end of the years 1 to 9999, in seconds since 1970. SQL and Python have no other
#: dates and times.
FIRST_SECOND, END_SECOND = -62_135_596_800, 253_402_300_800


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Rule for the names of a table's columns. ``characters``: further characters that the format
    forbids. ``reserved``: names, folded, that are forbidden at the top level."""

    characters: str = ""
    reserved: frozenset[str] = frozenset()

    def objection(self, name: str, *, is_top_level: bool) -> str:
        """Return the reason why no column can have the name, "" if one can.

        ``is_top_level``: the column is not nested, so reserved names apply.
        """
        if not name:
            return "a column needs a name"
        if len(name) > NAME_LENGTH_MAX:
            return f"a column's name has at most {NAME_LENGTH_MAX} characters"
        for character in name:
            code = ord(character)
            if code < _FIRST_PRINTABLE or code == _DELETE or code in _SURROGATES:
                return f"a column's name cannot have the character U+{code:04X}"
            if character in FORBIDDEN_CHARACTERS or character in self.characters:
                return f"a column's name cannot have the character {character!r}"
        if is_top_level and folded(name) in self.reserved:
            return "the name is reserved"
        return ""


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
