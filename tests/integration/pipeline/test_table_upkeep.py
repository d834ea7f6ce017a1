"""Scheduled maintenance by the job that exports: files stay bounded, and no record is lost or
duplicated.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.export_day.day import MINUTE_MS, START_MS, run_day
from tests.integration.pipeline.lakes import Lake, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.integration.pipeline.rows import records
from tidemark.export_job import MaintenancePlan, MaintenanceReport
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.table import TableLayout
from tidemark_pipeline.jobs import table_upkeep
from tidemark_pipeline.jobs.table_upkeep import TableUpkeep, UpkeepTable

pytestmark = [*MARKS, pytest.mark.full, pytest.mark.timeout(600)]
HOUR_MS = 60 * MINUTE_MS


@pytest.mark.parametrize(
    "kind", [Format.ICEBERG, pytest.param(Format.DELTA, marks=pytest.mark.long)]
)
def test_a_day_of_small_commits_leaves_few_files(
    session: SparkSession, tmp_path: Path, kind: Format
) -> None:
    # An hour has six commits.
    day = run_day(session, tmp_path, kind, commits=24, step=10)
    assert (day.commits, day.lost, day.duplicated, day.failed) == (24, 0, 0, 0), day.text()
    assert day.runs >= 2, day.text()
    # Without maintenance the folder would have 24 files.
    assert day.files < 24 <= day.compacted + day.files, day.text()


def lake_with_commits(session: SparkSession, folder: Path, commits: int) -> Lake:
    lake = new_lake(session, {}, folder)
    add_commits(lake, 0, commits)
    return lake


def add_commits(lake: Lake, first: int, count: int) -> None:
    table = lake.table(layout=TableLayout(columns=RAW_DDL))
    at = table.claim("t", "")
    for n in range(first, first + count):
        table.commit(records(lake.session, (b"k", 0, n, n, "v")), at := at.reaching({0: n + 1}))
    table.close()


def upkeep_of(
    lake: Lake,
    tables: list[UpkeepTable],
    reports: list[MaintenanceReport],
    hours: Sequence[int] = (1,),
    **plan: Any,
) -> TableUpkeep:
    """Return the upkeep of ``tables``. Now is the last of the ``hours``."""
    fields: dict[str, Any] = {"pause_ms": 600_000, "since_ms": START_MS, **plan}
    return TableUpkeep(
        lake.session,
        lake.kind,
        lambda: tables,
        MaintenancePlan(schedule="@hourly", **fields),
        reports.append,
        clock=lambda: START_MS + HOUR_MS * hours[-1],
    )


def test_failure_of_one_table_keeps_no_other_from_its_maintenance(
    session: SparkSession, tmp_path: Path
) -> None:
    lake = lake_with_commits(session, tmp_path, 6)
    found: list[MaintenanceReport] = []
    upkeep = upkeep_of(lake, [UpkeepTable(lake.named("missing")), UpkeepTable(lake.name)], found)
    assert upkeep.run_if_due(threading.Event())
    last = found[-1]
    assert (last.failures, last.compacted, last.into) == (1, 6, 1)
    assert last.message.startswith(f"{lake.named('missing')}: ")
    assert last.next_ms == START_MS + 2 * HOUR_MS
    # The time of this run is used up.
    assert not upkeep.run_if_due(threading.Event())


def test_a_step_is_stopped_after_the_pause_that_it_may_take(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export can write, and the table has the same rows."""
    monkeypatch.setattr(table_upkeep, "_POLL_S", 0.01)
    lake = lake_with_commits(session, tmp_path, 6)
    found: list[MaintenanceReport] = []
    upkeep = upkeep_of(lake, [UpkeepTable(lake.name)], found, pause_ms=0)
    upkeep.run_if_due(threading.Event())
    assert not upkeep.writing.locked()
    assert lake.session.table(lake.name).count() == 6
    assert found[-1].failures == 1
    assert "compaction took longer than 0 s and was stopped" in found[-1].message


def test_a_table_without_commits_since_its_maintenance_is_left_out(
    session: SparkSession, tmp_path: Path
) -> None:
    lake = lake_with_commits(session, tmp_path, 6)
    found: list[MaintenanceReport] = []
    tables, hours = [UpkeepTable(lake.name, version=6)], [1]
    upkeep = upkeep_of(lake, tables, found, hours)
    assert upkeep.run_if_due(threading.Event())
    assert found[-1].compacted == 6
    # What the job did not commit does not count.
    add_commits(lake, 6, 6)
    hours.append(2)
    assert upkeep.run_if_due(threading.Event())
    assert (found[-1].compacted, found[-1].failures) == (0, 0)
    tables[:] = [UpkeepTable(lake.name, version=12)]
    hours.append(3)
    assert upkeep.run_if_due(threading.Event())
    assert found[-1].compacted >= 6


def test_snapshots_of_a_table_without_commits_expire_at_their_age(
    session: SparkSession, tmp_path: Path
) -> None:
    lake = lake_with_commits(session, tmp_path, 2)
    found: list[MaintenanceReport] = []
    tables, hours = [UpkeepTable(lake.name, version=2)], [1]
    upkeep = upkeep_of(lake, tables, found, hours, compact=False, keep_ms=3 * HOUR_MS)
    runs = {}
    for hour in (1, 2, 4, 5):
        hours.append(hour)
        found.clear()
        assert upkeep.run_if_due(threading.Event())
        runs[hour] = any(report.step.startswith("expiration") for report in found)
    # In hour 4 the last commit is older than three hours.
    assert runs == {1: True, 2: True, 4: True, 5: False}


def test_job_that_stops_does_not_wait_for_the_maintenance_of_its_table(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_with_commits(session, tmp_path, 1)
    found: list[MaintenanceReport] = []
    upkeep, runs = upkeep_of(lake, [UpkeepTable(lake.name)], found), threading.Event()

    def run_until_cancelled(*_: Any) -> Any:
        runs.set()
        session.sparkContext.parallelize([0], 1).foreach(lambda _: time.sleep(3600))

    monkeypatch.setattr(table_upkeep, "maintain", run_until_cancelled)
    stop = threading.Event()
    with upkeep.during(lambda: True, stop, once=False):
        assert runs.wait(60)
        stop.set()
        # The batch that waits can give up.
        assert upkeep.writing.acquire(timeout=60)
        upkeep.writing.release()


def test_a_job_that_ends_leaves_the_maintenance(session: SparkSession, tmp_path: Path) -> None:
    lake = lake_with_commits(session, tmp_path, 6)
    found: list[MaintenanceReport] = []
    upkeep = upkeep_of(lake, [UpkeepTable(lake.name)], found)
    stop = threading.Event()
    stop.set()
    assert not upkeep.run_if_due(stop)
    assert found == []
