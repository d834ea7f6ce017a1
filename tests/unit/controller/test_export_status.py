"""Conditions and figures of an Export; no message changes just because time passes."""

import dataclasses
import json
from typing import Any

import pytest

from tests.unit.controller.export_builders import (
    MINUTE,
    T0,
    ended,
    info,
    report,
    run,
    scheduled,
)
from tidemark.export_job import JobReport, MaintenanceReport, TopicReport, TopicsReport
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.export_values import (
    ABSENT,
    ExportInfo,
    ExportOutcome,
    JobPhase,
    JobSeen,
    Problem,
)
from tidemark_operator.controller.state.model import ClusterInfo
from tidemark_operator.controller.status import export_status
from tidemark_operator.controller.status.export import ExportView
from tidemark_operator.controller.status.write_pacing import FIGURES_MS, Pacer
from tidemark_operator.resources.export import ExportStatus

NOW = 1_800_003_600_000  # 2027-01-15T09:00:00Z
STATE = ControllerState(
    controller_id="op", controller_epoch=3, cluster=ClusterInfo(key="ns/main", cluster_id="c")
)
STARTING = JobSeen(phase=JobPhase.STARTING, why="ErrImagePull: no such image")


def running(**fields: Any) -> JobSeen:
    base: dict[str, Any] = {"lag": 7, "rows": 100, "commits": 1, "committed_ms": NOW - MINUTE}
    return JobSeen(phase=JobPhase.RUNNING, report=report(**base | fields))


def current(minutes: int, **fields: Any) -> ExportInfo:
    """Return an Export whose table contains what the topic had ``minutes`` ago."""
    return info(run=run(start_ms=NOW - 600 * MINUTE), current_ms=NOW - minutes * MINUTE, **fields)


def status_of(export: ExportInfo, now_ms: int = NOW, **view: Any) -> dict[str, Any]:
    """Return the status after a round trip through JSON and the resource's model."""
    seen = ExportView(**{"job": ABSENT, **view})
    status = export_status(STATE, export, seen, now_ms=now_ms).status
    plain: dict[str, Any] = json.loads(json.dumps(status))
    assert ExportStatus.model_validate(plain).dump() == plain
    return plain


def conditions(export: ExportInfo, now_ms: int = NOW, **view: Any) -> dict[str, tuple[str, str]]:
    found = status_of(export, now_ms, **view)["conditions"]
    return {item["type"]: (item["status"], item["reason"]) for item in found}


def message(export: ExportInfo, type_: str = "Ready", **view: Any) -> str:
    found = {item["type"]: item["message"] for item in status_of(export, **view)["conditions"]}
    return str(found[type_])


def after(export: ExportInfo, now_ms: int = NOW, **view: Any) -> ExportInfo:
    """Return the Export as it is read after the write of its status."""
    return dataclasses.replace(export, status=status_of(export, now_ms, **view))


ROWS: dict[str, tuple[ExportInfo, dict[str, Any], tuple[str, str, str, str], str]] = {
    "its job starts": (
        info(run=run()),
        {"job": STARTING},
        ("False", "True", "False", "Unknown"),
        "JobStarting",
    ),
    "it runs, and has yet to come to the end": (
        info(run=run()),
        {"job": running()},
        ("True", "False", "False", "True"),
        "Running",
    ),
    "it comes along": (
        current(1),
        {"job": running()},
        ("True", "False", "False", "True"),
        "Running",
    ),
    "it lags": (current(16), {"job": running()}, ("True", "False", "False", "False"), "Running"),
    "one failure": (
        info(run=ended(ExportOutcome.FAILED), failures=1, last_failure="no room"),
        {"next_ms": NOW},
        ("False", "True", "False", "False"),
        "JobFailed",
    ),
    "three failures": (
        info(run=ended(ExportOutcome.FAILED), failures=3, last_failure="no room"),
        {"next_ms": NOW},
        ("False", "False", "True", "False"),
        "JobFailed",
    ),
    "refused": (
        info(run=ended(ExportOutcome.REFUSED), failures=1, last_failure="another topic's"),
        {"next_ms": NOW},
        ("False", "False", "True", "False"),
        "JobFailed",
    ),
    "taken over": (
        info(run=ended(ExportOutcome.SUPERSEDED), failures=1, last_failure="taken over"),
        {},
        ("False", "False", "True", "False"),
        "TableTakenOver",
    ),
    "suspended": (
        info(run=ended(ExportOutcome.STOPPED), suspended=True),
        {},
        ("True", "False", "False", "False"),
        "Suspended",
    ),
    "being suspended": (
        info(run=run(), suspended=True),
        {"job": JobSeen(phase=JobPhase.ENDING)},
        ("True", "True", "False", "False"),
        "Suspended",
    ),
    "it waits for its time": (
        scheduled(),
        {"next_ms": NOW},
        ("True", "False", "False", "True"),
        "Scheduled",
    ),
    "its time has come": (
        scheduled(run=run(2), last_success_ms=T0),
        {"job": STARTING},
        ("True", "False", "False", "True"),
        "Running",
    ),
    "its first time has come": (
        scheduled(run=run()),
        {"job": running()},
        ("False", "True", "False", "Unknown"),
        "JobStarting",
    ),
    "it runs, and has yet to commit": (
        info(run=run(start_ms=NOW - MINUTE)),
        {"job": running(commits=0, committed_ms=None)},
        ("False", "True", "False", "Unknown"),
        "JobStarting",
    ),
    "it runs, and there is nothing to commit": (
        info(run=run(start_ms=NOW - MINUTE)),
        {"job": running(commits=0, committed_ms=None, lag=0)},
        ("True", "False", "False", "True"),
        "Running",
    ),
    "it runs again": (
        info(run=run(2), status={"lastCommitTime": "2026-01-01T00:00:00Z"}),
        {"job": running(commits=0, committed_ms=None)},
        ("True", "False", "False", "False"),
        "Running",
    ),
    "it runs, and its new spec is unusable": (
        info(run=run(), generation=2),
        {"job": running(), "unapplied": Problem(reason="SecretNotOffered", message="no")},
        ("False", "False", "True", "True"),
        "SecretNotOffered",
    ),
    "it fails, and its new spec waits": (
        info(run=run(2), failures=1, last_failure="no room", generation=2),
        {"job": running(), "unapplied": Problem(reason="SourceUnusable", message="no", waits=True)},
        ("False", "True", "False", "False"),
        "SourceUnusable",
    ),
    "something passes": (
        info(),
        {"problem": Problem(reason="TopicNotFound", message="no", waits=True)},
        ("False", "True", "False", "False"),
        "TopicNotFound",
    ),
    "something does not": (
        info(),
        {"problem": Problem(reason="TableTaken", message="no")},
        ("False", "False", "True", "False"),
        "TableTaken",
    ),
}


@pytest.mark.parametrize(
    ("export", "view", "values", "reason"), ROWS.values(), ids=list(ROWS.keys())
)
def test_conditions(
    export: ExportInfo, view: dict[str, Any], values: tuple[str, str, str, str], reason: str
) -> None:
    found = conditions(export, **view)
    names = ("Ready", "Reconciling", "Stalled", "Exporting")
    assert tuple(found[name][0] for name in names) == values
    assert found["Ready"][1] == reason


def test_messages_name_cause_and_remedy() -> None:
    assert "no such image" in message(info(run=run()), job=STARTING)
    failed = info(run=ended(ExportOutcome.FAILED), failures=2, last_failure="no room")
    assert message(failed, next_ms=T0) == (
        "2 consecutive runs have failed. The last error: no room. "
        "The next run starts at 2026-01-01T00:00:00Z"
    )
    again = dataclasses.replace(failed, run=run(3))
    assert message(again, job=STARTING).endswith(
        "no room. Run 3 is in progress, ErrImagePull: no such image"
    )
    # The exit of a lost table is named in the message.
    taken = info(run=ended(ExportOutcome.SUPERSEDED), failures=1, last_failure="it was taken over")
    assert "set spec.suspend to true and back" in message(taken)


def test_figures_of_the_last_report_remain() -> None:
    export = after(info(run=run()), job=running(letters=3, current_ms=NOW - MINUTE))
    for job in (ABSENT, STARTING):
        found = status_of(export, job=job)
        assert (found["lag"], found["rows"], found["deadLetters"]) == (7, 100, 3)
        assert found["lastCommitTime"] == "2027-01-15T08:59:00Z"


def test_current_time_never_decreases() -> None:
    """A job that has just started does not report the time yet."""
    found = status_of(current(3), job=running(current_ms=None))
    assert found["currentTime"] == "2027-01-15T08:57:00Z"
    found = status_of(current(3), job=running(current_ms=NOW))
    assert found["currentTime"] == "2027-01-15T09:00:00Z"


def test_lag_in_seconds_is_of_the_last_query_of_the_topics_end() -> None:
    seen = running(lag=7, current_ms=NOW - MINUTE, observed_ms=NOW - 1, lag_ms=59_999, exported=93)
    found = status_of(info(run=run()), job=seen)
    assert (found["lagSeconds"], found["exportedOffsets"]) == (59, 93)
    assert found["observedTime"] == "2027-01-15T08:59:59Z"
    # A job that has just started continues with the time that the status has.
    found = status_of(current(3), job=running(observed_ms=NOW))
    assert found["lagSeconds"] == 180
    # The clock of the job's node may be behind that of the last job.
    found = status_of(current(3), job=running(observed_ms=NOW - 10 * MINUTE))
    assert found["lagSeconds"] == 0
    # Before the first end that was reached, the lag in seconds is not known.
    assert "lagSeconds" not in status_of(info(run=run()), job=running(observed_ms=NOW))
    # A job of an older version reports none of them.
    assert "observedTime" not in status_of(current(3), job=running())


def test_cost_is_that_of_the_present_run() -> None:
    export = after(
        info(run=run()),
        job=running(observed_ms=NOW, cpu_ms=90_500, written_bytes=2_000_000_000),
    )
    cost = {"cpuSeconds": 90, "writtenBytes": 2_000_000_000, "cpuSecondsPerGigabyte": 45}
    assert export.status["cost"] == cost
    # It remains while no job reports.
    assert status_of(export, job=STARTING)["cost"] == cost
    # Without a commit there is no ratio, and a job with executors knows no CPU time.
    begun = status_of(export, job=running(observed_ms=NOW, cpu_ms=999, written_bytes=0))
    assert begun["cost"] == {"cpuSeconds": 0, "writtenBytes": 0}
    assert "cost" not in status_of(export, job=running(observed_ms=NOW, written_bytes=5))
    # An untrusted report cannot make a number that the API server refuses.
    absurd = running(observed_ms=NOW, cpu_ms=253_402_300_799_999, written_bytes=1)
    assert status_of(export, job=absurd)["cost"]["cpuSecondsPerGigabyte"] == 2**63 - 1


def test_lagging_condition_has_hysteresis() -> None:
    export = after(current(16), job=running())
    # Lagging starts at 15 minutes and ends at half of that.
    for minutes, lags in ((14, True), (8, True), (7, False)):
        now = dataclasses.replace(current(minutes), status=export.status)
        assert (conditions(now, job=running())["Exporting"][1] == "Lagging") is lags
    assert conditions(current(14), job=running())["Exporting"][1] == "UpToDate"
    # A longer commit interval allows a larger lag.
    slow = current(60, interval_ms=30 * MINUTE)
    assert conditions(slow, job=running())["Exporting"][1] == "UpToDate"


def test_job_without_commits_despite_lag_is_reported() -> None:
    # Sixteen minutes without a commit, although records are waiting.
    stuck = running(committed_ms=NOW - 16 * MINUTE)
    export = info(run=run(start_ms=NOW - 60 * MINUTE))
    assert conditions(export, job=stuck)["Exporting"] == ("False", "NoProgress")
    # The first record after a long idle time is no lack of progress.
    assert conditions(current(1), job=stuck)["Exporting"] == ("True", "UpToDate")
    # Without lag there is nothing to commit.
    idle = running(committed_ms=NOW - 600 * MINUTE, lag=0)
    assert conditions(current(0), job=idle)["Exporting"] == ("True", "UpToDate")
    begun = info(run=run(start_ms=NOW - MINUTE))
    assert conditions(begun, job=running())["Exporting"][1] == "CatchingUp"
    # A first commit that takes too long is reported as well.
    never = info(run=run(start_ms=NOW - 16 * MINUTE))
    assert conditions(never, job=running(committed_ms=None))["Exporting"][1] == "NoProgress"


def test_failing_topics_are_named_and_the_others_are_exported() -> None:
    """The exit of TopicsFailing: fix the causes in status.topics.worst."""
    rows = [
        TopicReport(topic=f"t{n}", table=f"lake.t{n}", lag=n, failure="x" * (n < 5))
        for n in range(8)
    ]
    topics = TopicsReport(total=250, failing=5, behind=3, worst=tuple(rows))
    failing = running(topics=topics)
    found = conditions(current(0), job=failing)
    assert found["Ready"] == ("True", "Running")
    assert found["Exporting"] == ("False", "TopicsFailing")
    status = status_of(current(0), job=failing)
    assert status["topics"]["worst"][0] == {
        "topic": "t0",
        "table": "lake.t0",
        "lag": 0,
        "failure": "x",
    }
    assert "failure" not in status["topics"]["worst"][7]
    (text,) = (c["message"] for c in status["conditions"] if c["type"] == "Exporting")
    assert text == (
        "5 of 250 topics are not exported: t0, t1, t2 and 2 others. The others are. See "
        "status.topics.worst for the causes"
    )
    # The last figures remain while no job runs, and all topics are exported in the end.
    export = after(current(0), job=failing)
    assert status_of(export, job=STARTING)["topics"]["failing"] == 5
    well = running(lag=0, topics=TopicsReport(total=250))
    assert conditions(current(0), job=well)["Exporting"] == ("True", "UpToDate")


def test_unreachable_metrics_page_keeps_the_job_running() -> None:
    export = after(current(1), job=running())
    silent = JobSeen(phase=JobPhase.RUNNING)
    found = conditions(export, job=silent)
    assert found["Ready"] == ("True", "Running")
    assert found["Exporting"] == ("Unknown", "ReportMissing")
    later = conditions(export, NOW + 20 * MINUTE, job=silent)
    assert later["Exporting"] == ("False", "ReportMissing")
    # A job that has never reported is still starting.
    begun = info(run=run(start_ms=NOW - MINUTE))
    assert conditions(begun, job=silent)["Ready"] == ("False", "JobStarting")
    assert conditions(begun, NOW + 5 * MINUTE, job=silent)["Ready"] == ("False", "ReportMissing")


def test_moving_figures_are_written_once_a_minute() -> None:
    pacer, export = Pacer(), after(current(1), job=running())
    writes = 0
    # Ten minutes with new figures every ten seconds.
    for second in range(0, 600, 10):
        now_ms = NOW + second * 1000
        worst = (TopicReport(topic="t", table="lake.t", lag=second),)
        seen = running(
            lag=second,
            rows=100 + second,
            commits=second,
            committed_ms=now_ms,
            current_ms=now_ms,
            observed_ms=now_ms,
            lag_ms=second,
            exported=second,
            cpu_ms=second,
            written_bytes=second,
            topics=TopicsReport(total=1, behind=second % 2, worst=worst),
        )
        status = status_of(export, now_ms, job=seen)
        if pacer.should_write("x", export.status, status, now_ms=now_ms):
            writes += 1
            export = dataclasses.replace(export, status=status)
    assert writes <= 600_000 // FIGURES_MS + 1


@pytest.mark.parametrize("outcome", ExportOutcome)
def test_a_run_is_read_back_as_it_was_written(outcome: ExportOutcome) -> None:
    found = status_of(info(run=ended(outcome, number=4), failures=2, last_failure="x" * 5000))
    assert found["run"] == {
        "number": 4,
        "generation": 1,
        "order": "0123456789abcdef",
        "startTime": "2026-01-01T00:00:00Z",
        "endTime": "2026-01-01T00:01:00Z",
        "outcome": outcome.value,
    }
    assert len(found["lastFailure"]) <= 1024


def test_report_without_figures_has_none_in_the_status() -> None:
    seen = JobSeen(phase=JobPhase.RUNNING, report=JobReport(phase=report().phase))
    assert "lag" not in status_of(info(run=run()), job=seen)


# ---------------------------------------------------------------- maintenance


def maintained(seen: MaintenanceReport | None = None, **fields: Any) -> dict[str, Any]:
    return status_of(current(1, maintains=True, **fields), job=running(maintenance=seen))


def test_maintenance_shows_its_progress_and_its_last_run() -> None:
    started = MaintenanceReport(next_ms=NOW)
    status = maintained(started)
    assert status["maintenance"] == {"nextTime": "2027-01-15T09:00:00Z"}
    assert maintained_condition(status)[:2] == ("Unknown", "Pending")
    step = MaintenanceReport(step="compaction of db.t", started_ms=NOW, next_ms=NOW)
    status = maintained(step, status=status)
    assert status["maintenance"]["step"] == "compaction of db.t"
    ended_report = MaintenanceReport(
        started_ms=NOW, ended_ms=NOW, next_ms=NOW, compacted=60, into=1, removed=60, expired=60
    )
    status = maintained(ended_report, status=status)
    assert "step" not in status["maintenance"]
    assert status["maintenance"]["compactedFiles"] == 60
    assert maintained_condition(status)[:2] == ("True", "Maintained")
    # The next job knows only the next run, and the former figures stay.
    after_restart = maintained(started, status=status)
    assert after_restart["maintenance"]["compactedFiles"] == 60


def maintained_condition(status: dict[str, Any]) -> tuple[str, str, str]:
    (found,) = (item for item in status["conditions"] if item["type"] == "Maintained")
    return found["status"], found["reason"], found["message"]


def test_failed_maintenance_is_a_condition_and_the_export_stays_ready() -> None:
    failed = MaintenanceReport(
        started_ms=NOW, ended_ms=NOW, next_ms=NOW, failures=1, message="db.t: no room"
    )
    status = maintained(failed)
    state, reason, text = maintained_condition(status)
    assert (state, reason) == ("False", "MaintenanceFailed")
    assert "db.t: no room" in text
    assert {item["type"]: item["status"] for item in status["conditions"]}["Ready"] == "True"


def test_a_job_that_ends_during_maintenance_counts_as_its_failure() -> None:
    step = MaintenanceReport(step="compaction of db.t", started_ms=NOW, next_ms=NOW)
    before = maintained(step)
    killed = info(
        maintains=True,
        run=ended(ExportOutcome.FAILED),
        failures=1,
        last_failure="OOMKilled (137)",
        status=before,
    )
    status = status_of(killed, next_ms=NOW)
    assert "step" not in status["maintenance"]
    assert "the job ended during the compaction of db.t" in maintained_condition(status)[2]


def test_an_export_without_maintenance_has_no_state_of_it() -> None:
    before = maintained(MaintenanceReport(next_ms=NOW))
    status = status_of(current(1, status=before), job=running())
    assert "maintenance" not in status
    assert "Maintained" not in {item["type"] for item in status["conditions"]}
