"""Maintenance of tables while a job writes them: rows and offsets stay, unused files are
deleted.
"""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline.lakes import Killed, KilledAfterWriting, Lake, Pause, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.integration.pipeline.rows import records
from tidemark_pipeline.export.export_progress import Exported, WriteMode
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.maintenance import Maintained, TableMaintenance
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.table import TableLayout
from tidemark_pipeline.jobs.maintain import maintain

pytestmark = [*MARKS, pytest.mark.long, pytest.mark.timeout(600)]
_DAY_S = 86_400


def rows_of(lake: Lake, *offsets: int) -> Any:
    return records(lake.session, *((b"k%d" % n, 0, n, n, "v") for n in offsets))


def offsets(lake: Lake) -> list[int]:
    return sorted(row["offset"] for row in lake.session.table(lake.name).collect())


def written(lake: Lake, layout: TableLayout, commits: int) -> tuple[Any, Exported]:
    table = lake.table(layout=layout)
    at = table.claim("t", "")
    for n in range(commits):
        table.commit(rows_of(lake, n), at := at.reaching({0: n + 1}))
    return table, at


def aged(files: set[Path], days: int) -> set[Path]:
    then = time.time() - days * _DAY_S
    for file in files:
        os.utime(file, (then, then))
    return files


@pytest.mark.parametrize("mode", WriteMode)
def test_iceberg_maintenance_while_a_job_writes(
    session: SparkSession, tmp_path: Path, mode: WriteMode
) -> None:
    """In the middle of a batch its snapshots expire, but for those with offsets; what a killed job
    left goes: files of its branch with their snapshot, and those that it had not committed."""
    lake = new_lake(session, {}, tmp_path / "warehouse")
    layout = TableLayout(columns=RAW_DDL, mode=mode)
    before = set((tmp_path / "warehouse").rglob("*.parquet"))
    # A killed job leaves files: a branch with its snapshot, and one that was never committed.
    doomed = lake.table(KilledAfterWriting, layout)
    at = doomed.claim("t", "")
    with pytest.raises(Killed):
        doomed.commit(rows_of(lake, 0), at.reaching({0: 1}))
    left = set((tmp_path / "warehouse").rglob("*.parquet")) - before
    orphan = next(iter(left)).with_name("not-committed.parquet")
    orphan.write_bytes(b"PAR1")
    # Five days old, older than the two days that orphans are kept.
    aged(left | {orphan}, days=5)
    table, at = written(lake, layout, 6)
    done: list[Maintained] = []

    def upkeep() -> None:
        # No snapshot is kept by age.
        maintenance = TableMaintenance(keep=timedelta(), orphans=timedelta(days=2))
        done.append(maintain(lake.session, lake.kind, lake.name, maintenance))

    pause = Pause(tmp_path)
    # Maintenance runs in the middle of a batch.
    with pause.meanwhile(upkeep):
        table.commit(pause.of(rows_of(lake, 6)), at.reaching({0: 7}))
    table.close()
    (found,) = done
    # Six small files were compacted into one.
    assert (found.compacted, found.into, found.failed) == (6, 1, 0)
    assert found.expired >= 6
    assert found.orphans == 1
    assert left
    # Both kinds of leftovers are deleted.
    assert not any(item.exists() for item in left | {orphan})
    assert offsets(lake) == list(range(7))
    # The last offsets stay, regardless of later commits.
    for _ in range(2):
        lake.commit_of_others()
        upkeep()
    assert lake.table(layout=layout).claim("t", "").offsets == {0: 7}
    assert offsets(lake) == list(range(7))


def test_delta_maintenance_while_a_job_writes(session: SparkSession, tmp_path: Path) -> None:
    """In the middle of an upsert; and once Delta has cleaned its log the table still says how far
    it is."""
    lake = new_lake(session, {}, tmp_path / "warehouse", Format.DELTA)
    layout = TableLayout(
        # A checkpoint every two versions, so that the log can be cleaned early.
        columns=RAW_DDL,
        mode=WriteMode.UPSERT,
        properties={"delta.checkpointInterval": "2"},
    )
    table, at = written(lake, layout, 3)
    folder = tmp_path / "warehouse" / "db" / "events"
    orphan = folder / "part-of-a-killed-job.parquet"
    orphan.write_bytes(b"PAR1")
    # Eight days, longer than Delta's default retention of a week.
    aged({orphan}, days=8)
    done: list[Maintained] = []
    other = lake.elsewhere()

    def upkeep() -> None:
        done.append(maintain(other.session, lake.kind, lake.name, TableMaintenance()))

    pause = Pause(tmp_path)
    with pause.meanwhile(upkeep):
        table.commit(pause.of(rows_of(lake, 0, 3)), at.reaching({0: 4}))
    assert done == [Maintained(compacted=3, into=1, removed=1)]
    assert not orphan.exists()
    assert offsets(lake) == [0, 1, 2, 3]
    # Delta may delete log entries before a checkpoint.
    upkeep()
    checkpoint = max(int(path.name[:20]) for path in folder.glob("_delta_log/[0-9]*.checkpoint*"))
    for path in folder.glob("_delta_log/[0-9]*.json"):
        if int(path.name[:20]) < checkpoint:
            path.unlink()
    # The offsets have to be in the checkpoint.
    found = lake.elsewhere().table(layout=layout).claim("t", "")
    assert found.offsets == {0: 4}
