"""What the options of ``tidemark spark export`` come to, and what is refused at once."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark_cli.main import app
from tidemark_pipeline.export.wanted import catalog_of


@pytest.mark.parametrize(
    ("warehouse", "given", "properties"),
    [
        ("/lake", {}, {"type": "hadoop", "warehouse": "/lake"}),
        ("s3a://b/lake", {}, {"type": "hadoop", "warehouse": "s3a://b/lake"}),
        ("", {"type": "rest", "uri": "u"}, {"type": "rest", "uri": "u"}),
        ("", {"catalog-impl": "c"}, {"catalog-impl": "c"}),
    ],
    ids=["folder", "uri", "rest", "class"],
)
def test_a_catalog(warehouse: str, given: dict[str, str], properties: dict[str, str]) -> None:
    assert catalog_of(warehouse, given) == properties


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "say where the tables are"),
        (["--warehouse", "/lake", "--option", "a"], "write name=value"),
        (["--warehouse", "/lake", "--catalog", "=x"], "write name=value"),
        (["--warehouse", "/lake", "--jar", "/none.jar"], "there is no such file"),
    ],
    ids=["no warehouse", "no value", "no name", "no jar"],
)
def test_what_is_wrong_is_said_before_spark_starts(
    options: list[str], said: str, tmp_path: Path
) -> None:
    tier = ["--path", str(tmp_path), "--log", str(tmp_path / "log")]
    arguments = ["spark", "export", "t", "--table", "db.t", *tier, *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert said in " ".join(done.output.split())
