"""The optional jar: Spark reads the source as columns, with the same rows."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline.columnar_queries import TRANSITION, answers, plans
from tests.integration.pipeline.marks import MARKS
from tidemark.records.builder import Record, build_batch
from tidemark_pipeline.session import COLUMNAR_JAR
from tools.columnar_jar import build

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "pipeline"))

from small_tier import SmallTier

pytestmark = [*MARKS, pytest.mark.full]
ROWS = 60


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """Return a tier with nulls, headers and several segments, beside a damaged copy of it."""
    folder = tmp_path / "tier"
    folder.mkdir()
    made = SmallTier(folder, uuid.uuid4())
    # Nulls and headers are spread over the segments by their offsets.
    for start in range(0, ROWS, 20):
        records = [
            Record(
                None if offset % 3 == 0 else b"k%d" % (offset % 5),
                None if offset % 4 == 0 else b"v%d" % offset,
                (("h", b"x"), ("g", None)) if offset % 2 else (),
                offset,
            )
            for offset in range(start, start + 20)
        ]
        made.copy([b""] * 20, batches=[build_batch(records, base_offset=start, leader_epoch=1)])
    # One flipped bit, which the digest of a piece shows.
    damaged = tmp_path / "tier-damaged"
    shutil.copytree(folder, damaged)
    (log,) = [
        path for path in damaged.rglob("*") if path.name == Path(made.entries[1].log_key).name
    ]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    return folder


def test_answers_do_not_depend_on_the_jar(
    session: SparkSession, tier: Path, tmp_path: Path
) -> None:
    if shutil.which("javac") is None:
        pytest.skip("the jar needs a JDK")
    jar = build(tmp_path / COLUMNAR_JAR)
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.pipeline.columnar_queries", str(tier), str(jar)],
        cwd=Path(__file__).parents[3],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with_jar = json.loads(done.stdout.splitlines()[-1])
    expected = answers(session, str(tier))
    assert expected["number of rows"] == ROWS
    assert expected["a damaged tier"] == "CorruptData"
    assert with_jar["answers"] == expected
    # Only the jar makes Spark read columns.
    assert [TRANSITION in plan for plan in with_jar["plans"]] == [True, True]
    assert [TRANSITION in plan for plan in plans(session, str(tier))] == [False, False]


def test_jar_is_reproducible(tmp_path: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("the jar needs a JDK")
    one, two = (build(tmp_path / name / COLUMNAR_JAR) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
