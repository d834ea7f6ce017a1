"""What an export needs of a table, whatever its format.

A table is claimed once, by a job that starts, and then given one frame of rows after the other,
each with how far the table is when they are in.

No Spark is needed to say what is wanted.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemark_pipeline.export.exported import Exported

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Written:
    """Of one commit, or of several. ``letters``: records that did not parse."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    letters: int = 0

    def __add__(self, other: "Written") -> "Written":
        return Written(
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.files + other.files,
            self.letters + other.letters,
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of a table, and of that of dead letters; None: there is none, or it does not say."""

    rows: int | None = None
    letters: int | None = None


class Table(Protocol):
    """Where rows go: :class:`~tidemark_pipeline.export.iceberg.IcebergTable`."""

    def claim(self, topic: str, topic_id: str) -> Exported:
        """Take it over; how far it is."""

    def append(self, frame: "DataFrame", exported: Exported) -> Written:
        """Rows and how far the table is with them, in one commit."""

    def counts(self) -> Counts:
        """How many rows there are, as the newest commit says it."""

    def close(self) -> None:
        """The job has ended."""
