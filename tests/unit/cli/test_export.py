"""Options of ``tidemark spark export``: their effect, and the combinations refused at once."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark_cli.main import app
from tidemark_pipeline.export.table_options import catalog_of


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


LAKE = ["--warehouse", "/lake"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "say where the tables are"),
        (["--warehouse", "/lake", "--option", "a"], "write name=value"),
        (["--warehouse", "/lake", "--catalog", "=x"], "write name=value"),
        (["--warehouse", "/lake", "--jar", "/none.jar"], "no such file"),
        ([*LAKE, "--schema", "a INT", "--registry", "http://r"], "one of them"),
        ([*LAKE, "--schema-file", "/none.avsc"], "no such file"),
        ([*LAKE, "--schema-file", "/schema.xsd"], "its name says no format"),
        ([*LAKE, "--registry", "r:8081"], "is no address of a registry"),
        ([*LAKE, "--registry", "http://me:secret@r"], "as options, not in its address"),
        ([*LAKE, "--registry", "http://r", "--registry-option", "a=b"], "has no option a"),
        ([*LAKE, "--registry", "http://r", "--registry-option", "unknown=x"], "or stop"),
        ([*LAKE, "--registry", "http://r", "--registry-option", "timeout=0"], "number of seconds"),
        ([*LAKE, "--registry", "http://r", "--registry-option", "key=k"], "go together"),
        ([*LAKE, "--registry-option", "user=me"], "need its address"),
        ([*LAKE, "--evolution", "grow"], "have no schema: give one"),
        (
            [*LAKE, "--delete-after-commit"],
            "needs an API or brokers: add --kubeconfig FILE or --bootstrap",
        ),
        ([*LAKE, "--delete-after-commit", "--namespace", "n"], "need --kubeconfig"),
    ],
)
def test_errors_are_reported_before_spark_starts(
    options: list[str], message: str, tmp_path: Path
) -> None:
    tier = ["--path", str(tmp_path), "--log", str(tmp_path / "log")]
    arguments = ["spark", "export", "t", "--table", "db.t", *tier, *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    # The terminal wraps lines anywhere, so that white space is normalized.
    assert message in " ".join(done.output.split())
