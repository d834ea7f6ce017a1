"""What is refused of ``tidemark spark maintain`` before Spark starts, and its closing line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark_cli.commands.maintain import text
from tidemark_cli.main import app
from tidemark_pipeline.export.maintenance import Maintained


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "say where the tables are"),
        (["--warehouse", "/lake", "--keep", "7d"], "--keep: '7d' must be a duration such as 168h"),
        (["--warehouse", "/lake", "--orphans-after", ""], "or never"),
        (["--format", "delta"], "--warehouse FOLDER, and no --catalog"),
        (["--format", "delta", "--warehouse", "/l", "--catalog", "type=rest"], "and no --catalog"),
        (["--warehouse", "/lake", "--jar", "/none.jar"], "there is no such file"),
    ],
    ids=["no warehouse", "days", "no age", "delta", "delta with a catalog", "no jar"],
)
def test_what_is_wrong_is_said(options: list[str], said: str, tmp_path: Path) -> None:
    log = ["--log", str(tmp_path / "log")]
    done = CliRunner().invoke(app, ["spark", "maintain", "db.t", *log, *options])
    assert done.exit_code == 1
    assert said in " ".join(done.output.split())


def test_the_closing_line_has_all_figures() -> None:
    done = Maintained(compacted=1200, into=3, failed=2, expired=57, removed=1300, orphans=1)
    assert text(done) == (
        "1,200 files became 3 (2 were changed meanwhile and stay), 57 versions expired, "
        "1,300 files removed, 1 orphans removed"
    )
