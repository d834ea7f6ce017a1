"""A day of a continuous export with scheduled maintenance, in compressed time.

Each commit counts as one minute of a clock that the maintenance reads. Ages are real times in table
formats. So versions of a table are kept by number (Iceberg), or not at all (Delta Lake).
"""

import sys
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.integration.pipeline.lakes import Lake, new_lake
from tidemark.export_job import MaintenancePlan, MaintenanceReport
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.table import TableLayout
from tidemark_pipeline.jobs.export import ExportProgress, export
from tidemark_pipeline.jobs.table_upkeep import TableUpkeep, UpkeepTable

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "pipeline"))

from small_tier import SmallTier

#: 2026-01-01T00:00:00Z
START_MS = 1_767_225_600_000
MINUTE_MS = 60_000
_RECORDS = 5
_PLANS = {
    Format.ICEBERG: MaintenancePlan(
        schedule="@hourly",
        keep_ms=0,
        keep_last=10,
        orphans_ms=72 * 3_600_000,
        pause_ms=600_000,
        since_ms=START_MS,
    ),
    Format.DELTA: MaintenancePlan(
        schedule="@hourly", keep_ms=0, pause_ms=600_000, since_ms=START_MS
    ),
}
#: Delta refuses to delete files that are younger than this property.
_PROPERTIES = {
    Format.ICEBERG: {},
    Format.DELTA: {"delta.deletedFileRetentionDuration": "interval 0 seconds"},
}


@dataclass(slots=True)
class Day:
    """Figures of a day: files in the folder, rows, and maintenance.

    ``others_most``: files that are not data files, such as logs, manifests and checksums.
    """

    commits: int = 0
    runs: int = 0
    failed: int = 0
    files_most: int = 0
    files: int = 0
    others_most: int = 0
    compacted: int = 0
    removed: int = 0
    versions: int = 0
    lost: int = 0
    duplicated: int = 0

    def text(self) -> str:
        return (
            f"{self.commits} commits: {self.files_most} data files at the peak, {self.files} at "
            f"the end, {self.others_most} other files at the peak; {self.runs} maintenance runs, "
            f"{self.failed} failed, {self.compacted} files compacted, {self.removed} removed; "
            f"{self.versions} snapshots; {self.lost} records lost, {self.duplicated} duplicated"
        )


def run_day(session: SparkSession, folder: Path, kind: Format, *, commits: int, step: int) -> Day:
    """Export ``commits`` batches with one commit for each ``step`` minutes."""
    (folder / "tier").mkdir()
    tier = SmallTier(folder / "tier", uuid.uuid4())
    lake = new_lake(session, {"topic": "t", "path": str(tier.path)}, folder / "lake", kind)
    day, stop = Day(), threading.Event()

    def more() -> None:
        start = tier.loaded.head.next_copy_offset
        tier.copy([b"%d" % offset for offset in range(start, start + _RECORDS)])

    def committed(progress: ExportProgress) -> None:
        # The next records exist only after a commit, so that each commit is a small one.
        day.commits = progress.commits
        files, others = _files(folder)
        day.files_most = max(day.files_most, files)
        day.others_most = max(day.others_most, others)
        if day.commits < commits:
            more()
        else:
            stop.set()

    def maintained(report: MaintenanceReport) -> None:
        # The first report of a run still has the figures of the run before.
        if report.step or report.ended_ms is None or report.ended_ms < (report.started_ms or 0):
            return
        day.runs += 1
        day.failed += report.failures
        day.compacted += report.compacted
        day.removed += report.removed

    upkeep = TableUpkeep(
        session,
        kind,
        lambda: [UpkeepTable(lake.name)],
        _PLANS[kind],
        maintained,
        clock=lambda: START_MS + day.commits * step * MINUTE_MS,
    )
    more()
    layout = TableLayout(columns=RAW_DDL, properties=_PROPERTIES[kind])
    export(
        session,
        lake.source,
        lake.table(layout=layout),
        every_s=0.1,
        stop=stop,
        upkeep=upkeep,
        on_commit=committed,
    )
    # The last commits have their maintenance, too.
    day.commits += 60 // step
    upkeep.run_if_due(threading.Event())
    day.commits -= 60 // step
    _count(lake, folder, day, commits * _RECORDS)
    return day


def _count(lake: Lake, folder: Path, day: Day, records: int) -> None:
    day.files, _ = _files(folder)
    rows: Any = lake.session.table(lake.name).agg(
        f.count("*").alias("all"), f.countDistinct("partition", "offset").alias("different")
    )
    (found,) = rows.collect()
    day.lost, day.duplicated = records - found["different"], found["all"] - found["different"]
    if lake.kind is Format.ICEBERG:
        day.versions = lake.session.table(f"{lake.name}.snapshots").count()
    else:
        day.versions = lake.session.sql(f"DESCRIBE HISTORY {lake.name}").count()


def _files(folder: Path) -> tuple[int, int]:
    """Return the numbers of data files and of other files."""
    files = [file for file in (folder / "lake").rglob("*") if file.suffix]
    data = sum(file.suffix == ".parquet" and "_delta_log" not in file.parts for file in files)
    return data, len(files) - data
