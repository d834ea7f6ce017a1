"""Status of an Export: its run, the progress of the table, Exporting and Maintained.

``Ready`` says that the desired state is reached: a job runs, or the next one is scheduled.
``Exporting`` says whether records reach the table. ``Maintained`` says whether the last maintenance
of the tables succeeded. Values that change by themselves are figures. They are written at most once
a minute, and are in no message.
"""

import dataclasses
from collections.abc import Mapping

from tidemark.configuration.values import INT64_MAX
from tidemark.export_job import (
    MAINTENANCE_CHARS_MAX,
    JobReport,
    MaintenanceReport,
    TopicsReport,
    shortened,
)
from tidemark.message_text import clause, count
from tidemark.reasons import Reason
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.export_values import (
    ExportInfo,
    ExportOutcome,
    ExportRunRecord,
    JobPhase,
    JobSeen,
    Problem,
)
from tidemark_operator.controller.status.conditions import (
    FALSE,
    ConditionValue,
    StatusResult,
    condition,
    find,
    render,
    summary,
    time_text,
)

EXPORTING = "Exporting"
MAINTAINED = "Maintained"
#: Failures in a row after which a person has to act.
PATIENCE = 3
#: Minimum age of the table's newest data, or duration of a commit, that counts as lag. With a
#: longer interval it is this number of intervals.
STALE_MS = 15 * 60_000
STALE_INTERVALS = 10
#: Time without a report before a run counts as silent; the page is the first thing a job serves.
SILENT_MS = 5 * 60_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportView:
    """Observations of an Export.

    ``problem``: prevents a new run, or stops the present one. ``unapplied``: problem of a new spec
    without which the present run continues. ``next_ms``: start of the next run if it is known.
    """

    job: JobSeen
    problem: Problem | None = None
    unapplied: Problem | None = None
    next_ms: int | None = None


def export_status(
    state: ControllerState, export: ExportInfo, view: ExportView, *, now_ms: int
) -> StatusResult:
    """Return the status of an Export: run, figures of the job's last report, conditions."""
    export = dataclasses.replace(export, current_ms=_current_ms(export, view.job.report))
    conditions = export_conditions(export, view, now_ms=now_ms)
    status: dict[str, object] = dict(export.status)
    status["observedGeneration"] = export.generation
    status["controllerEpoch"] = state.controller_epoch
    # Fields of the former run are removed, so that only those of the present one are shown.
    for name in _REPLACED:
        status.pop(name, None)
    status |= {name: value for name, value in _fields(export).items() if value}
    if view.job.report is not None:
        # A job with executors reports no cost, and that of an earlier run is not its own.
        if view.job.report.observed_ms is not None:
            status.pop("cost", None)
        found = _figures(view.job.report, export.current_ms).items()
        status |= {name: value for name, value in found if value is not None}
    upkeep = _maintenance(export, view.job.report)
    if upkeep is not None:
        status["maintenance"] = upkeep
        conditions = [*conditions, _maintained(upkeep)]
    status["conditions"] = render(
        conditions, export.status, generation=export.generation, now_ms=now_ms
    )
    return StatusResult(status=status, sentence=f"export {export.key}: {conditions[0].message}")


#: Fields of a former status that are replaced, or removed.
_REPLACED = (
    *("run", "failures", "lastFailure", "lastScheduleTime", "lastSuccessfulTime", "currentTime"),
    "maintenance",
)


def _fields(export: ExportInfo) -> dict[str, object]:
    return {
        "topicId": export.topic_id,
        "run": export.run and _run(export.run),
        "failures": export.failures,
        "lastFailure": shortened(export.last_failure),
        "lastScheduleTime": _time(export.last_schedule_ms),
        "lastSuccessfulTime": _time(export.last_success_ms),
        "currentTime": _time(export.current_ms),
    }


def _run(run: ExportRunRecord) -> dict[str, object]:
    found: dict[str, object] = {
        "number": run.number,
        "generation": run.generation,
        "order": run.order,
        "startTime": time_text(run.start_ms),
    }
    if run.end_ms is not None and run.outcome is not None:
        found |= {"endTime": time_text(run.end_ms), "outcome": str(run.outcome)}
    return found


def _figures(report: JobReport, current_ms: int | None) -> dict[str, object]:
    """Return the figures of a report. ``current_ms``: the table's, maybe of an earlier report."""
    lag_ms = report.lag_ms
    # A job that has just started does not know up to which time the table is complete.
    if lag_ms is None and report.observed_ms is not None and current_ms is not None:
        lag_ms = max(0, report.observed_ms - current_ms)
    return {
        "lag": report.lag,
        "lagSeconds": None if lag_ms is None else lag_ms // 1000,
        "exportedOffsets": report.exported,
        "observedTime": _time(report.observed_ms),
        "cost": _cost(report),
        "rows": report.rows,
        "deadLetters": report.letters,
        "lastCommitTime": _time(report.committed_ms),
        "topics": report.topics and _topics(report.topics),
    }


def _cost(report: JobReport) -> dict[str, object] | None:
    """Return the CPU time of the run and of each GB that it wrote; None while unknown."""
    if report.cpu_ms is None or report.written_bytes is None:
        return None
    found: dict[str, object] = {
        "cpuSeconds": report.cpu_ms // 1000,
        "writtenBytes": report.written_bytes,
    }
    if report.written_bytes:
        # ms per byte times 10**6 is seconds per GB.
        per_gb = report.cpu_ms * 10**6 // report.written_bytes
        found["cpuSecondsPerGigabyte"] = min(per_gb, INT64_MAX)
    return found


def _topics(topics: TopicsReport) -> dict[str, object]:
    rows = [
        {
            "topic": topic.topic,
            "table": topic.table,
            **({} if topic.lag is None else {"lag": topic.lag}),
            **({"failure": topic.failure} if topic.failure else {}),
        }
        for topic in topics.worst
    ]
    return {
        "total": topics.total,
        "failing": topics.failing,
        "behind": topics.behind,
        "worst": rows,
    }


def _maintenance(export: ExportInfo, report: JobReport | None) -> dict[str, object] | None:
    """Return the state of the tables' maintenance; None if the Export has none."""
    if not export.maintains:
        return None
    found = None if report is None else report.maintenance
    former = export.status.get("maintenance")
    kept: dict[str, object] = dict(former) if isinstance(former, Mapping) else {}
    if found is None:
        # The job left no report. A step that was in progress did not end with it.
        step = kept.get("step")
        if export.run is not None and not export.run.under_way and step:
            del kept["step"]
            failure = shortened(f"the job ended during the {step}", MAINTENANCE_CHARS_MAX)
            kept |= {"failedTables": 1, "lastFailure": failure}
        return kept
    # Until a run of this job has ended, the figures are those of the last one.
    figures = _upkeep(found)
    if found.ended_ms is None:
        kept.pop("step", None)
        kept |= {name: figures[name] for name in _CURRENT if figures[name]}
        return kept
    return {name: value for name, value in figures.items() if value}


#: Fields about the run in progress and the next one.
_CURRENT = ("step", "startTime", "nextTime")


def _upkeep(report: MaintenanceReport) -> dict[str, object]:
    return {
        "step": report.step,
        "startTime": _time(report.started_ms),
        "endTime": _time(report.ended_ms),
        "nextTime": _time(report.next_ms),
        "failedTables": report.failures,
        "lastFailure": report.message,
        "compactedFiles": report.compacted,
        "writtenFiles": report.into,
        "expiredVersions": report.expired,
        "removedFiles": report.removed,
        "removedOrphans": report.orphans,
    }


def _maintained(upkeep: Mapping[str, object]) -> ConditionValue:
    """Return the condition Maintained, from the state of the maintenance in the status."""
    if upkeep.get("failedTables"):
        text = (
            f"the last maintenance failed: {upkeep.get('lastFailure') or 'no message'}. It is "
            "repeated at status.maintenance.nextTime. The export continues"
        )
        return condition(MAINTAINED, False, Reason.MAINTENANCE_FAILED, text)
    if "endTime" in upkeep:
        return condition(MAINTAINED, True, Reason.MAINTAINED, "the last maintenance succeeded")
    text = "the first maintenance has not ended yet"
    return condition(MAINTAINED, None, Reason.PENDING, text)


def _time(ms: int | None) -> str | None:
    return None if ms is None else time_text(ms)


def _current_ms(export: ExportInfo, report: JobReport | None) -> int | None:
    """Return the time up to which the table is complete; it never decreases.

    A job that has just started does not know it yet.
    """
    reported_ms = None if report is None else report.current_ms
    return max((ms for ms in (export.current_ms, reported_ms) if ms is not None), default=None)


# ---------------------------------------------------------------- conditions


def export_conditions(export: ExportInfo, view: ExportView, *, now_ms: int) -> list[ConditionValue]:
    """Return Ready, Reconciling, Stalled and Exporting of an Export."""
    # The order is by precedence: suspended, a problem, failures, then the normal state.
    if export.suspended:
        ends = view.job.phase in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.ENDING)
        text = "spec.suspend is true, so no job runs" if not ends else "the job is being stopped"
        return _export_summary(Reason.SUSPENDED, text, ready=True, reconciling=ends)
    if view.problem is not None:
        return _export_summary(
            view.problem.reason,
            view.problem.message,
            reconciling=view.problem.waits,
            stalled=not view.problem.waits,
        )
    run = export.run
    # Another job has taken over the table. This one is not restarted, so a person has to act.
    if run is not None and run.outcome is ExportOutcome.SUPERSEDED and export.schedule is None:
        text = (
            f"{clause(export.last_failure)}. This job is not restarted, because both "
            "jobs would take the table from each other. Stop the other job, "
            "then set spec.suspend to true and back"
        )
        return _export_summary(
            Reason.TABLE_TAKEN_OVER, text, stalled=run.generation == export.generation
        )
    # Failures remain visible until a run has committed something.
    if export.failures:
        found = _failing(export, view)
    elif export.schedule is not None:
        found = _scheduled(export, view)
    else:
        found = _continuous(export, view, now_ms)
    if view.unapplied is None:
        return found
    # The run that continues says whether records reach the table.
    return [*_unapplied(export, view.unapplied), *(c for c in found if c.type == EXPORTING)]


def _unapplied(export: ExportInfo, problem: Problem) -> list[ConditionValue]:
    """Return the summary of an Export whose run continues, because the new spec is unusable."""
    run = export.run
    assert run is not None
    text = (
        f"the new spec is not applied: {clause(problem.message)}. Until then run {run.number} "
        f"continues with the spec of generation {run.generation}"
    )
    waits = problem.waits
    return summary(
        ready=False, reason=problem.reason, message=text, reconciling=waits, stalled=not waits
    )


def _export_summary(
    reason: str,
    message: str,
    *,
    ready: bool = False,
    reconciling: bool = False,
    stalled: bool = False,
    exporting: bool | None = False,
) -> list[ConditionValue]:
    conditions = summary(
        ready=ready, reason=reason, message=message, reconciling=reconciling, stalled=stalled
    )
    return [*conditions, condition(EXPORTING, exporting, reason, message)]


def _failing(export: ExportInfo, view: ExportView) -> list[ConditionValue]:
    """Return the conditions of an Export whose last runs have failed.

    They stay until a run has committed something: a run that has only started may fail like the
    last one.
    """
    run = export.run
    assert run is not None
    refused = run.outcome is ExportOutcome.REFUSED
    text = f"the last run failed: {clause(export.last_failure)}"
    if export.failures > 1:
        text = f"{export.failures} consecutive runs have failed. The last error: "
        text += clause(export.last_failure)
    if run.under_way:
        text += f". Run {run.number} is in progress"
        text += f", {view.job.why}" if view.job.why else ""
    elif view.next_ms is not None:
        text += f". The next run starts at {time_text(view.next_ms)}"
    # The first failures may be transient; repeated ones need a person.
    stalled = refused or export.failures >= PATIENCE
    return _export_summary(Reason.JOB_FAILED, text, reconciling=not stalled, stalled=stalled)


def _scheduled(export: ExportInfo, view: ExportView) -> list[ConditionValue]:
    run = export.run
    if run is not None and run.under_way:
        text = f"run {run.number} is in progress"
        # Nothing shows yet that a run can succeed.
        if export.last_success_ms is None:
            text = f"{text}, and none has succeeded yet"
            if view.job.why:
                text = f"{text}: {view.job.why}"
            return _export_summary(Reason.JOB_STARTING, text, reconciling=True, exporting=None)
        if view.job.phase is not JobPhase.RUNNING and view.job.why:
            text += f": {view.job.why}"
        return _export_summary(Reason.RUNNING, text, ready=True, exporting=True)
    text = "the schedule has no next time"
    if view.next_ms is not None:
        text = f"the next run starts at {time_text(view.next_ms)}"
    return _export_summary(Reason.SCHEDULED, text, ready=True, exporting=True)


def _continuous(export: ExportInfo, view: ExportView, now_ms: int) -> list[ConditionValue]:
    job, run, report = view.job, export.run, view.job.report
    # A job that has reported before is only unreachable; a new one may not have started properly.
    if job.phase is JobPhase.RUNNING and report is None and run is not None:
        if (find(export.status, "Ready") or {}).get("reason") == Reason.RUNNING:
            return _silent(export, now_ms)
        if now_ms - run.start_ms > SILENT_MS:
            return _export_summary(Reason.REPORT_MISSING, _SILENT, reconciling=True)
    # Exporting is unknown until the job has measured its lag.
    if job.phase is not JobPhase.RUNNING or report is None or report.lag is None:
        text = f"the job is starting: {job.why}" if job.why else "the job is starting"
        return _export_summary(Reason.JOB_STARTING, text, reconciling=True, exporting=None)
    # A process that runs may still fail before its first commit.
    if report.lag and not _has_committed(export, report):
        text = "the job is running, and has not committed anything yet"
        progress = _exporting(export, report, now_ms)
        if progress.status != FALSE:
            progress = condition(EXPORTING, None, Reason.JOB_STARTING, text)
        starting = summary(ready=False, reason=Reason.JOB_STARTING, message=text, reconciling=True)
        return [*starting, progress]
    ready = summary(ready=True, reason=Reason.RUNNING, message="the job is running")
    return [*ready, _exporting(export, report, now_ms)]


def _has_committed(export: ExportInfo, report: JobReport) -> bool:
    """Return whether this run or an earlier one has added to the table."""
    return report.commits > 0 or "lastCommitTime" in export.status


_SILENT = (
    "the job is running, but the operator cannot reach its metrics page. Check "
    "that a NetworkPolicy allows it"
)


def _silent(export: ExportInfo, now_ms: int) -> list[ConditionValue]:
    """Return the conditions of a running job whose page cannot be reached.

    It may work as before.
    """
    former = find(export.status, EXPORTING) or {}
    stale = _is_stale(export, was=former.get("reason") == Reason.LAGGING, now_ms=now_ms)
    exporting = condition(EXPORTING, False if stale else None, Reason.REPORT_MISSING, _SILENT)
    return [*summary(ready=True, reason=Reason.RUNNING, message="the job is running"), exporting]


def _exporting(export: ExportInfo, report: JobReport, now_ms: int) -> ConditionValue:
    """Return the condition Exporting of a continuous export, from its job's last report.

    False if the job makes no progress or is too far behind.
    """
    former = find(export.status, EXPORTING) or {}
    was = (former.get("status") == FALSE and former.get("reason")) or ""
    # A failing topic needs a person, however well the others are exported.
    if report.topics is not None and report.topics.failing:
        text = _failing_topics(report.topics)
        return condition(EXPORTING, False, Reason.TOPICS_FAILING, text)
    run = export.run
    assert run is not None
    patience_ms = _patience_ms(export)
    # A job that has just started, or has just committed, gets the full time again.
    since_ms = max(run.start_ms, report.committed_ms or 0, export.current_ms or 0)
    if report.lag and now_ms - since_ms > patience_ms:
        text = f"the topic has new records, but no commit since {time_text(since_ms)}"
        return condition(EXPORTING, False, Reason.NO_PROGRESS, text)
    if export.current_ms is None:
        text = "the table has not reached the end of the topic yet"
        return condition(EXPORTING, True, Reason.CATCHING_UP, text)
    if _is_stale(export, was=was == Reason.LAGGING, now_ms=now_ms):
        text = (
            f"the table is more than {patience_ms // 60_000} minutes behind "
            "(status.currentTime). The job is catching up, or it is slower "
            "than the topic's producers and needs more cores"
        )
        return condition(EXPORTING, False, Reason.LAGGING, text)
    return condition(EXPORTING, True, Reason.UP_TO_DATE, "the table is up to date")


#: Topics in a message.
_NAMED_MAX = 3


def _failing_topics(topics: TopicsReport) -> str:
    """Return which topics fail. Causes are in the status alone, because they may alternate."""
    failing = sorted(topic.topic for topic in topics.worst if topic.failure)[:_NAMED_MAX]
    rest = topics.failing - len(failing)
    named = ", ".join(failing) + (f" and {count(rest, 'other')}" if rest > 0 else "")
    verb = "is" if topics.failing == 1 else "are"
    return (
        f"{topics.failing} of {count(topics.total, 'topic')} {verb} not exported: {named}. The "
        "others are. See status.topics.worst for the causes"
    )


def _is_stale(export: ExportInfo, *, was: bool, now_ms: int) -> bool:
    """Return whether the table is too old.

    Once it lags, it has to recover to half of the limit, so that the condition does not alternate.
    """
    if export.current_ms is None:
        return False
    allowed_ms = _patience_ms(export) // (2 if was else 1)
    return now_ms - export.current_ms > allowed_ms


def _patience_ms(export: ExportInfo) -> int:
    return max(STALE_MS, STALE_INTERVALS * export.interval_ms)
