"""Spark reads a tier that no broker serves: rows, pruning by offsets, and the aggregate job."""

import json
import sys
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemark_pipeline.jobs.aggregate import Aggregate, aggregate, read_topic

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "pipeline"))

from small_tier import SmallTier

from tests.integration.pipeline.marks import MARKS

pytestmark = MARKS


@pytest.fixture
def flights(tmp_path: Path) -> SmallTier:
    folder = tmp_path / "tier"
    folder.mkdir()
    tier = SmallTier(folder, uuid.uuid4())
    for first in range(0, 60, 20):
        tier.copy(
            [
                json.dumps({"carrier": "AB"[n % 2], "delay": None if n % 5 == 0 else n}).encode()
                for n in range(first, first + 20)
            ]
        )
    return tier


def test_rows_have_kafkas_columns_and_their_tier(session: SparkSession, flights: SmallTier) -> None:
    rows = (
        read_topic(session, {"topic": "t", "path": str(flights.path)}).orderBy("offset").collect()
    )
    assert [row["offset"] for row in rows] == list(range(60))
    assert {(row["topic"], row["partition"], row["tier"]) for row in rows} == {("t", 0, "remote")}
    assert json.loads(bytes(rows[7]["value"])) == {"carrier": "B", "delay": 7}


def test_the_aggregate_is_what_plain_python_computes(
    session: SparkSession, flights: SmallTier, tmp_path: Path
) -> None:
    job = Aggregate("carrier", "delay", tmp_path / "out.parquet")
    table = aggregate(session, {"topic": "t", "path": str(flights.path)}, job)
    found = {
        row["carrier"]: (row["rows"], row["measured"], row["total"]) for row in table.collect()
    }
    known = [n for n in range(60) if n % 5]
    assert found == {
        name: (30, sum(n % 2 == i for n in known), float(sum(n for n in known if n % 2 == i)))
        for i, name in enumerate("AB")
    }
