"""Port between an export and its table, implemented for Iceberg and Delta Lake.

A job that starts claims the table once. Then it commits one frame of rows after another, each with
the progress of the table after the commit. Rows and offsets are one commit, and only the job that
claimed the table last can commit.

The table's mode decides how rows are written. Append keeps every record. Upsert keeps the last
record of each key (:mod:`tidemark_pipeline.export.upsert`). Its frames may have a column
:data:`DELETED` beside the table's own, which is true to delete the row of the key.

Usable without Spark, so that layouts can be described before it starts.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from tidemark_pipeline.export.export_progress import Exported, ExportError, WriteMode

# Command lines validate their options before PySpark is imported.
if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


#: Attempts of a commit; another writer, such as a compaction, may commit at the same time.
ATTEMPTS = 5
#: Column of a frame for an upsert: delete the row of this key. A frame without it has Kafka's own
#: columns, and a null ``value`` deletes the row.
DELETED = "_deleted"


class PartitionPeriod(StrEnum):
    """Period of the record's timestamp by which a table is partitioned."""

    NONE = "none"
    HOUR = "hour"
    DAY = "day"


#: Columns for formats that cannot partition by a function of a column.
PERIOD_COLUMNS = {PartitionPeriod.HOUR: "kafka_hour", PartitionPeriod.DAY: "kafka_day"}


class Evolution(StrEnum):
    """Reaction to fields of the schema that the table lacks.

    ``IGNORE`` leaves out fields for which the table has no column.
    """

    REFUSE = "refuse"
    GROW = "grow"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """Column to add.

    ``path``: as in Spark's DDL, with ``element`` for items of lists and ``value`` for those of
    maps.
    """

    path: tuple[str, ...]
    type: "DataType"


@dataclass(frozen=True, slots=True)
class Widened:
    """Column to widen from ``before`` to ``type``."""

    path: tuple[str, ...]
    before: "DataType"
    type: "DataType"


#: Transforms of Iceberg's specification. Those with a number are ``bucket[N]`` and ``truncate[W]``.
_TRANSFORM = re.compile(
    r"(?P<name>identity|year|month|day|hour|void)|(?P<sized>bucket|truncate)\[(?P<size>[1-9]\d{0,8})\]"
)


@dataclass(frozen=True, slots=True)
class PartitionField:
    """Column of a table, nested ones as ``kafka.timestamp``, and a transform of Iceberg's
    specification, such as ``bucket[16]``.
    """

    column: str
    transform: str = "identity"

    def parsed(self) -> tuple[str, tuple[int, ...]]:
        """Return the name of the transform and its arguments. Raises :class:`ExportError`."""
        found = _TRANSFORM.fullmatch(self.transform)
        if found is None:
            raise ExportError(
                f"unknown transform {self.transform} of column {self.column}. Use identity, year, "
                "month, day, hour, void, bucket[N] or truncate[W]"
            )
        if found["name"]:
            return found["name"], ()
        return found["sized"], (int(found["size"]),)


@dataclass(frozen=True, slots=True)
class SortField(PartitionField):
    """Column by which files are sorted. ``direction``: ``asc`` with nulls first, or ``desc`` with
    nulls last.
    """

    direction: str = "asc"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRef:
    """Tag or branch for each run that ends, named by ``prefix`` and the time.

    ``max_age_ms``: age after which the expiration of snapshots removes it.
    """

    prefix: str
    kind: str = "tag"
    max_age_ms: int = 7 * 24 * 3_600_000

    def name(self, now_ms: int) -> str:
        """Return the name at a Unix time in milliseconds, such as ``nightly-20261129T030000Z``."""
        time = datetime.fromtimestamp(now_ms // 1000, UTC)
        return f"{self.prefix}-{time:%Y%m%dT%H%M%SZ}"


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Partitioning of a table that is created.

    ``buckets``: number of buckets of the record's key; 0 for none. ``fields``: more fields, and
    ``sort``: order of the rows of a file; both only of Iceberg.
    """

    period: PartitionPeriod = PartitionPeriod.NONE
    buckets: int = 0
    fields: tuple[PartitionField, ...] = ()
    sort: tuple[SortField, ...] = ()


class KeyComparison(Protocol):
    """Rule that decides whether the keys of two rows are equal."""

    def sql(self, column: str) -> str:
        """Return an expression over a column of key bytes whose values are equal for equal keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """Layout of a table.

    ``columns``: columns of a new table, in Spark's DDL. ``kafka``: column that contains the
    record's own fields (``key``, ``partition``, ``offset``, ``timestamp``); "" if they are columns.
    ``properties``: properties of a new table, as its format names them. ``deletes``: the job
    deletes committed records from the topic. ``keys``: rule for equal keys; None compares their
    bytes.
    """

    columns: str
    kafka: str = ""
    mode: WriteMode = WriteMode.APPEND
    partitioning: Partitioning = field(default_factory=Partitioning)
    properties: Mapping[str, str] = field(default_factory=dict)
    deletes: bool = False
    keys: KeyComparison | None = None

    def same_key(self, column: str) -> str:
        """Return the SQL expression over a column of key bytes that is equal for equal keys."""
        # Kafka's compaction also compares the bytes of keys.
        return column if self.keys is None else self.keys.sql(column)

    def partition_fields(self) -> list[PartitionField]:
        """Return all partition fields in their order."""
        partitioning, found = self.partitioning, []
        if partitioning.period is not PartitionPeriod.NONE:
            found.append(PartitionField(self.of_record("timestamp"), partitioning.period.value))
        if partitioning.buckets:
            found.append(PartitionField(self.of_record("key"), f"bucket[{partitioning.buckets}]"))
        return [*found, *partitioning.fields]

    def of_record(self, name: str) -> str:
        """Return the table's column for a field ``name`` of the record."""
        # Beside fields of values the record's own fields are in a struct.
        return f"{self.kafka}.{name}" if self.kafka else name


@dataclass(frozen=True, slots=True)
class Written:
    """Result of one commit or several.

    ``rows``: appended rows, or upserted ones. ``deleted``: rows of deleted keys. ``letters``:
    records that did not parse. ``bytes`` and ``files``: added to the table.
    """

    rows: int = 0
    bytes: int = 0
    files: int = 0
    letters: int = 0
    deleted: int = 0

    def __add__(self, other: "Written") -> "Written":
        # Sums serve the job's metrics, which cover both tables of an export.
        return Written(*map(operator.add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows of a table and of its dead letters; None if unknown or if there is no such table."""

    rows: int | None = None
    letters: int | None = None


class TargetTable(Protocol):
    """One table, or several that are kept in step.

    See :class:`~tidemark_pipeline.export.dead_letters.TableWithDeadLetters` for the latter.
    """

    def claim(self, topic: str, topic_id: str) -> Exported:
        """Create the table if it is missing, take it over, and return its progress.

        An older job cannot commit any more. Raises
        :class:`~tidemark_pipeline.export.export_progress.ExportError`.
        """

    def commit(self, frame: "DataFrame", exported: Exported) -> Written:
        """Write rows and the progress after them in one commit.

        Raises :class:`~tidemark_pipeline.export.export_progress.Superseded`.
        """

    def progress(self) -> Exported:
        """Return the table's progress, read again from the table.

        Raises :class:`~tidemark_pipeline.export.export_progress.Superseded`.
        """

    def counts(self) -> RowCounts:
        """Return the number of rows, as the newest commit has it."""

    def close(self) -> None:
        """Remove everything of the ended job but the table.

        Never raises. If it fails, the next claim cleans up.
        """


class NamedTable(TargetTable, Protocol):
    """Single table with a name and columns."""

    name: str

    def columns(self) -> "StructType | None":
        """Return the columns without :data:`PERIOD_COLUMNS`; None if the table is missing."""

    def grow(self, needed: Sequence[AddedColumn | Widened]) -> bool:
        """Add and widen columns of a claimed table; return False if it changed at the same time.

        Raises :class:`~tidemark_pipeline.export.export_progress.Superseded`.
        """


def contended_error(name: str) -> ExportError:
    """Return the error for a table that changed during each attempt to commit."""
    return ExportError(
        f"{name} was changed by others during each of {ATTEMPTS} attempts to commit; "
        "start again when they are done"
    )
