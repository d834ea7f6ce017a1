"""Export behaviour specific to Delta: commit rights, and the contents of its log after a
rollback (invariant 26).
"""

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline.lakes import Lake, Pause, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.integration.pipeline.rows import records
from tidemark_pipeline.export.dead_letters import TableWithDeadLetters
from tidemark_pipeline.export.export_progress import Exported, ExportError, Superseded, WriteMode
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.json_values import JsonValues, fields_of
from tidemark_pipeline.export.row_shapes import KAFKA, LETTERS_DDL, RAW_DDL, columns_ddl
from tidemark_pipeline.export.table import Partitioning, PartitionPeriod, TableLayout

pytestmark = [*MARKS, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def lake(session: SparkSession, tmp_path: Path) -> Lake:
    return new_lake(session, {}, tmp_path / "warehouse", Format.DELTA)


def offsets(lake: Lake) -> list[int]:
    return sorted(row["offset"] for row in lake.session.table(lake.name).collect())


def of_offsets(lake: Lake, *numbers: int) -> Any:
    return records(lake.session, *((b"k%d" % n, 0, n, n, "v") for n in numbers))


@pytest.mark.parametrize("mode", WriteMode)
def test_superseded_job_commits_nothing(lake: Lake, tmp_path: Path, mode: WriteMode) -> None:
    """The old job may wake in the middle of its write, or after its own check."""
    layout = TableLayout(columns=RAW_DDL, mode=mode)
    # Two jobs on the same table, with sessions of their own.
    first, second = (lake.elsewhere().table(layout=layout) for _ in range(2))
    at = first.claim("t", "")
    pause = Pause(tmp_path)
    taken = []
    with (
        pytest.raises(Superseded, match="has taken over the table"),
        pause.meanwhile(lambda: taken.append(second.claim("t", ""))),
        # The second job claims the table while the first one writes.
    ):
        first.commit(pause.of(of_offsets(lake, 0, 1)), at.reaching({0: 2}))
    # Without its own check, the first job is stopped by Delta's transaction conflict.
    first._check_not_superseded = lambda: None
    with pytest.raises(Superseded, match="has taken over the table"):
        first.commit(of_offsets(lake, 0, 1), at.reaching({0: 2}))
    (at,) = taken
    # The second job starts at the beginning: nothing of the first was committed.
    assert (at.epoch, at.offsets) == (2, {})
    second.commit(of_offsets(lake, 0, 1, 2), at.reaching({0: 3}))
    assert offsets(lake) == [0, 1, 2]


def test_rollback_is_detected_and_the_next_job_starts_there(lake: Lake, tmp_path: Path) -> None:
    """The job notices it before the next commit.

    If the rollback came in the middle of a commit, the error names the version to roll back to.
    """
    table = lake.table()
    at = table.claim("t", "")
    table.commit(of_offsets(lake, 0), one := at.reaching({0: 1}))
    table.commit(of_offsets(lake, 1), two := at.reaching({0: 2}))
    others = lake.elsewhere().session

    def roll_back(version: int) -> None:  # 0: made, 1: claimed, 2 and 3: written
        others.sql(f"RESTORE TABLE {lake.name} TO VERSION AS OF {version}")

    # Another client rolls back to the version with one row.
    roll_back(2)
    with pytest.raises(Superseded, match="rolled back"):
        table.commit(of_offsets(lake, 2), two.reaching({0: 3}))
    assert offsets(lake) == [0]
    # The next job continues at the offsets of that version.
    table = lake.table()
    at = table.claim("t", "")  # version 5
    assert at.offsets == one.offsets
    pause = Pause(tmp_path)
    with (
        pytest.raises(ExportError, match="TO VERSION AS OF 6"),
        pause.meanwhile(lambda: roll_back(1)),
        # A rollback in the middle of a commit cannot be undone by the job.
    ):
        table.commit(pause.of(of_offsets(lake, 1)), at.reaching({0: 2}))
    with pytest.raises(ExportError, match="TO VERSION AS OF 6"):
        lake.table().claim("t", "")
    # The remedy of the message.
    roll_back(6)
    assert lake.table().claim("t", "").offsets == {}
    assert offsets(lake) == []


def test_upsert_is_repeated_after_a_concurrent_compaction(lake: Lake, tmp_path: Path) -> None:
    table = lake.table(layout=TableLayout(columns=RAW_DDL, mode=WriteMode.UPSERT))
    at = table.claim("t", "")
    for n in range(3):
        table.commit(of_offsets(lake, n), at := at.reaching({0: n + 1}))
    pause = Pause(tmp_path)
    again = records(lake.session, (b"k0", 0, 3, 3, "new"), (b"k1", 0, 4, 4, None))
    others = lake.elsewhere().session
    # The compaction conflicts with the upsert, which is repeated.
    with pause.meanwhile(lambda: others.sql(f"OPTIMIZE {lake.name}")):
        written = table.commit(pause.of(again), at.reaching({0: 5}))
    assert (written.rows, written.deleted) == (1, 1)
    assert offsets(lake) == [2, 3]
    # A reader without Spark applies the deletion vectors, too.
    assert lake.query_without_spark('SELECT "offset" FROM events ORDER BY ALL') == [(2,), (3,)]
    assert table.counts().rows == 2


def test_json_and_dead_letters_by_day_and_hour(lake: Lake) -> None:
    fields = fields_of("n INT", lake.session)
    day, hour = Partitioning(PartitionPeriod.DAY), Partitioning(PartitionPeriod.HOUR)
    of_rows = TableLayout(columns=columns_ddl(fields), kafka=KAFKA, partitioning=hour)
    of_letters = TableLayout(columns=LETTERS_DDL, partitioning=day)
    rows = lake.table(layout=of_rows)
    tables = TableWithDeadLetters(
        JsonValues(fields), rows, lake.table(layout=of_letters, name="dlq")
    )
    at = tables.claim("t", str(uuid.UUID(int=1)))
    # The last millisecond of the first hour of the second day.
    late = 90_000_000 - 1  # of the second day, in its first hour
    # Partitions are in UTC whatever the session's time zone is.
    lake.session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        written = tables.commit(
            records(lake.session, (None, 0, 0, late, '{"n": 7}'), (b"k", 0, 1, late, "{")),
            at.reaching({0: 2}),
        )
    finally:
        lake.session.conf.set("spark.sql.session.timeZone", "UTC")
    assert (written.rows, written.letters) == (1, 1)
    (row,) = lake.session.table(lake.name).collect()
    assert (row["n"], row["kafka"]["offset"], row["kafka_hour"]) == (7, 0, "1970-01-02-00")
    statement = "SELECT n, kafka.timestamp, kafka_hour FROM events"
    at_that_time = datetime.fromtimestamp(late / 1000, UTC)
    assert lake.query_without_spark(statement) == [(7, at_that_time, "1970-01-02-00")]
    (letter,) = lake.session.table(lake.named("dlq")).collect()
    assert (letter["error"], str(letter["kafka_day"])) == ("not JSON", "1970-01-02")


def test_foreign_rows_and_another_mode_are_refused(lake: Lake) -> None:
    lake.session.sql(f"CREATE TABLE {lake.name} USING delta AS SELECT 't' AS topic")
    with pytest.raises(ExportError, match="Export into a separate table"):
        lake.table().claim("t", "")
    appended = lake.table(name="appended")
    assert appended.claim("t", "") == Exported("t", "", {}, 1, appended._job)
    with pytest.raises(ExportError, match="with mode append"):
        lake.table(
            layout=TableLayout(columns=RAW_DDL, mode=WriteMode.UPSERT), name="appended"
        ).claim("t", "")
    with pytest.raises(ExportError, match="no key buckets"):
        lake.table(layout=TableLayout(columns=RAW_DDL, partitioning=Partitioning(buckets=2))).claim(
            "t", ""
        )
