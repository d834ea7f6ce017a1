"""Spark reads a tier without brokers: rows, pruning by offsets, and the aggregate job."""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemark.tier.stores.config import FilesystemConfig
from tidemark_pipeline.audit.segments import audit
from tidemark_pipeline.jobs.aggregate import aggregate
from tidemark_pipeline.jobs.report import figures
from tidemark_pipeline.read.topic_source import read_topic
from tidemark_pipeline.report.figures import ReportPeriod, TierShare
from tidemark_pipeline.session import reporting_stages

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
    # No broker serves this topic, so every row is from the tier.
    assert {(row["topic"], row["partition"], row["tier"]) for row in rows} == {("t", 0, "remote")}
    assert json.loads(bytes(rows[7]["value"])) == {"carrier": "B", "delay": 7}


def test_many_queries_do_not_fill_the_space_for_compiled_code(session: SparkSession) -> None:
    """The JVM stops compiling once that space is full, and interprets all further code."""
    management = session._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
    pools = [pool for pool in management.getMemoryPoolMXBeans() if "Code" in pool.getName()]
    assert sum(pool.getUsage().getMax() for pool in pools) >= 200 * 1024**2


def test_workers_are_forked_with_the_decoder_loaded(session: SparkSession) -> None:
    """Workers then do not load it, and their garbage collector does not visit it."""

    def looked(_: int) -> tuple[bool, int]:
        import gc
        import sys

        return "tidemark_pipeline.read.decode" in sys.modules, gc.get_freeze_count()

    # The decoder is loaded before the fork, and its objects are frozen.
    ((loaded, frozen),) = session.sparkContext.parallelize([0], 1).map(looked).collect()
    assert loaded
    assert frozen > 10_000


def test_unix_sockets_serve_each_session_of_a_process_and_end_without_a_trace(
    flights: SmallTier, tmp_path: Path
) -> None:
    log = tmp_path / "spark.log"
    # The JVM keeps the folder of its first session.
    program = f"""
        from pathlib import Path
        from tidemark_pipeline.read.topic_source import read_topic
        from tidemark_pipeline.session import local_session
        for _ in range(2):
            with local_session("sockets", short=True, log=Path({str(log)!r})) as session:
                table = read_topic(session, {{"topic": "t", "path": {str(flights.path)!r}}})
                rows = len(table.collect())
                folder = Path(session.conf.get("spark.python.unix.domain.socket.dir"))
                sockets = [path for path in folder.iterdir() if path.is_socket()]
                print(rows, oct(folder.stat().st_mode & 0o777), len(sockets) > 1)
        print(folder)
    """
    environment = dict(os.environ, TMPDIR="/tmp")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *sessions, folder = done.stdout.splitlines()
    assert sessions == ["60 0o700 True"] * 2
    assert not Path(folder).exists()
    assert "Traceback" not in log.read_text()


def test_aggregate_matches_plain_python(
    session: SparkSession, flights: SmallTier, tmp_path: Path
) -> None:
    output = tmp_path / "out.parquet"
    table = aggregate(
        session,
        {"topic": "t", "path": str(flights.path)},
        by="carrier",
        value="delay",
        output=output,
    )
    found = {
        row["carrier"]: (row["rows"], row["measured"], row["total"]) for row in table.collect()
    }
    # The expected result is computed in Python, with nulls left out.
    known = [n for n in range(60) if n % 5]
    assert found == {
        name: (30, sum(n % 2 == i for n in known), float(sum(n for n in known if n % 2 == i)))
        for i, name in enumerate("AB")
    }


@pytest.mark.full
def test_report_counts_rows_keys_and_sizes(session: SparkSession, flights: SmallTier) -> None:
    # The expected size of each value is that of its JSON.
    values = [
        len(json.dumps({"carrier": "A", "delay": None if n % 5 == 0 else n})) for n in range(60)
    ]
    found = figures(session, {"topic": "t", "path": str(flights.path)})
    (share,) = found.shares
    assert share == TierShare(
        partition=0,
        tier="remote",
        rows=60,
        first_offset=0,
        last_offset=59,
        first_ms=0,
        last_ms=59,
        # Each key has one byte.
        bytes=sum(values) + 60,
        without_key=0,
        without_value=0,
    )
    assert found.periods == (ReportPeriod(0, 60, share.bytes),)
    assert found.sizes == ((32, 60),)
    assert (found.keys, found.distinct_keys) == (((b"k", 60),), 1)


@pytest.mark.full
def test_executors_audit_a_topic_and_report_missing_objects(
    session: SparkSession, flights: SmallTier
) -> None:
    topic = flights.tier.reader.find_topic("t")
    storage = FilesystemConfig(flights.path)
    progress_counts: list[tuple[int, int]] = []
    with reporting_stages(
        session.sparkContext, lambda *counts: progress_counts.append(counts), every_s=0.01
    ):
        sound = audit(session, storage, topic, task_bytes=1)
    assert (sound.segments, sound.findings) == (3, ())
    # Three segments, one task for each.
    assert all(tasks == 3 for _, tasks in progress_counts)
    # Each state of the tasks is reported once.
    assert all(one != other for one, other in itertools.pairwise(progress_counts))
    # A segment disappears: the audit names it.
    (flights.path / flights.entries[1].log_key).unlink()
    (finding,) = audit(session, storage, topic, task_bytes=1).findings
    assert (finding.kind.value, finding.start_offset) == ("Missing", 20)


DRIVER = """
import threading
from pyspark.sql.functions import udf
from tidemark_pipeline.session import local_session

with local_session("driver", cores=1, short=True) as session:
    assert session.range(3).select(udf(str)("id")).collect()
    print(session._jvm.java.lang.System.getProperty("java.io.tmpdir"), flush=True)
    threading.Event().wait()
"""


@pytest.mark.full
def test_drivers_that_are_killed_or_terminated_leave_no_files() -> None:
    def kinds() -> list[str]:
        return sorted(path.name.split("-")[1] for path in Path(place).iterdir())

    # A short path, as sockets need one.
    with tempfile.TemporaryDirectory(prefix="t-") as place:
        for number, left in ((signal.SIGKILL, ["sockets", "spark"]), (signal.SIGTERM, [])):
            driver = subprocess.Popen(
                [sys.executable, "-c", DRIVER],
                env={**os.environ, "TMPDIR": place},
                stdout=subprocess.PIPE,
                text=True,
            )
            with driver:
                assert driver.stdout is not None
                # Java's own temporary files are there, too.
                assert driver.stdout.readline().startswith(f"{place}/tidemark-sockets-")
                # The second driver has removed what the first one left.
                assert kinds() == ["sockets", "spark"]
                driver.send_signal(number)
                # Spark's own processes have the pipe open until they have ended.
                driver.stdout.read()
            assert kinds() == left
        assert driver.returncode == 128 + signal.SIGTERM
