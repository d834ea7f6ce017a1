"""The job of an Export without Spark: verdict on its end, its reports, and its page."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pipeline.small_tier import SmallTier
from tidemark.export_job import (
    ORDER_VARIABLE,
    ExportJobPhase,
    HiddenOption,
    JobReport,
    OptionPlace,
    Order,
)
from tidemark.http_page import HttpPage
from tidemark_pipeline.errors import DataLoss, project_error
from tidemark_pipeline.export.export_progress import Exported, ExportError, Superseded
from tidemark_pipeline.export.table import RowCounts, Written
from tidemark_pipeline.export.table_options import TableOptions
from tidemark_pipeline.jobs import export_job
from tidemark_pipeline.jobs.export import (
    ExportProgress,
    Freshness,
    StartRules,
    TopicBatches,
    check_log_lineage,
)
from tidemark_pipeline.jobs.job_page import JobStatus, cpu_ms
from tidemark_pipeline.read.positions import Extent
from tidemark_pipeline.read.topic_source import topic_options
from tidemark_pipeline.read.topic_survey import Part, Survey
from tidemark_pipeline.schemas.registry.client import RegistryDown, RegistryRefused

TRACE = "[STREAM_FAILED] Query terminated\nTraceback:\n  File x\ntidemark_pipeline.{}: gone\n\tat y"


def test_an_error_of_spark_is_reported_in_one_line() -> None:
    assert project_error(TRACE.format("remote.DataLoss")) == ("DataLoss", "gone")
    assert project_error("[STREAM_FAILED] terminated\n\tat y") == ("", "[STREAM_FAILED] terminated")
    # Py4J reports an error of the JVM with its stack trace and its causes.
    thrown = (
        "An error occurred while calling o7.append.\n: org.apache.spark.SparkException: aborted\n"
    )
    assert project_error(thrown + "\tat y") == ("", "aborted")
    thrown += "Caused by: java.lang.Kafka$IllegalStateException: lost.\n\tat z"
    assert project_error(thrown) == ("", "lost.")


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        (Superseded("taken"), ExportJobPhase.SUPERSEDED),
        (ExportError("another topic's"), ExportJobPhase.REFUSED),
        (DataLoss("expired"), ExportJobPhase.REFUSED),
        (RuntimeError(TRACE.format("errors.DataLoss")), ExportJobPhase.REFUSED),
        (RuntimeError(TRACE.format("remote.CorruptData")), ExportJobPhase.FAILED),
        (ConnectionError(), ExportJobPhase.FAILED),
        (RegistryDown("it does not answer"), ExportJobPhase.FAILED),
        (RegistryRefused("it refuses"), ExportJobPhase.REFUSED),
    ],
    ids=[
        *("superseded", "refused", "lost", "lost, by Spark", "corrupt", "without a text"),
        *("a registry is down", "a registry refuses"),
    ],
)
def test_phase_depends_on_whether_a_retry_can_help(error: Exception, phase: ExportJobPhase) -> None:
    found, message = export_job.phase_of(error)
    assert found is phase
    assert message


def test_no_secret_is_in_a_reported_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("cannot connect to jdbc:x://host?password=secret-word")

    monkeypatch.setattr(export_job, "_export", fail)
    order = Order(
        source={"topic": "t"},
        table={"table": "db.t"},
        hidden=(HiddenOption(place=OptionPlace.CATALOG, name="jdbc.password", variable="P"),),
    )
    environment = {ORDER_VARIABLE: order.to_json(), "P": "secret-word"}
    ended = export_job.run(environment, JobStatus(), threading.Event())
    assert ended == (ExportJobPhase.FAILED, "cannot connect to jdbc:x://host?password=***")


@pytest.mark.parametrize(
    ("secrets", "error", "reported"),
    [
        (("Secret-Word",), "value SECRET-WORD or secret-word", "value *** or ***"),
        (("secret-word\n",), "value 'secret-word'", "value '***'"),
        (("word", "secret-word-2"), "value secret-word-2", "value ***"),
        (("a+b.c",), "value a+b.c, not aab-c", "value ***, not aab-c"),
    ],
)
def test_a_secret_is_hidden_in_every_spelling(
    monkeypatch: pytest.MonkeyPatch, secrets: tuple[str, ...], error: str, reported: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(export_job, "_export", fail)
    hidden = tuple(
        HiddenOption(place=OptionPlace.CATALOG, name=f"n{n}", variable=f"P{n}")
        for n, _ in enumerate(secrets)
    )
    order = Order(source={"topic": "t"}, table={"table": "db.t"}, hidden=hidden)
    environment = {f"P{n}": secret for n, secret in enumerate(secrets)}
    ended = export_job.run(
        {ORDER_VARIABLE: order.to_json(), **environment}, JobStatus(), threading.Event()
    )
    assert ended == (ExportJobPhase.FAILED, reported)


@pytest.mark.parametrize("source", [{"engine": "kafka"}, {"tier": "local"}])
def test_records_are_deleted_through_the_brokers_of_either_engine(source: dict[str, str]) -> None:
    deleter = export_job._deleter({"topic": "t", "bootstrap": "b:1", **source})
    assert deleter._access.bootstrap == ("b:1",)


def test_name_of_a_user_is_shown_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name as short as "an" would make errors unreadable, and conditions show names anyway."""

    def fail(*_: object) -> None:
        raise RuntimeError("an answer: refuses user an with word")

    monkeypatch.setattr(export_job, "_export", fail)
    hidden = tuple(
        HiddenOption(place=OptionPlace.SOURCE, name=f"kafka.sasl.{name}", variable=name)
        for name in ("username", "password")
    )
    order = Order(source={"topic": "t"}, table={"table": "db.t"}, hidden=hidden)
    environment = {ORDER_VARIABLE: order.to_json(), "username": "an", "password": "word"}
    ended = export_job.run(environment, JobStatus(), threading.Event())
    assert ended == (ExportJobPhase.FAILED, "an answer: refuses user an with ***")


def test_a_job_that_is_stopped_in_the_middle_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = threading.Event()

    def stopped(*_: object) -> None:
        stop.set()
        raise RuntimeError("query was stopped")

    monkeypatch.setattr(export_job, "_export", stopped)
    order = Order(source={"topic": "t"}, table={"table": "db.t"})
    ended = export_job.run({ORDER_VARIABLE: order.to_json()}, JobStatus(), stop)
    assert ended == (ExportJobPhase.STOPPED, "")


def test_an_unreadable_order_is_reported() -> None:
    phase, message = export_job.run({}, JobStatus(), threading.Event())
    assert phase is ExportJobPhase.REFUSED
    assert "TIDEMARK_EXPORT" in message


def test_table_options_are_read_from_json() -> None:
    found = TableOptions.of({"table": "db.t", "warehouse": "/lake", "schema": "id BIGINT"})
    assert found.catalog == {"type": "hadoop", "warehouse": "/lake"}
    assert (found.schema, found.letters) == ("id BIGINT", "db.t_dead_letters")
    with pytest.raises(ExportError, match="does not know colour"):
        TableOptions.of({"table": "db.t", "warehouse": "/lake", "colour": "blue"})
    with pytest.raises(ExportError, match="name the table"):
        TableOptions.of({"warehouse": "/lake"})


# ---------------------------------------------------------------- reports


def progress(commits: int, lag: int, current_ms: int | None = None) -> ExportProgress:
    written = Written(rows=10 * commits, bytes=100 * commits, letters=1)
    counts = RowCounts(30, 4)
    observed_ms = None if current_ms is None else current_ms + 2500
    return ExportProgress(
        *(commits, written, Exported("t"), lag, counts, current_ms),
        exported_offsets=40,
        observed_ms=observed_ms,
    )


def shown(page: HttpPage, path: str) -> str:
    return page.answer(path)[1].decode()


def test_the_page_shows_the_jobs_progress() -> None:
    job_page = JobStatus()
    page = job_page.page()
    assert JobReport.of_json(shown(page, "/report")) == JobReport(phase=ExportJobPhase.STARTING)
    assert "tidemark_export_lag_offsets 5" not in shown(page, "/metrics")
    job_page.update(progress(0, 5))
    assert job_page.report.committed_ms is None
    job_page.update(progress(2, 1, 1_700_000_000_000))
    assert job_page.report.committed_ms is not None
    assert (job_page.report.lag, job_page.report.rows, job_page.report.letters) == (1, 30, 4)
    metrics = shown(page, "/metrics")
    assert "tidemark_export_lag_offsets 1.0" in metrics
    assert "tidemark_export_written_rows_total 20.0" in metrics
    assert "tidemark_export_current_timestamp_seconds 1.7e+09" in metrics
    assert "tidemark_export_lag_seconds 2.5" in metrics
    assert "tidemark_export_exported_offsets 40.0" in metrics
    assert "tidemark_export_cpu_seconds_total" in metrics
    assert job_page.report.cpu_ms is not None
    assert (job_page.report.written_bytes, job_page.report.lag_ms) == (200, 2500)
    committed_ms = job_page.report.committed_ms
    job_page.update(progress(2, 9))  # The lag was measured, and nothing was committed.
    assert job_page.report.committed_ms == committed_ms
    job_page.end(ExportJobPhase.FAILED, "why")
    last = job_page.report
    assert JobReport.of_json(last.to_json()) == last
    assert (job_page.report.phase, job_page.report.message, job_page.report.lag) == (
        ExportJobPhase.FAILED,
        "why",
        9,
    )


_BUSY = "import time\nwhile time.process_time() < 0.3: pass"


def test_cpu_time_includes_processes_that_have_ended() -> None:
    before_ms = cpu_ms(os.getpid())
    assert before_ms is not None
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_BUSY!r}])"
    subprocess.run([sys.executable, "-c", nested], check=True)
    after_ms = cpu_ms(os.getpid())
    assert after_ms is not None
    # Both times are rounded to ticks.
    assert after_ms - before_ms >= 250
    assert cpu_ms(2**30) is None


def test_a_job_with_executors_reports_no_cpu_time() -> None:
    status = JobStatus(is_alone=False)
    status.update(progress(1, 0))
    assert status.report.cpu_ms is None
    assert "tidemark_export_cpu_seconds_total" not in shown(status.page(), "/metrics")


# ---------------------------------------------------------------- freshness


def test_table_is_current_as_of_the_last_end_it_reached() -> None:
    fresh = Freshness()
    fresh.observe(100, {0: 10, 1: 5}, {0: 3, 1: 5})
    assert fresh.current_ms is None
    fresh.observe(200, {0: 20, 1: 5}, {0: 9, 1: 5})
    assert fresh.current_ms is None
    # The table is behind the end, but contains everything that existed at 100 ms.
    fresh.observe(300, {0: 30, 1: 5}, {0: 20, 1: 5})
    assert fresh.current_ms == 100
    fresh.observe(400, {0: 30, 1: 5}, {0: 29, 1: 5})
    assert fresh.current_ms == 100
    fresh.observe(500, {0: 31, 1: 5}, {0: 30, 1: 5})
    assert fresh.current_ms == 300


def test_an_idle_topic_is_current_at_each_check() -> None:
    fresh = Freshness()
    for now_ms in (100, 200):
        fresh.observe(now_ms, {0: 10}, {0: 10})
        assert fresh.current_ms == now_ms
    fresh.observe(300, {0: 10, 1: 1}, {0: 10})  # The topic has another partition.
    assert fresh.current_ms == 200


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _LateAnswer(Survey):
    """Survey whose answer takes a while to arrive; later records are not part of it."""

    answered_ms = 0

    def ends(self, parts: Sequence[Part]) -> dict[Part, int]:
        found = super().ends(parts)
        self.answered_ms = _now_ms()
        while _now_ms() == self.answered_ms:
            pass
        return found


class _Counted:
    """Table of which only the number of rows is needed."""

    def counts(self) -> RowCounts:
        return RowCounts(30)


def batches_at(tier: SmallTier, offsets: dict[int, int]) -> tuple[TopicBatches, _LateAnswer]:
    read = topic_options({"topic": "t", "path": str(tier.path)}, streaming=True)
    survey, table = _LateAnswer(read), _Counted()
    claimed, rules = Exported("t", str(tier.topic_id), offsets), StartRules(read, "t")
    target: Any = table
    return TopicBatches(target, claimed, survey, rules, None, len, len), survey


class _Grown(Survey):
    """Survey of a topic of two partitions with ten records each."""

    def parts(self) -> list[Part]:
        (first,) = super().parts()
        return [first, first._replace(partition=1)]

    def extents(self, parts: Sequence[Part]) -> dict[Part, Extent]:
        return dict.fromkeys(parts, Extent(0, 10))


def test_partition_that_is_added_later_is_exported_from_its_log_start(tmp_path: Path) -> None:
    """The starting options apply to a new table only."""
    tier = SmallTier(tmp_path, uuid.uuid4())
    read = topic_options(
        {"topic": "t", "path": str(tier.path), "startingOffsets": "latest"}, streaming=True
    )
    target: Any = _Counted()
    starts = []
    for offsets in ({}, {0: 10}):
        claimed, rules = Exported("t", str(tier.topic_id), offsets), StartRules(read, "t")
        batches = TopicBatches(target, claimed, _Grown(read), rules, None, len, len)
        starts.append(batches.next_range().starts)
    assert starts == [{0: 10, 1: 10}, {0: 10, 1: 0}]


def test_a_restore_that_lost_a_whole_partition_of_the_table_is_noticed(tmp_path: Path) -> None:
    """The topic has the partition again once another one is added; its records are others."""
    tier = SmallTier(tmp_path, uuid.uuid4())
    tier.copy([b"v"] * 10)
    exported = Exported(
        "t",
        str(tier.topic_id),
        {0: 10, 1: 5},
        leader_epochs=dict.fromkeys((0, 1), tier.by.leader_epoch),
    )
    read = topic_options({"topic": "t", "path": str(tmp_path)}, streaming=True)
    # The tier does not know the partition yet, which is no loss.
    with Survey(read) as survey:
        check_log_lineage(survey, survey.parts(), exported)
    tier.restore()
    with Survey(read) as survey, pytest.raises(ExportError, match="t-1: the log has lost"):
        check_log_lineage(survey, survey.parts(), exported)


def test_the_time_of_the_tables_contents_is_before_the_query_of_the_end(tmp_path: Path) -> None:
    """A record that is written while the answer arrives may be missing from the table."""
    tier = SmallTier(tmp_path, uuid.uuid4())
    tier.copy([b"v"] * 10)
    batches, survey = batches_at(tier, {0: 10})
    assert batches.progress.current_ms is not None
    assert batches.progress.current_ms <= survey.answered_ms
    assert batches.progress.lag_ms == 0


def test_progress_counts_from_the_log_start_to_the_position_of_the_table(tmp_path: Path) -> None:
    tier = SmallTier(tmp_path, uuid.uuid4())
    tier.copy([b"v"] * 10)
    behind, _ = batches_at(tier, {0: 4})
    assert (behind.progress.exported_offsets, behind.progress.lag) == (4, 6)
    assert behind.progress.lag_ms is None
    new, _ = batches_at(tier, {})
    assert (new.progress.exported_offsets, new.progress.lag) == (0, 10)
    # An idle topic is observed again and again, and the table lacks nothing.
    idle, survey = batches_at(tier, {0: 10})
    before_ms = idle.progress.observed_ms
    while _now_ms() == survey.answered_ms:
        pass
    assert not idle.observe_end()
    assert (idle.progress.exported_offsets, idle.progress.lag, idle.progress.lag_ms) == (10, 0, 0)
    assert before_ms is not None
    assert idle.progress.observed_ms is not None
    assert idle.progress.observed_ms > before_ms
