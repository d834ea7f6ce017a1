"""A table that grows while others change it.

Iceberg's part is in test_schemas.py of the integration tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tidemark_pipeline.errors import ExportError
from tidemark_pipeline.export.dead_letters import TableWithDeadLetters
from tidemark_pipeline.export.export_progress import Exported, Superseded
from tidemark_pipeline.export.table import AddedColumn, Evolution, RowCounts, Widened, Written

INT, LONG, TEXT = IntegerType(), LongType(), StringType()


def of(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@dataclass
class GrowingTable:
    """Table without rows. ``others`` are changes by other writers, one before each attempt."""

    has: StructType
    others: list[StructType | Exception] = field(default_factory=list)
    grown: int = 0
    name: str = "db.t"

    def claim(self, topic: str, topic_id: str) -> Exported:
        return Exported(topic, topic_id)

    def columns(self) -> StructType:
        return StructType([StructField("kafka", of(offset=LONG)), *self.has])

    def grow(self, needed: Sequence[AddedColumn | Widened]) -> bool:
        if self.others:
            # Another writer commits first, so that this attempt has to be repeated.
            found = self.others.pop(0)
            if isinstance(found, Exception):
                raise found
            self.has = found
            return False
        for item in needed:
            (name,) = item.path
            fields = {one.name: one.dataType for one in self.has}
            self.has = of(**{**fields, name: item.type})
        self.grown += 1
        return True

    def commit(self, frame: Any, exported: Exported) -> Written:
        raise NotImplementedError

    def progress(self) -> Exported:
        raise NotImplementedError

    def counts(self) -> RowCounts:
        return RowCounts()

    def close(self) -> None: ...


class StubValues:
    def __init__(self, wanted: StructType | None) -> None:
        self.schema_columns = wanted

    def read(self, frame: Any, columns: StructType) -> Any:
        raise NotImplementedError

    def learn(self, read: Any) -> bool:
        raise NotImplementedError


def claim(
    table: GrowingTable, target: StructType | None, evolution: Evolution = Evolution.GROW
) -> list[str]:
    messages: list[str] = []
    tables = TableWithDeadLetters(
        StubValues(target), table, GrowingTable(of()), evolution=evolution, say=messages.append
    )
    tables.claim("t", "")
    return messages


TARGET = of(a=LONG, b=TEXT)


def test_a_table_grows_once_and_reports_the_changes() -> None:
    table = GrowingTable(of(a=INT))
    assert claim(table, TARGET) == ["a is widened from int to bigint; b string is added"]
    assert table.has == TARGET
    assert claim(table, TARGET) == []
    assert table.grown == 1


def test_changes_by_others_are_not_repeated() -> None:
    table = GrowingTable(of(a=INT), others=[of(a=INT, b=TEXT), of(a=LONG, b=TEXT)])
    assert claim(table, TARGET) == []
    assert table.grown == 0
    # The other writer has added the column with an incompatible type.
    table = GrowingTable(of(a=INT), others=[of(a=INT, b=INT)])
    with pytest.raises(ExportError, match="b: a column of int cannot become string"):
        claim(table, TARGET)


def test_constant_changes_by_others_end_the_job() -> None:
    table = GrowingTable(of(a=INT), others=[of(a=INT, n=INT), of(a=INT, m=INT)] * 10)
    with pytest.raises(ExportError, match="was changed by others"):
        claim(table, TARGET)


def test_superseded_job_changes_no_column() -> None:
    table = GrowingTable(of(a=INT), others=[Superseded("by another")])
    with pytest.raises(Superseded):
        claim(table, TARGET)
    assert table.has == of(a=INT)


@pytest.mark.parametrize("target", [None, TARGET])
def test_ignored_evolution_changes_no_column(target: StructType | None) -> None:
    table = GrowingTable(of(a=INT))
    assert claim(table, target, Evolution.IGNORE) == []
    assert table.has == of(a=INT)


def test_conflicting_name_is_refused_before_the_table_changes() -> None:
    with pytest.raises(ExportError, match="by case only"):
        claim(GrowingTable(of(a=INT)), of(a=INT, b=INT, B=INT))
