"""Pair of tables that an export keeps in step: rows of parsed values, and records that do not
parse.

Each table records its own progress in its commits, and the dead letters are committed first. A job
that is killed between the two commits leaves the dead letters ahead. The next job reads from the
lower offset and writes to each table only the missing rows. Dead letters are compared with the
table record by record, because another schema can turn other records into dead letters.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidemark_pipeline.export import row_shapes
from tidemark_pipeline.export.evolution import changes, check_allowed, text, with_changes
from tidemark_pipeline.export.export_progress import Exported, WriteMode
from tidemark_pipeline.export.row_shapes import KAFKA
from tidemark_pipeline.export.table import (
    Evolution,
    NamedTable,
    RowCounts,
    Written,
    contended_error,
)
from tidemark_pipeline.schemas.value_format import ColumnNames, ValueReader

#: Reads of one batch, and attempts to add columns, until nothing new is found.
_ATTEMPTS = 5


class TableWithDeadLetters:
    """Table of an export, with a second table for records that cannot be parsed (dead letters).

    ``reader``: parses the values. ``rows`` receives the parsed rows, ``letters`` the other records.
    ``evolution``: treatment of new columns. ``names``: column names that the table format permits.
    ``say`` receives a line for each change of the table's columns.
    """

    def __init__(
        self,
        reader: ValueReader,
        rows: NamedTable,
        letters: NamedTable,
        mode: WriteMode = WriteMode.APPEND,
        evolution: Evolution = Evolution.REFUSE,
        names: ColumnNames = row_shapes.ANY_FORMAT,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._reader, self._rows, self._letters = reader, rows, letters
        self._mode, self._evolution, self._names, self._say = mode, evolution, names, say
        # Progress of each table, and the progress that both have reached.
        self._rows_at = self._letters_at = Exported("")
        self._common: Exported = Exported("")

    def claim(self, topic: str, topic_id: str) -> Exported:
        """Claim both tables; return the progress that both have reached."""
        self._letters_at = self._letters.claim(topic, topic_id)
        self._rows_at = self._rows.claim(topic, topic_id)
        row_shapes.check_table(self._rows.name, self._rows.columns())
        self._evolve()  # raise schema errors before any record is read
        self._common = common_progress(self._rows_at, self._letters_at)
        return self._common

    def progress(self) -> Exported:
        """Return the progress that both tables have reached."""
        return common_progress(self._rows.progress(), self._letters.progress())

    def commit(self, frame: DataFrame, exported: Exported) -> Written:
        """Commit a batch's dead letters to one table, then its rows to the other.

        ``exported``: progress after the batch. Returns the metrics of both commits.
        """
        read, fields = self._read(frame)
        try:
            letters = row_shapes.letters(read, self._mode)
            rows = row_shapes.rows(read, fields, self._mode)
            # A killed job may have committed the dead letters of this range, but not the rows.
            # Those letters are compared and left out.
            if offsets_above(self._letters_at.offsets, self._common.offsets):
                letters = self._without_written(letters)
            passed = offsets_above(self._rows_at.offsets, self._common.offsets)
            # If the dead-letter table was rolled back, the rows table is ahead and already has some
            # rows.
            if passed:
                rows = rows.where(_is_not_written(passed))
            # Dead letters are committed first, so committed rows never lack their dead letters.
            self._letters_at = raised_claim(self._letters_at, exported)
            lettered = self._letters.commit(letters, self._letters_at)
            self._rows_at = raised_claim(self._rows_at, exported)
            written = self._rows.commit(rows, self._rows_at)
        finally:
            read.unpersist()
        # From here on both tables are at the same offsets.
        self._common = exported
        return replace(written + replace(lettered, rows=0), letters=lettered.rows)

    def _read(self, frame: DataFrame) -> tuple[DataFrame, StructType]:
        """Parse the values of a batch; return the persisted frame and the table's value fields.

        The batch is read again while it shows fields or schema IDs that were not known. The caller
        must unpersist the frame.
        """
        for _ in range(_ATTEMPTS):
            # New fields become columns of the table before the batch is read with them.
            fields = self._evolve()
            read = self._reader.read(frame, fields).persist()
            try:
                if not self._reader.learn(read):
                    return read, fields
            except BaseException:
                read.unpersist()
                raise
            read.unpersist()
        raise AssertionError("a batch shows something new each time that it is read")

    def _evolve(self) -> StructType:
        """Add the columns that the schema needs, if allowed; return the table's value fields.

        Raises :class:`ExportError` if the evolution mode refuses a needed column.
        """
        for _ in range(_ATTEMPTS):
            fields = row_shapes.value_fields(self._rows.columns() or StructType())
            schema_columns = self._reader.schema_columns
            needed = changes(fields, schema_columns) if schema_columns is not None else []
            if not needed or self._evolution is Evolution.IGNORE:
                return fields
            check_allowed(needed, self._evolution)
            row_shapes.check_fields(with_changes(fields, schema_columns or fields), self._names)
            # If another writer changed the table meanwhile, grow returns False and the columns are
            # read again.
            if self._rows.grow(needed):
                self._say("; ".join(map(text, needed)))
        raise contended_error(self._rows.name)

    def counts(self) -> RowCounts:
        """Return the rows of each of the two tables."""
        return RowCounts(rows=self._rows.counts().rows, letters=self._letters.counts().rows)

    def close(self) -> None:
        self._letters.close()
        self._rows.close()

    def _without_written(self, letters: DataFrame) -> DataFrame:
        session = letters.sparkSession
        # Offsets below the batch need no comparison.
        least = min(self._common.offsets.values(), default=0)
        written = session.table(self._letters.name).select("partition", "offset")
        written = written.where(f.col("offset") >= least)
        return letters.join(written, ["partition", "offset"], "left_anti").select(letters.columns)


def lower_offsets(rows: Mapping[int, int], letters: Mapping[int, int]) -> dict[int, int]:
    """Return the lower offset of each partition that both mappings contain."""
    return {
        partition: min(rows[partition], letters[partition])
        for partition in rows.keys() & letters.keys()
    }


def common_progress(rows: Exported, letters: Exported) -> Exported:
    """Return the progress that both tables have certainly reached: the lower of the two."""
    offsets = lower_offsets(rows.offsets, letters.offsets)
    # A range is complete only if it is complete in both tables, so the later start counts.
    starts = {
        partition: max(rows.since(partition), letters.since(partition)) for partition in offsets
    }
    epochs = {}
    for partition, offset in offsets.items():
        # The leader epoch belongs to the lower offset, so it comes from the table with that offset.
        # If both have it, the lower epoch is the safe choice.
        positions = [
            own.position(partition) for own in (rows, letters) if own.offsets[partition] == offset
        ]
        # An unknown epoch could be lower than the known one, so none is recorded.
        known = [one.leader_epoch for one in positions if one.leader_epoch is not None]
        if len(known) == len(positions):
            epochs[partition] = min(known)
    return replace(rows, offsets=offsets, starts=starts, leader_epochs=epochs)


def offsets_above(offsets: Mapping[int, int], of: Mapping[int, int]) -> dict[int, int]:
    """Return the offsets that are above those of ``of``."""
    return {
        partition: offset for partition, offset in offsets.items() if offset > of.get(partition, 0)
    }


def raised_claim(own: Exported, exported: Exported) -> Exported:
    """Return a table's own claim with the offsets of a batch, never below its own offsets."""
    both = {**exported.offsets}
    starts = {**exported.starts}
    epochs = {**exported.leader_epochs}
    for partition, offset in own.offsets.items():
        # A table that is ahead keeps its own offset and the leader epoch of that offset.
        if offset >= both.get(partition, offset):
            both[partition] = offset
            epochs.pop(partition, None)
            if partition in own.leader_epochs:
                epochs[partition] = own.leader_epochs[partition]
        starts[partition] = own.since(partition)
    return replace(own, offsets=both, starts=starts, leader_epochs=epochs)


def _is_not_written(passed: Mapping[int, int]) -> Column:
    pairs = [
        (f.lit(partition), f.lit(offset).cast("long"))
        for partition, offset in sorted(passed.items())
    ]
    at = f.create_map(*(column for pair in pairs for column in pair))[f.col(f"{KAFKA}.partition")]
    return f.col(f"{KAFKA}.offset") >= f.coalesce(at, f.lit(0))
