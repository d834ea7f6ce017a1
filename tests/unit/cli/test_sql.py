"""``tidemark spark sql`` before Spark: which topics are views, and what is refused at once."""

import shutil
import uuid
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from typer.testing import CliRunner

from tests.unit.pipeline.small_tier import SmallTier
from tidemark_cli.main import app
from tidemark_cli.tier.spark_topic import list_topic_names, mentioned_topics
from tidemark_cli.tier.sql import Views, failure

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")


def run(*arguments: str) -> tuple[int, str]:
    """Return the exit code, and the output as one line."""
    result = CliRunner().invoke(app, ["spark", "sql", *arguments])
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """Create a tier of three topics, one of them internal and one with capital letters."""
    folder = tmp_path / "tier"
    folder.mkdir()
    for name in ("orders-eu.v1", "Orders-EU.v1", "__consumer_offsets"):
        SmallTier(folder, uuid.uuid4(), name=name)
    return folder


def test_views_are_topics_that_the_statement_names(tier: Path) -> None:
    topics = list_topic_names({"path": str(tier)})
    assert topics == {"orders-eu.v1", "Orders-EU.v1"}
    assert mentioned_topics([*topics, "flights"], "select * from `ORDERS-eu.v1`") == sorted(topics)
    assert mentioned_topics(topics, "SELECT 1") == []


@needs_java
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SELECT 1", "--topic", "nosuch"], "no topic 'nosuch' in"),
        (["SELECT 1", "--topic", "oders-eu.v1"], "Did you mean Orders-EU.v1 or orders-eu.v1?"),
        (
            ["SELECT 1", "--topic", "orders-eu.v1", "--topic", "Orders-EU.v1"],
            "the same name in SQL",
        ),
        (["SELECT * FROM `orders-eu.v1`"], "choose one with --topic"),
        (["SELECT 1", "--option", "tire=remote"], "unknown option 'tire'"),
        (["SELECT 1", "--option", "tier"], "write name=value"),
        (["SELECT 1", "--catalog", "io-impl=x"], "say where the tables are"),
    ],
)
def test_errors_are_reported_before_spark_starts(
    arguments: list[str], message: str, tier: Path
) -> None:
    code, output = run(*arguments, "--path", str(tier))
    assert code == 1
    assert message in output
    assert "Traceback" not in output


@needs_java
def test_without_a_cluster_and_a_tier_the_error_names_the_options(tmp_path: Path) -> None:
    code, output = run("SELECT 1", "--dir", str(tmp_path))
    assert code == 1
    assert "there is no cluster in" in output


def test_without_java_the_error_names_how_to_install_it(
    tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tier))
    code, output = run("SELECT 1", "--path", str(tier))
    assert code == 1
    assert "install Java 17 or newer" in output


def test_an_unknown_topic_is_reported_with_the_known_ones() -> None:
    class Unknown(AnalysisException):
        def getCondition(self) -> str:
            return "TABLE_OR_VIEW_NOT_FOUND"

        def __str__(self) -> str:
            return "[TABLE_OR_VIEW_NOT_FOUND] `nosuch` cannot be found.\nAnd more\n'Project [*]"

    # The message names at most 20 topics.
    names = [f"t{number}" for number in range(22)]
    views = Views({"path": "p"}, (), names)
    message = failure(Unknown("x"), views, Path("log"))
    assert message.startswith("[TABLE_OR_VIEW_NOT_FOUND] `nosuch` cannot be found. Topics: t0, t1")
    assert message.endswith("t19 and 2 more")
