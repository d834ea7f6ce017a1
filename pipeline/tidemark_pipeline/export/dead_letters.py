"""Two tables that an export keeps in step: rows of what values come to, and the records that come
to nothing.

Each table says in its own commits how far it is, and the dead letters are committed first. A job
that ends between the two commits leaves letters that are ahead; the next reads from where the one
behind is, and writes to each what it has not. Of letters that are ahead that is asked of the table
itself, record by record: with another schema other records may be letters.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidemark_pipeline.export import row_shapes
from tidemark_pipeline.export.evolution import applied, changes, check_allowed, text
from tidemark_pipeline.export.export_progress import Exported, WriteMode
from tidemark_pipeline.export.row_shapes import KAFKA
from tidemark_pipeline.export.table import Evolution, NamedTable, RowCounts, Written, contended
from tidemark_pipeline.schemas.values.names import ColumnNames
from tidemark_pipeline.schemas.values.value_format import ValueReader

#: How often a batch is read, and a table grown, until there is nothing new.
_LOOKS = 5


class LetteredTables:
    """``rows`` of what a :class:`~tidemark_pipeline.schemas.values.value_format.ValueReader` makes
    of values, and ``letters``, as one table to the job. ``say`` is told how the table grows."""

    def __init__(
        self,
        reading: ValueReader,
        rows: NamedTable,
        letters: NamedTable,
        mode: WriteMode = WriteMode.APPEND,
        evolution: Evolution = Evolution.REFUSE,
        names: ColumnNames = row_shapes.ANY_FORMAT,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._reading, self._rows, self._letters = reading, rows, letters
        self._mode, self._evolution, self._names, self._say = mode, evolution, names, say
        self._rows_at = self._letters_at = Exported("")
        self._before: Exported = Exported("")

    def claim(self, topic: str, topic_id: str) -> Exported:
        """Both; as far as the one that is behind."""
        self._letters_at = self._letters.claim(topic, topic_id)
        self._rows_at = self._rows.claim(topic, topic_id)
        row_shapes.check_table(self._rows.name, self._rows.columns())
        self._grown()  # what is refused is said before anything is read
        self._before = in_both(self._rows_at, self._letters_at)
        return self._before

    def standing(self) -> Exported:
        """As far as the one that is behind."""
        return in_both(self._rows.standing(), self._letters.standing())

    def commit(self, frame: DataFrame, exported: Exported) -> Written:
        """The letters of a batch, then its rows."""
        read, fields = self._read(frame)
        try:
            letters = row_shapes.letters(read, self._mode)
            rows = row_shapes.rows(read, fields, self._mode)
            if ahead(self._letters_at.offsets, self._before.offsets):
                letters = self._not_there(letters)
            passed = ahead(self._rows_at.offsets, self._before.offsets)
            if passed:
                rows = rows.where(_behind_column(passed))
            self._letters_at = at_least(self._letters_at, exported)
            lettered = self._letters.commit(letters, self._letters_at)
            self._rows_at = at_least(self._rows_at, exported)
            written = self._rows.commit(rows, self._rows_at)
        finally:
            read.unpersist()
        self._before = exported
        return replace(written + replace(lettered, rows=0), letters=lettered.rows)

    def _read(self, frame: DataFrame) -> tuple[DataFrame, StructType]:
        """A batch as it is read by all that it shows, kept; and the fields that it has."""
        for _ in range(_LOOKS):
            fields = self._grown()
            read = self._reading.read(frame, fields).persist()
            try:
                if not self._reading.learn(read):
                    return read, fields
            except BaseException:
                read.unpersist()
                raise
            read.unpersist()
        raise AssertionError("a batch shows something new each time that it is read")

    def _grown(self) -> StructType:
        """The fields that the table has, once it has those that are wanted."""
        for _ in range(_LOOKS):
            fields = row_shapes.value_fields(self._rows.columns() or StructType())
            wanted = self._reading.wanted
            needed = changes(fields, wanted) if wanted is not None else []
            if not needed or self._evolution is Evolution.IGNORE:
                return fields
            check_allowed(needed, self._evolution)
            row_shapes.check_fields(applied(fields, wanted or fields), self._names)
            if self._rows.grow(needed):
                self._say("; ".join(map(text, needed)))
        raise contended(self._rows.name)

    def counts(self) -> RowCounts:
        """Of both."""
        return RowCounts(rows=self._rows.counts().rows, letters=self._letters.counts().rows)

    def close(self) -> None:
        """Both."""
        self._letters.close()
        self._rows.close()

    def _not_there(self, letters: DataFrame) -> DataFrame:
        session = letters.sparkSession
        least = min(self._before.offsets.values(), default=0)
        there = session.table(self._letters.name).select("partition", "offset")
        there = there.where(f.col("offset") >= least)
        return letters.join(there, ["partition", "offset"], "left_anti").select(letters.columns)


def behind(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """By partition the one that is behind; a partition that one has nothing of is not named."""
    return {
        partition: min(one[partition], other[partition]) for partition in one.keys() & other.keys()
    }


def in_both(rows: Exported, letters: Exported) -> Exported:
    """What surely is in the one or in the other."""
    offsets = behind(rows.offsets, letters.offsets)
    starts = {
        partition: max(rows.since(partition), letters.since(partition)) for partition in offsets
    }
    epochs = {}
    for partition, offset in offsets.items():
        # The epoch of the table that is behind. If neither is, the lower one, which is safer.
        at = [
            own.position(partition) for own in (rows, letters) if own.offsets[partition] == offset
        ]
        known = [one.leader_epoch for one in at if one.leader_epoch is not None]
        if len(known) == len(at):
            epochs[partition] = min(known)
    return replace(rows, offsets=offsets, starts=starts, leader_epochs=epochs)


def ahead(offsets: Mapping[int, int], of: Mapping[int, int]) -> dict[int, int]:
    """Those that are further than ``of``."""
    return {
        partition: offset for partition, offset in offsets.items() if offset > of.get(partition, 0)
    }


def at_least(own: Exported, exported: Exported) -> Exported:
    """A table's own claim, as far as a batch reaches, and no less far than it was."""
    both = {**exported.offsets}
    starts = {**exported.starts}
    epochs = {**exported.leader_epochs}
    for partition, offset in own.offsets.items():
        if offset >= both.get(partition, offset):
            both[partition] = offset
            epochs.pop(partition, None)
            if partition in own.leader_epochs:
                epochs[partition] = own.leader_epochs[partition]
        starts[partition] = own.since(partition)
    return replace(own, offsets=both, starts=starts, leader_epochs=epochs)


def _behind_column(passed: Mapping[int, int]) -> Column:
    pairs = [
        (f.lit(partition), f.lit(offset).cast("long"))
        for partition, offset in sorted(passed.items())
    ]
    at = f.create_map(*(column for pair in pairs for column in pair))[f.col(f"{KAFKA}.partition")]
    return f.col(f"{KAFKA}.offset") >= f.coalesce(at, f.lit(0))
