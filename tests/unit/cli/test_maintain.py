"""Refusals of ``tidemark spark maintain`` before Spark starts, and its closing line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark_cli.main import app
from tidemark_cli.tier.maintain import propagated, text
from tidemark_pipeline.export.maintenance import Maintained, Propagated


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "say where the tables are"),
        (["--warehouse", "/lake", "--keep", "7d"], "--keep: '7d' must be a duration such as 168h"),
        (["--warehouse", "/lake", "--orphans-after", ""], "or never"),
        (["--format", "delta"], "--warehouse FOLDER, and no --catalog"),
        (["--format", "delta", "--warehouse", "/l", "--catalog", "type=rest"], "and no --catalog"),
        (["--warehouse", "/lake", "--jar", "/none.jar"], "no such file"),
        (["--warehouse", "/lake", "--from-history"], "needs --propagate-deletes"),
        (
            ["--warehouse", "/lake", "--propagate-deletes", "--path", "/t", "--option", "a=b"],
            "unknown option 'a'",
        ),
    ],
    ids=[
        *("no warehouse", "days", "no age", "delta", "delta with a catalog", "no jar"),
        *("history alone", "a strange option"),
    ],
)
def test_errors_are_reported_before_spark_starts(
    options: list[str], message: str, tmp_path: Path
) -> None:
    log = ["--log", str(tmp_path / "log")]
    done = CliRunner().invoke(app, ["spark", "maintain", "db.t", *log, *options])
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())


def test_the_closing_line_has_all_figures() -> None:
    done = Maintained(compacted=1200, into=3, failed=2, expired=57, removed=1300, orphans=1)
    assert text(done) == (
        "1,200 files compacted to 3 (2 kept, a concurrent commit changed them), "
        "57 versions expired, "
        "1,300 files removed, 1 orphan removed"
    )


def test_deletion_line_includes_what_is_pending() -> None:
    assert propagated(Propagated(rows=1200, expired=3, removed=4)) == (
        "1,200 rows deleted, 3 versions expired, 4 files removed"
    )
    assert propagated(Propagated(retained_by=("the branch or tag x",), behind=(0, 2))) == (
        "0 rows deleted, 0 versions expired, 0 files removed; still referenced by the branch or "
        "tag x; partitions 0, 2 are not exported that far yet: run this command again later"
    )
