"""The page of an exported table has its rows, its freshness, and its dead letters by cause."""

import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline.lakes import Lake, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.unit.pipeline.small_tier import SmallTier
from tidemark_pipeline.export.dead_letters import TableWithDeadLetters
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.json_values import JsonValues, fields_of
from tidemark_pipeline.export.row_shapes import KAFKA, LETTERS_DDL, columns_ddl
from tidemark_pipeline.export.table import TableLayout
from tidemark_pipeline.jobs.report import table_figures
from tidemark_pipeline.report.figures import TableFigures
from tidemark_pipeline.report.page import table_page

pytestmark = MARKS
NOT_JSON = {3: b"{", 13: b"\xff\xfe", 15: b"<script>" + b"x" * 5000}
#: Each has another number in its error.
YEARS = {20 + n: b'{"at": %d}' % (300_000_000_000 + n) for n in range(5)}


def exported(session: SparkSession, folder: Path, kind: Format) -> Lake:
    """Return a lake with a table of 30 records, eight of which are dead letters."""
    (folder / "tier").mkdir()
    tier = SmallTier(folder / "tier", uuid.uuid4())
    values = [b'{"id": %d}' % n for n in range(30)]
    tier.copy([{**NOT_JSON, **YEARS}.get(n, value) for n, value in enumerate(values)])
    lake = new_lake(session, {"topic": "t", "path": str(tier.path)}, folder / "lake", kind)
    fields = fields_of("id BIGINT, at TIMESTAMP", session)
    rows = lake.table(layout=TableLayout(columns=columns_ddl(fields), kafka=KAFKA))
    letters = lake.table(layout=TableLayout(columns=LETTERS_DDL), name="events_dead_letters")
    progress = lake.run(TableWithDeadLetters(JsonValues(fields), rows, letters))
    assert (progress.exported_offsets, progress.lag, progress.lag_ms) == (30, 0, 0)
    return lake


def figures(lake: Lake, samples: int = 2, letters: str = "events_dead_letters") -> TableFigures:
    return table_figures(
        *(lake.session, lake.kind, lake.name, lake.named(letters)),
        table="db.events",
        samples=samples,
    )


@pytest.mark.parametrize(
    "kind", [Format.ICEBERG, pytest.param(Format.DELTA, marks=pytest.mark.full)]
)
def test_the_page_has_rows_freshness_and_dead_letters(
    session: SparkSession, tmp_path: Path, kind: Format
) -> None:
    lake = exported(session, tmp_path, kind)
    found = figures(lake)
    assert (found.rows, found.letters, found.topic, found.positions) == (22, 8, "t", {0: 30})
    assert found.committed_ms is not None
    # Records have their offsets as timestamps.
    (partition,) = found.partitions
    assert (partition.rows, partition.first_offset, partition.last_offset) == (22, 0, 29)
    assert found.newest_ms == partition.last_ms == 29
    assert [(period.start_ms, period.rows) for period in found.periods] == [(0, 22)]
    # Errors that differ by a number are one cause, the most frequent first.
    years, syntax = found.causes
    assert years.error == "at: N seconds are not between the years 1 and 9999"
    assert (years.rows, years.first_ms, years.last_ms) == (5, 20, 24)
    assert [sample.offset for sample in years.samples] == [24, 23]
    assert (syntax.error, syntax.rows) == ("not JSON", 3)
    long, binary = syntax.samples
    assert (long.value, long.value_bytes) == (b"<script>" + b"x" * 192, 5008)
    assert (binary.value, binary.key) == (b"\xff\xfe", b"k")
    page = table_page(found, found.committed_ms)
    assert "<script" not in page
    assert "… (5,008 bytes)" in page
    # Without samples no value of a dead letter leaves the table.
    assert not any(cause.samples for cause in figures(lake, samples=0).causes)
    assert figures(lake, letters="nosuch").letters is None


@pytest.mark.full
def test_the_command_writes_the_page(session: SparkSession, tmp_path: Path) -> None:
    exported(session, tmp_path, Format.ICEBERG)
    program = [sys.executable, "-m", "tidemark_cli.main", "spark", "report-table", "db.events"]
    done = subprocess.run(
        [*program, "--warehouse", str(tmp_path / "lake"), "--dir", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "22 rows, 8 dead letters: report.html\n"
    assert "Dead letters by cause" in (tmp_path / "report.html").read_text("utf-8")
