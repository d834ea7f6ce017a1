"""The job of an Export without Spark: verdict on its end, its reports, and its page."""

import threading

import pytest

from tidemark.export_job import (
    ORDER_VARIABLE,
    ExportJobPhase,
    Hidden,
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
from tidemark_pipeline.jobs.export import ExportProgress, Freshness
from tidemark_pipeline.jobs.job_page import JobStatus
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
        hidden=(Hidden(place=OptionPlace.CATALOG, name="jdbc.password", variable="P"),),
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
        Hidden(place=OptionPlace.CATALOG, name=f"n{n}", variable=f"P{n}")
        for n, _ in enumerate(secrets)
    )
    order = Order(source={"topic": "t"}, table={"table": "db.t"}, hidden=hidden)
    environment = {f"P{n}": secret for n, secret in enumerate(secrets)}
    ended = export_job.run(
        {ORDER_VARIABLE: order.to_json(), **environment}, JobStatus(), threading.Event()
    )
    assert ended == (ExportJobPhase.FAILED, reported)


def test_name_of_a_user_is_shown_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name as short as "an" would make errors unreadable, and conditions show names anyway."""

    def fail(*_: object) -> None:
        raise RuntimeError("an answer: refuses user an with word")

    monkeypatch.setattr(export_job, "_export", fail)
    hidden = tuple(
        Hidden(place=OptionPlace.SOURCE, name=f"kafka.sasl.{name}", variable=name)
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
    return ExportProgress(commits, written, Exported("t"), lag, RowCounts(30, 4), current_ms)


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
    committed_ms = job_page.report.committed_ms
    job_page.update(progress(2, 9))  # The lag was measured, and nothing was committed.
    assert job_page.report.committed_ms == committed_ms
    job_page.end(ExportJobPhase.FAILED, "why")
    assert JobReport.of_json(job_page.report.to_json()) == job_page.report
    assert (job_page.report.phase, job_page.report.message, job_page.report.lag) == (
        ExportJobPhase.FAILED,
        "why",
        9,
    )


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
