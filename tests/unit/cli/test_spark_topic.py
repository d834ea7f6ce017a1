"""A Spark command reports what it cannot read before it starts Spark."""

import uuid
from pathlib import Path

import pytest
import typer

from tests.unit.pipeline.small_tier import SmallTier
from tidemark_cli.tier.spark_topic import check_source


def test_missing_topic_ends_the_command_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tier").mkdir()
    tier = SmallTier(tmp_path / "tier", uuid.uuid4())
    options = {"topic": "t", "path": str(tier.path)}
    assert check_source(options) == options
    with pytest.raises(typer.Exit):
        check_source({**options, "topic": "nosuch"})
    error = capsys.readouterr().err
    assert "nosuch" in error
    assert "Traceback" not in error
