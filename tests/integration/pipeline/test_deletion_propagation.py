"""Rows are deleted from a table and its history once their topic no longer has the records.
A job that writes the table at the same time neither loses nor duplicates a row."""

import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from tidemark_pipeline.export.dead_letters import TableWithDeadLetters
from tidemark_pipeline.export.export_progress import Exported, ExportError, WriteMode
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.json_values import JsonValues, fields_of
from tidemark_pipeline.export.maintenance import Propagated
from tidemark_pipeline.export.row_shapes import KAFKA, LETTERS_DDL, RAW_DDL, columns_ddl
from tidemark_pipeline.export.table import TableLayout
from tidemark_pipeline.jobs.maintain import propagate

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "pipeline"))

from small_tier import SmallTier

from tests.integration.pipeline.lakes import Lake, Pause, new_lake
from tests.integration.pipeline.marks import MARKS

pytestmark = [*MARKS, pytest.mark.long, pytest.mark.timeout(600)]
SCHEMA = "id BIGINT, offset STRING"


@pytest.fixture
def topic(tmp_path: Path) -> SmallTier:
    (tmp_path / "tier").mkdir()
    tier = SmallTier(tmp_path / "tier", uuid.uuid4())
    more(tier, 40)
    return tier


def more(tier: SmallTier, count: int) -> None:
    """Append JSON records; every fifth value is not JSON."""
    start = tier.loaded.head.next_copy_offset
    numbers = range(start, start + count)
    tier.copy([b'{"id": %d, "offset": "x"}' % n if n % 5 else b"no json %d" % n for n in numbers])


def lake_of(session: SparkSession, topic: SmallTier, folder: Path, kind: Format) -> Lake:
    return new_lake(session, {"topic": "t", "path": str(topic.path)}, folder / "lake", kind)


def of_topic(topic: SmallTier) -> dict[str, str]:
    return {"path": str(topic.path)}


def offsets(lake: Lake, table: str = "events", column: str = "offset") -> list[int]:
    rows = lake.session.table(lake.named(table)).select(f"{column}").collect()
    return sorted(row[0] for row in rows)


def kept(folder: Path) -> set[int]:
    """Return the offsets of records in all data files of all versions."""
    found: set[int] = set()
    for path in folder.rglob("*.parquet"):
        # Delta's log has parquet files that are no data.
        if "_delta_log" in path.parts:
            continue
        table = pyarrow.parquet.read_table(path, partitioning=None)
        if KAFKA in table.column_names:
            found |= {row["offset"] for row in table[KAFKA].to_pylist()}
        elif "offset" in table.column_names:
            found |= set(table["offset"].to_pylist())
    return found


def propagated(lake: Lake, topic: SmallTier, name: str = "events", **given: Any) -> Propagated:
    return propagate(lake.session, lake.kind, lake.named(name), of_topic(topic), **given)


@pytest.mark.parametrize("kind", Format)
def test_deleted_records_are_in_no_version_of_the_table(
    session: SparkSession, topic: SmallTier, tmp_path: Path, kind: Format
) -> None:
    """The next job continues where the last one stopped."""
    lake = lake_of(session, topic, tmp_path, kind)
    lake.run(lake.table())
    assert propagated(lake, topic) == Propagated()
    topic.expire_to(27)  # a whole file of the table's, and a part of another
    # Deleted from the current version only.
    assert propagated(lake, topic).rows == 27
    assert offsets(lake) == list(range(27, 40))
    # Older versions still have the rows.
    assert kept(tmp_path / "lake") == set(range(40))
    # With history the older versions expire as well.
    done = propagated(lake, topic, history=True)
    assert (done.rows, done.retained_by, done.behind) == (0, (), ())
    assert done.removed > 0
    assert kept(tmp_path / "lake") == set(range(27, 40))
    more(topic, 5)
    assert lake.run(lake.table()).written.rows == 5
    assert offsets(lake) == list(range(27, 45))


@pytest.mark.parametrize("kind", Format)
def test_replaced_rows_of_an_upsert_are_deleted_from_files(
    session: SparkSession, topic: SmallTier, tmp_path: Path, kind: Format
) -> None:
    lake = lake_of(session, topic, tmp_path, kind)
    layout = TableLayout(columns=RAW_DDL, mode=WriteMode.UPSERT)
    lake.run(lake.table(layout=layout))
    # One key: the upsert keeps the newest record only.
    assert offsets(lake) == [39]
    topic.expire_to(30)
    done = propagated(lake, topic, history=True)
    assert (done.rows, done.retained_by) == (0, ())
    assert kept(tmp_path / "lake") == {39}
    more(topic, 5)
    lake.run(lake.table(layout=layout))
    assert offsets(lake) == [44]


@pytest.mark.parametrize("kind", Format)
def test_deletion_propagates_to_rows_and_dead_letters(
    session: SparkSession, topic: SmallTier, tmp_path: Path, kind: Format
) -> None:
    lake = lake_of(session, topic, tmp_path, kind)
    fields = fields_of(SCHEMA, lake.session)

    def tables() -> TableWithDeadLetters:
        rows = TableLayout(columns=columns_ddl(fields), kafka=KAFKA)
        letters = lake.table(layout=TableLayout(columns=LETTERS_DDL), name="letters")
        return TableWithDeadLetters(JsonValues(fields), lake.table(layout=rows), letters)

    lake.run(tables())
    topic.expire_to(13)
    # Of 13 records, 0, 5 and 10 are dead letters.
    assert propagated(lake, topic, history=True).rows == 13 - 3
    assert propagated(lake, topic, "letters", history=True).rows == 3
    assert kept(tmp_path / "lake") == set(range(13, 40))
    more(topic, 5)
    lake.run(tables())
    letters = offsets(lake, "letters")
    assert letters == [n for n in range(13, 45) if n % 5 == 0]
    assert sorted(letters + offsets(lake, column="kafka.offset")) == list(range(13, 45))


class InItsMiddle:
    """Action in the middle of the first write."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.pause: Pause | None = None
        self.do: Any = None

    def write(self, frame: Any, exported: Exported) -> None:
        pause, self.pause = self.pause, None
        if pause is None:
            super().write(frame, exported)  # type: ignore[misc]
            return
        # The deletion happens while the batch is being written.
        with pause.meanwhile(self.do):
            super().write(pause.of(frame), exported)  # type: ignore[misc]


@pytest.mark.parametrize("mode", WriteMode)
@pytest.mark.parametrize("kind", Format)
def test_job_in_the_middle_of_a_batch_continues(
    session: SparkSession, topic: SmallTier, tmp_path: Path, kind: Format, mode: WriteMode
) -> None:
    """If that batch adds rows of deleted records, the next pass deletes them."""
    lake = lake_of(session, topic, tmp_path, kind)
    layout = TableLayout(columns=RAW_DDL, mode=mode)
    lake.run(lake.table(layout=layout))
    more(topic, 20)
    done: list[Propagated] = []

    def erase() -> None:
        topic.expire_to(45)
        # Delta's session caches the table, so another client needs its own.
        other = lake if kind is Format.ICEBERG else lake.elsewhere()
        done.append(propagated(other, topic))

    table = lake.table(InItsMiddle, layout)
    table.pause, table.do = Pause(tmp_path), erase
    lake.run(table)
    # Partition 0 was behind, because the batch was not committed yet.
    assert done[0].behind == (0,)
    expected = list(range(40, 60)) if mode is WriteMode.APPEND else [59]
    assert offsets(lake) == expected
    assert lake.run(lake.table(layout=layout)).commits == 0
    # The next pass deletes what that batch added.
    assert propagated(lake, topic, history=True).behind == ()
    assert min(kept(tmp_path / "lake")) >= 45
    assert offsets(lake) == [n for n in expected if n >= 45]


def test_unknown_records_are_left_alone(
    session: SparkSession, topic: SmallTier, tmp_path: Path
) -> None:
    lake = lake_of(session, topic, tmp_path, Format.ICEBERG)
    lake.run(lake.table(layout=TableLayout(columns=RAW_DDL, deletes=True)))
    topic.expire_to(20)
    # The export itself deletes records, so their absence says nothing about the table.
    with pytest.raises(ExportError, match="no reason to drop it from the table"):
        propagated(lake, topic)
    # A table of another origin has no offsets in its commits.
    lake.session.sql(f"CREATE TABLE {lake.named('other')} (a int) USING iceberg")
    with pytest.raises(ExportError, match="nothing says which records its rows are of"):
        propagated(lake, topic, "other")
    lake.session.sql(f"CREATE TABLE {lake.named('copy')} USING iceberg AS TABLE {lake.name}")
    with pytest.raises(ExportError, match="has rows, but no commit records"):
        propagated(lake, topic, "copy")
    assert offsets(lake) == list(range(40))
