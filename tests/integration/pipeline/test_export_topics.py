"""Many topics in one job of an Export: each topic in a table of its own, exactly once, whatever
happens to the others.

The job runs as a process, as beside a local operator.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.table_jars import MavenMissing, jars
from tidemark.export_job import (
    ORDER_VARIABLE,
    REPORT_PATH,
    ExportJobPhase,
    JobReport,
    MaintenancePlan,
    Order,
)
from tidemark.tier.metadata.layout import head_key
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.java import JavaMissing, find_java

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "pipeline"))

from small_tier import SmallTier

from tests.integration.pipeline.marks import MARKS

pytestmark = [*MARKS, pytest.mark.timeout(900)]

SPARK_S = 600.0
#: Due at the start of a job.
MAINTENANCE = MaintenancePlan(schedule="@hourly", pause_ms=600_000)
query = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "10-export" / "query.py"))


class Topics:
    """Topics in one tier, and the tables that a job fills from them."""

    def __init__(self, folder: Path) -> None:
        try:
            find_java()
            self.jars = jars(Format.ICEBERG)
        except (JavaMissing, MavenMissing) as error:
            pytest.skip(str(error))
        self.tier, self.lake = folder / "tier", folder / "lake"
        self.report_file = folder / "report.json"
        self.tier.mkdir()
        self.topics: dict[str, SmallTier] = {}

    def create(self, *names: str, records: int = 30) -> None:
        for name in names:
            self.topics[name] = SmallTier(self.tier, name=name)
            self.write(name, records)

    def write(self, name: str, records: int) -> None:
        topic = self.topics[name]
        start = topic.loaded.head.next_copy_offset
        topic.copy([b"%s %d" % (name.encode(), n) for n in range(start, start + records)])

    def head(self, name: str) -> Path:
        """Return the file of a topic's manifest."""
        return self.tier / head_key(self.topics[name].topic_id, 0)

    @contextmanager
    def job(
        self,
        *,
        every_s: float | None = 1.0,
        maintenance: MaintenancePlan | None = None,
        table: Mapping[str, object] | None = None,
        topics_file: Path | None = None,
        **source: str,
    ) -> Iterator["TopicsJob"]:
        """Run a job; it is stopped at the end if it has not ended."""
        order = Order(
            source={"path": str(self.tier), "maxOffsetsPerTrigger": "20", **source},
            table={"table": "db.{topic}", "warehouse": str(self.lake), **(table or {})},
            jars=tuple(map(str, self.jars)),
            every_s=every_s,
            maintenance=maintenance,
            topics_file="" if topics_file is None else str(topics_file),
        )
        # A process beside a local operator gets its order in the environment.
        command = [sys.executable, "-m", "tidemark_pipeline.jobs.export_job"]
        command += ["--report", str(self.report_file)]
        environment = {**os.environ, ORDER_VARIABLE: order.to_json()}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                job = TopicsJob(
                    process, json.loads(process.stdout.readline())["page"], self.report_file
                )
                yield job
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)

    def check(self, name: str, table: str = "") -> None:
        """Verify that a table has each record of its topic once."""
        folder = self.lake / "db" / (table or name)
        statement = f'SELECT "offset", value FROM "{folder.name}" ORDER BY "offset"'
        rows = query["query"](folder, statement)[1]
        end = self.topics[name].loaded.head.next_copy_offset
        assert [(at, bytes(value)) for at, value in rows] == [
            (n, b"%s %d" % (name.encode(), n)) for n in range(end)
        ]

    def refs(self, name: str, prefix: str) -> int:
        """Return the number of branches and tags of a table whose name begins like this."""
        folder = self.lake / "db" / name / "metadata"
        newest = folder / f"v{(folder / 'version-hint.text').read_text()}.metadata.json"
        return sum(ref.startswith(prefix) for ref in json.loads(newest.read_text())["refs"])


class TopicsJob:
    """A running job and its page."""

    def __init__(self, process: "subprocess.Popen[bytes]", page: str, file: Path) -> None:
        self.process, self._page, self._file = process, page, file

    def report(self) -> JobReport:
        with urllib.request.urlopen(f"http://{self._page}{REPORT_PATH}", timeout=30) as answer:
            found = JobReport.of_json(answer.read())
        assert found is not None
        return found

    def wait_for(self, is_reached: Callable[[JobReport], bool]) -> JobReport:
        deadline_s = time.monotonic() + SPARK_S
        while time.monotonic() < deadline_s:
            report = self.report()
            if is_reached(report):
                return report
            assert self.process.poll() is None, self.last_report()
            time.sleep(0.2)
        raise AssertionError(self.report())

    def last_report(self) -> JobReport:
        self.process.wait(SPARK_S)
        found = JobReport.of_json(self._file.read_bytes())
        assert found is not None
        return found


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    return Topics(tmp_path)


def failures(report: JobReport) -> dict[str, str]:
    assert report.topics is not None
    return {topic.topic: topic.failure for topic in report.topics.worst if topic.failure}


def is_current(total: int, failing: int) -> Callable[[JobReport], bool]:
    def holds(report: JobReport) -> bool:
        found = report.topics
        return (
            found is not None
            and (found.total, found.failing, found.behind) == (total, failing, 0)
            and report.lag == 0
        )

    return holds


def test_failing_topics_do_not_stop_the_others(topics: Topics) -> None:
    """Topics appear, get records, fail and recover while one job runs."""
    good = ["orders", "orders.eu", "7", "x-1"]
    topics.create(*good, "a.b", "a-b", "damaged", "__internal")
    damaged = topics.head("damaged")
    manifest = damaged.read_bytes()
    damaged.write_bytes(b"no manifest")
    with topics.job(subscribePattern=".*") as job:
        report = job.wait_for(is_current(7, 3))
        assert report.phase is ExportJobPhase.RUNNING
        found = failures(report)
        assert sorted(found) == ["a-b", "a.b", "damaged"]
        assert "same table db.a_b" in found["a.b"]
        assert "no manifest that this version" in found["damaged"]
        # Nothing moves without new records: no commit, and no row twice.
        commits = report.commits
        # Topics that appear later get their tables, and old ones more records.
        topics.create("later", "later.too", records=45)
        topics.write("orders", 25)
        damaged.write_bytes(manifest)
        report = job.wait_for(is_current(9, 2))
        assert report.commits > commits
        assert report.rows == 4 * 30 + 2 * 45 + 25 + 30
    assert job.last_report().phase is ExportJobPhase.STOPPED
    tables = {"orders.eu": "orders_eu", "x-1": "x_1", "later.too": "later_too"}
    for name in (*good, "later", "later.too", "damaged"):
        topics.check(name, tables.get(name, ""))
    assert not (topics.lake / "db" / "a_b").exists()


@pytest.mark.full
def test_topics_that_are_selected_later_are_exported_without_a_restart(
    topics: Topics, tmp_path: Path
) -> None:
    topics.create("one", "two", "three")
    file = tmp_path / "topics"
    # The file appears after the job has started. Until then its order counts.
    with topics.job(subscribe="one", topics_file=file) as job:
        job.wait_for(is_current(1, 0))
        file.write_text("one\ntwo")
        job.wait_for(is_current(2, 0))
        # Records of a topic that is no longer selected are not exported.
        file.write_text("two\nthree")
        job.wait_for(lambda report: is_current(2, 0)(report) and report.rows == 60)
        topics.write("one", 10)
        topics.write("three", 10)
        job.wait_for(lambda report: is_current(2, 0)(report) and report.rows == 70)
        # An empty file changes nothing, as one that is being replaced.
        file.write_text("")
        topics.write("two", 10)
        job.wait_for(lambda report: is_current(2, 0)(report) and report.rows == 80)
    assert job.last_report().phase is ExportJobPhase.STOPPED
    topics.check("two")
    topics.check("three")


@pytest.mark.full
def test_killed_job_of_many_topics_neither_loses_nor_duplicates_a_row(topics: Topics) -> None:
    """The tables are maintained at the end, and have a tag of the run."""
    topics.create("one", "two", "three", records=60)
    source = {"subscribePattern": ".*", "maxOffsetsPerTrigger": "6"}
    with topics.job(**source) as job:
        job.wait_for(lambda report: report.commits >= 4)
        job.process.kill()
        job.process.wait(60)
    # The next job continues at the offsets of each table.
    tagged = {"run_ref": {"prefix": "nightly"}}
    with topics.job(every_s=None, maintenance=MAINTENANCE, table=tagged, **source) as job:
        report = job.last_report()
        assert report.phase is ExportJobPhase.DONE
    assert report.maintenance is not None
    assert report.maintenance.failures == 0, report.maintenance.message
    # Each table had ten files.
    assert (report.maintenance.compacted, report.maintenance.into) == (30, 3)
    for name in topics.topics:
        topics.check(name)
        assert topics.refs(name, "nightly-") == 1


@pytest.mark.full
def test_tables_are_maintained_while_topics_are_exported(topics: Topics) -> None:
    """Topics that fail have no maintenance, and do not count as its failure."""
    topics.create("one", "two", records=60)
    topics.create("a.b", "a-b")
    limits = {"maxOffsetsPerTrigger": "6"}
    with topics.job(maintenance=MAINTENANCE, subscribePattern=".*", **limits) as job:
        report = job.wait_for(
            lambda report: (
                report.maintenance is not None
                and report.maintenance.ended_ms is not None
                and is_current(4, 2)(report)
            )
        )
        assert report.maintenance is not None
        assert report.maintenance.failures == 0, report.maintenance.message
        assert report.maintenance.step == ""
    assert job.last_report().phase is ExportJobPhase.STOPPED
    for name in ("one", "two"):
        topics.check(name)


@pytest.mark.full
def test_a_job_that_ends_names_its_failed_topics_and_continues_next_time(topics: Topics) -> None:
    topics.create("one", "two")
    with topics.job(every_s=None, subscribe="one,two,three") as job:
        report = job.last_report()
        assert report.phase is ExportJobPhase.FAILED
        assert report.message == (
            "1 of 3 topics failed, such as three: topic three does not exist. Create it, or remove "
            "it from the Export"
        )
    for name in ("one", "two"):
        topics.check(name)
    topics.create("three")
    topics.write("two", 7)
    with topics.job(every_s=None, subscribe="one,two,three") as job:
        assert job.last_report().phase is ExportJobPhase.DONE
    for name in ("one", "two", "three"):
        topics.check(name)
