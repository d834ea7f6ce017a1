"""A topic is a view in Spark's SQL, and results are converted to serializable values."""

import json
import subprocess
import sys
import uuid
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark_cli.tier.sql import Views, failure
from tidemark_pipeline.jobs.sql import StatementResult, make_view, run_statement, suggestions

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "pipeline"))

from small_tier import SmallTier

from tests.integration.pipeline.lakes import new_lake
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


def test_topic_is_a_view_under_its_own_name(session: SparkSession, tier: Path) -> None:
    make_view(session, NAME, {"path": str(tier)})
    query = (
        "SELECT partition, sum(get_json_object(CAST(value AS STRING), '$.n')) AS total "
        f"FROM `{NAME.upper()}` WHERE offset >= 40 GROUP BY partition"
        # View names are not case-sensitive, as in Spark.
    )
    assert run_statement(session, query, 5) == StatementResult(
        ("partition", "total"), ((0, sum(range(40, 60))),), is_truncated=False
    )
    everything = run_statement(session, f"SELECT * FROM `{NAME}` ORDER BY offset DESC", 1)
    # Only one of sixty rows is returned, and the result says so.
    assert everything.is_truncated
    assert dict(zip(everything.columns, everything.rows[0], strict=True)) == {
        "key": b"k",
        "value": b'{"n": 59}',
        "topic": NAME,
        "partition": 0,
        "offset": 59,
        "timestamp": "1970-01-01 00:00:00.059",
        "timestampType": 0,
        "headers": None,
        "tier": "remote",
        "tieredEpoch": 0,
        "leaderEpoch": 1,
    }


def test_every_type_is_serializable(session: SparkSession) -> None:
    answer = run_statement(
        session,
        # A year beyond 9999, nested values, bytes, decimals and intervals.
        "SELECT timestamp_millis(1831600000000000) AS at, struct(timestamp_millis(0) AS at) AS at, "
        "map(1, X'ff') AS m, 1.50 AS d, NULL AS n, DATE'2013-01-01' AS day, INTERVAL 1 DAY AS i",
        10,
    )
    assert answer.columns[:2] == ("at", "at")
    assert answer.rows[0] == (
        "+60011-02-04 01:46:40",
        {"at": "1970-01-01 00:00:00"},
        {"1": b"\xff"},
        Decimal("1.50"),
        None,
        "2013-01-01",
        "INTERVAL '1' DAY",
    )
    assert run_statement(session, "CREATE TEMPORARY VIEW nothing_said AS SELECT 1", 10).rows == ()


@pytest.mark.full
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT * FORM t", "[PARSE_SYNTAX_ERROR] Syntax error at or near"),
        ("SELECT no FROM range(1)", "[UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ("SELECT * FROM nosuch", "[TABLE_OR_VIEW_NOT_FOUND]"),
        ("SELECT CAST('x' || id AS INT) FROM range(1)", "[CAST_INVALID_INPUT]"),
    ],
)
def test_spark_errors_are_one_line(session: SparkSession, statement: str, expected: str) -> None:
    with pytest.raises(PySparkException) as error:
        run_statement(session, statement, 1)
    message = failure(error.value, Views({"path": "p"}, (), ("t", NAME)), Path("spark.log"))
    assert message.startswith(expected)
    assert "\n" not in message
    # A missing table is explained by the topics that exist.
    assert (f"Topics: t, {NAME}" in message) == ("nosuch" in statement)


@pytest.mark.parametrize(
    ("statement", "suggested"),
    [
        ("SELECT * FROM `orders_eu.v1`", f"Did you mean `{NAME}`?"),
        ("SELECT * FROM order_eu", f"Did you mean `{NAME}`?"),
        # Spark itself suggests columns.
        (f"SELECT ofset FROM `{NAME}`", "Did you mean one of the following? [`offset`, "),
        ("SELECT k.ofset FROM (SELECT struct(1 AS offset) AS k)", "Did you mean offset?"),
        ("SELECT cuont(*) FROM range(1)", "Did you mean count"),
    ],
)
def test_misspelt_names_have_suggestions(
    session: SparkSession, tier: Path, statement: str, suggested: str
) -> None:
    make_view(session, NAME, {"path": str(tier)})
    with pytest.raises(PySparkException) as error:
        run_statement(session, statement, 1)
    views = Views({"path": "p"}, (NAME,), (NAME, "clicks"))
    message = failure(error.value, views, Path("spark.log"), session)
    assert suggested in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("statement", "suggested"),
    [
        ("SELECT * FROM db.fligths", ["db.flights"]),
        ("SELECT * FROM flights", ["db.flights"]),
        ("SELECT * FROM bd.Flights", ["db.flights"]),
        ("SELECT * FROM db.`2024-order`", ["db.`2024-orders`"]),
        ("SELECT * FROM db.something", []),
    ],
)
def test_misspelt_tables_have_suggestions(
    session: SparkSession, tmp_path: Path, statement: str, suggested: list[str]
) -> None:
    own = session.newSession()
    own.sql(f"USE {new_lake(own, {}, tmp_path).catalog}")
    own.sql("CREATE NAMESPACE db")
    for table in ("flights", "`2024-orders`"):
        own.sql(f"CREATE TABLE db.{table} (id INT) USING iceberg")
    with pytest.raises(PySparkException) as error:
        run_statement(own, statement, 1)
    assert suggestions(own, error.value, ()) == suggested


@pytest.mark.full
def test_unreadable_topic_is_reported_plainly(session: SparkSession, tier: Path) -> None:
    make_view(session, NAME, {"path": str(tier)})
    # The tier's objects disappear while the view exists.
    for segment in tier.rglob("*.log"):
        segment.unlink()
    with pytest.raises(PySparkException) as error:
        run_statement(session, f"SELECT * FROM `{NAME}`", 1)
    message = failure(error.value, Views({"path": "p"}, (), ()), Path("spark.log"))
    assert "is missing" in message or "gone" in message
    assert message.endswith("; Spark's own log: spark.log")


@pytest.mark.long
def test_command_prints_one_line_and_no_stack_trace(tier: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tidemark_cli.main", "spark", "sql"]
    done = subprocess.run(
        [*program, "SELECT * FROM nosuch", "--path", str(tier)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    # The message is one line on standard error, without a stack trace.
    expected = " ".join(done.stderr.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: [TABLE_OR_VIEW_NOT_FOUND]" in expected
    assert expected.endswith(f"Topics: {NAME}")
    assert "Exception" not in expected


@pytest.mark.long
def test_json_output_has_nothing_but_json(tier: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tidemark_cli.main", "spark", "sql"]
    query = f"SELECT offset, CAST(value AS STRING) AS value FROM `{NAME}` ORDER BY offset"
    options = ["--path", str(tier), "--output", "json", "--limit", "2"]
    done = subprocess.run(
        [*program, query, *options], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    # Standard output has JSON only; the remark about the limit is on standard error.
    assert json.loads(done.stdout) == [
        {"offset": 0, "value": '{"n": 0}'},
        {"offset": 1, "value": '{"n": 1}'},
    ]
    assert "only the first 2 rows are shown; show more with --limit" in " ".join(
        done.stderr.split()
    )
