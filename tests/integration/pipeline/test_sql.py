"""A topic is a view of Spark's SQL, and what it is asked comes back as what can be written down."""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark_cli.commands.sql import Views, failure
from tidemark_pipeline.jobs.sql import ask, make_view

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "pipeline"))

from small_tier import SmallTier

from tests.integration.pipeline.marks import MARKS

pytestmark = MARKS
NAME = "orders-eu.v1"


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """A topic of 60 records, whose values are their offsets as JSON."""
    folder = tmp_path / "tier"
    folder.mkdir()
    topic = SmallTier(folder, uuid.uuid4(), name=NAME)
    for first in range(0, 60, 20):
        topic.copy([json.dumps({"n": n}).encode() for n in range(first, first + 20)])
    return folder


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT * FORM t", "[PARSE_SYNTAX_ERROR] Syntax error at or near"),
        ("SELECT no FROM range(1)", "[UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ("SELECT * FROM nosuch", "[TABLE_OR_VIEW_NOT_FOUND]"),
        ("SELECT CAST('x' || id AS INT) FROM range(1)", "[CAST_INVALID_INPUT]"),
    ],
)
def test_what_spark_has_against_it_is_one_line(
    session: SparkSession, statement: str, said: str
) -> None:
    with pytest.raises(PySparkException) as error:
        ask(session, statement, 1)
    told = failure(error.value, Views({"path": "p"}, (), ("t", NAME)), Path("spark.log"))
    assert told.startswith(said)
    assert "\n" not in told
    assert (f"topics: t, {NAME}" in told) == ("nosuch" in statement)


def test_what_cannot_be_read_is_told_in_our_words(session: SparkSession, tier: Path) -> None:
    make_view(session, NAME, {"path": str(tier)})
    for segment in tier.rglob("*.log"):
        segment.unlink()
    with pytest.raises(PySparkException) as error:
        ask(session, f"SELECT * FROM `{NAME}`", 1)
    told = failure(error.value, Views({"path": "p"}, (), ()), Path("spark.log"))
    assert "is missing" in told or "gone" in told
    assert told.endswith("; Spark's own log: spark.log")


def test_programs_get_json_and_nothing_else(tier: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tidemark_cli.main", "spark", "sql"]
    query = f"SELECT offset, CAST(value AS STRING) AS value FROM `{NAME}` ORDER BY offset"
    options = ["--path", str(tier), "--output", "json", "--limit", "2"]
    done = subprocess.run(
        [*program, query, *options], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [
        {"offset": 0, "value": '{"n": 0}'},
        {"offset": 1, "value": '{"n": 1}'},
    ]
    assert "these are the first 2 rows, and there are more" in " ".join(done.stderr.split())
