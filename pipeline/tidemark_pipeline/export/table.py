"""What an export needs of a table, whatever its format: the port that Iceberg and Delta implement.

A table is claimed once, by a job that starts, and then given one frame of rows after the other,
each with how far the table is when they are in. Rows and offsets are one commit, and a commit is
made by nobody but the job that claimed the table last.

How rows get in is the table's mode. One that is appended to keeps every record. An upsert keeps of
each key the last record (:mod:`tidemark_pipeline.export.upsert`); its frames may have a column
:data:`DELETED` beside the table's own, which is true where the key's row is to go.

No Spark is needed to say what is wanted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from tidemark_pipeline.export.export_progress import Exported, ExportError, WriteMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


#: Others (a compaction) may commit meanwhile; then it is tried again.
ATTEMPTS = 5
#: Of a frame for an upsert: the row of this key goes. Where a frame has no such column, its rows
#: have Kafka's own columns, and one whose ``value`` is null goes.
DELETED = "_deleted"


class PartitionPeriod(StrEnum):
    """Of the record's timestamp."""

    NONE = "none"
    HOUR = "hour"
    DAY = "day"


#: Where a format has no partitions by a function of a column: columns of their own.
PERIOD_COLUMNS = {PartitionPeriod.HOUR: "kafka_hour", PartitionPeriod.DAY: "kafka_day"}


class Evolution(StrEnum):
    """What is done where the schema of values has more than the table. ``IGNORE``: what the table
    has no column for is left out."""

    REFUSE = "refuse"
    GROW = "grow"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Added:
    """A column that a table is to have; ``path`` as Spark's DDL names it, within lists by
    ``element``, within maps by ``value``."""

    path: tuple[str, ...]
    type: "DataType"


@dataclass(frozen=True, slots=True)
class Widened:
    """A column of ``before`` that is to be ``type``."""

    path: tuple[str, ...]
    before: "DataType"
    type: "DataType"


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Of a table that is not there yet. ``buckets``: so many of the record's key, 0 is none."""

    period: PartitionPeriod = PartitionPeriod.NONE
    buckets: int = 0


class KeyComparison(Protocol):
    """Rule that decides whether the keys of two rows are equal."""

    def sql(self, column: str) -> str:
        """Return an expression over a column of key bytes whose values are equal for equal keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """``columns``: of a table that is not there yet, as Spark's DDL has them. ``kafka``: the column
    that has the record's own (``key``, ``partition``, ``offset``, ``timestamp``); "": they are
    columns themselves. ``properties``: of a table that is not there yet, in its format's words.
    ``deletes``: the job deletes from the topic what it has committed. ``keys``: rule for
    equal keys, None to compare their bytes."""

    columns: str
    kafka: str = ""
    mode: WriteMode = WriteMode.APPEND
    partitioning: Partitioning = field(default_factory=Partitioning)
    properties: Mapping[str, str] = field(default_factory=dict)
    deletes: bool = False
    keys: KeyComparison | None = None

    def same_key(self, column: str) -> str:
        """Return the SQL expression over a column of key bytes that is equal for equal keys."""
        return column if self.keys is None else self.keys.sql(column)

    def of_record(self, name: str) -> str:
        """Where the table has what Kafka calls ``name``."""
        return f"{self.kafka}.{name}" if self.kafka else name


@dataclass(frozen=True, slots=True)
class Written:
    """Of one commit, or of several. ``rows``: appended, or put in place of what their key had;
    ``deleted``: of keys that went; ``letters``: records that did not parse; ``bytes`` and
    ``files``: added."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    letters: int = 0
    deleted: int = 0

    def __add__(self, other: "Written") -> "Written":
        return Written(
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.files + other.files,
            self.letters + other.letters,
            self.deleted + other.deleted,
        )


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows of a table, and of that of dead letters; None: there is none, or it does not say."""

    rows: int | None = None
    letters: int | None = None


class TargetTable(Protocol):
    """One table, or several that are kept in step
    (:class:`~tidemark_pipeline.export.dead_letters.LetteredTables`)."""

    def claim(self, topic: str, topic_id: str) -> Exported:
        """Make it where it is not there, take it over, and say how far it is; an older job commits
        nothing any more. Raises :class:`~tidemark_pipeline.export.export_progress.ExportError`."""

    def commit(self, frame: "DataFrame", exported: Exported) -> Written:
        """Rows and how far the table is with them, in one commit. Raises
        :class:`~tidemark_pipeline.export.export_progress.Superseded`."""

    def standing(self) -> Exported:
        """How far the table is, looked at anew. Raises
        :class:`~tidemark_pipeline.export.export_progress.Superseded`."""

    def counts(self) -> RowCounts:
        """How many rows there are, as the newest commit says it."""

    def close(self) -> None:
        """The job has ended: leave nothing but the table. Never raises; where it fails the next
        claim does it."""


class NamedTable(TargetTable, Protocol):
    """One table, that can be asked for what it has."""

    name: str

    def columns(self) -> "StructType | None":
        """Those that it has now, but for :data:`PERIOD_COLUMNS`; None where it is not there."""

    def grow(self, needed: Sequence[Added | Widened]) -> bool:
        """Add and widen columns of a claimed table; false where others have changed the table
        meanwhile. Raises :class:`~tidemark_pipeline.export.export_progress.Superseded`."""


def contended(name: str) -> ExportError:
    """Of a table that others do not leave alone."""
    return ExportError(
        f"{name} was changed by others during each of {ATTEMPTS} attempts to commit; "
        "start again when they are done"
    )
