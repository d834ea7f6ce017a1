"""Next step of an ``Export``, from its status and its job as observed.

Level-based: the observation decides the step, and after a crash between any two calls the same step
follows. A run is in the status before its job is created, under a number that names the job, so no
job is created twice. Its end is in the status before another run starts. One job at a time: the
next starts when the one before no longer exists.

A failed run is restarted after a pause that doubles with each failure in a row, without a limit:
the cause may be fixed at any time. One exception: a job whose table another job has taken over is
not restarted before its spec changes, or two operators would take the table from each other
forever.
"""

from dataclasses import replace

from tidemark.backoff import Backoff
from tidemark.export_job import ExportJobPhase, JobReport
from tidemark_operator.controller.state.export_values import (
    Begin,
    End,
    ExportInfo,
    ExportOutcome,
    ExportRunRecord,
    JobPhase,
    JobSeen,
    Launch,
    NextCheck,
    Problem,
    Step,
    Stop,
)

RETRY = Backoff(first_s=10.0, most_s=600.0)
#: Time between two looks at a running job.
LOOK_MS = 10_000
#: Time between two looks at a job that starts or ends.
SOON_MS = 2_000
_OUTCOMES = {
    ExportJobPhase.DONE: ExportOutcome.SUCCEEDED,
    ExportJobPhase.STOPPED: ExportOutcome.STOPPED,
    ExportJobPhase.REFUSED: ExportOutcome.REFUSED,
    ExportJobPhase.SUPERSEDED: ExportOutcome.SUPERSEDED,
}
_FAILED = (ExportOutcome.FAILED, ExportOutcome.REFUSED, ExportOutcome.SUPERSEDED)


def next_step(
    export: ExportInfo, job: JobSeen, problem: Problem | None, order: str, *, now_ms: int
) -> Step:
    """Return the next step of an Export's state machine.

    ``job``: observed job of the newest run. ``problem``: prevents a new run, or stops the present
    one. ``order``: digest of the desired job, "" with a problem.
    """
    if export.run is not None and export.run.under_way:
        return _under_way(export, export.run, job, problem, order, now_ms)
    if problem is not None or export.suspended:
        return NextCheck()
    # No run is in progress: wait for the time of the next one.
    due_ms = _due_ms(export, now_ms)
    if due_ms is None or due_ms > now_ms:
        return NextCheck(due_ms)
    # The run is recorded under its number first, so that a crash cannot create two jobs.
    number = 1 if export.run is None else export.run.number + 1
    begun = ExportRunRecord(
        number=number, generation=export.generation, order=order, start_ms=now_ms
    )
    schedule_ms = None if export.schedule is None else export.schedule.last_ms(now_ms)
    return Begin(begun, schedule_ms)


def _under_way(
    export: ExportInfo,
    run: ExportRunRecord,
    job: JobSeen,
    problem: Problem | None,
    order: str,
    now_ms: int,
) -> Step:
    """Return the next step of a run in progress.

    A run ends only when the end of its job is observed. If the job does not exist, it is created
    again under the run's number: the operator may have stopped before creating it.
    """
    # True if the spec has changed, the Export is suspended, or a problem requires a stop.
    unwanted = _must_stop(export, run, problem, order)
    # The phase of the run's job decides. An ended or ending job is never stopped again.
    match job.phase:
        case JobPhase.ENDED:
            return _end(job)
        case JobPhase.ENDING:
            return NextCheck(now_ms + SOON_MS)
        case JobPhase.ABSENT:
            if unwanted:
                return End(ExportOutcome.STOPPED)
            return Launch() if problem is None else NextCheck()
        case JobPhase.STARTING:
            return Stop() if unwanted else NextCheck(now_ms + SOON_MS)
        case JobPhase.RUNNING:
            return Stop() if unwanted else NextCheck(now_ms + LOOK_MS)


def _must_stop(
    export: ExportInfo, run: ExportRunRecord, problem: Problem | None, order: str
) -> bool:
    """Return whether a run in progress has to stop.

    A scheduled run may finish, as a CronJob's. A continuous one is restarted with the new order.
    """
    if export.suspended or (problem is not None and problem.stops):
        return True
    return export.schedule is None and bool(order) and run.order != order


def _end(job: JobSeen) -> End:
    report = job.report
    phase = None if report is None else report.phase
    outcome = _OUTCOMES.get(phase) if phase is not None else None
    # The exit status overrules a report that was written before the process failed.
    if outcome is None or (outcome is ExportOutcome.SUCCEEDED and not job.well):
        outcome = ExportOutcome.SUCCEEDED if job.well else ExportOutcome.FAILED
    message = "" if report is None else report.message
    return End(outcome, message or job.why, report)


def _due_ms(export: ExportInfo, now_ms: int) -> int | None:
    """Return when the next run starts (epoch milliseconds); None: only after a change."""
    run = export.run
    # The first run starts now, or at its scheduled time.
    if run is None or run.end_ms is None or run.outcome is None:
        return now_ms if export.schedule is None else _scheduled_ms(export, now_ms)
    # A changed spec may have fixed the cause, so it is tried without a pause.
    if run.generation != export.generation and run.outcome is not ExportOutcome.SUCCEEDED:
        return now_ms
    match run.outcome:
        case ExportOutcome.SUPERSEDED:
            return None if export.schedule is None else _scheduled_ms(export, now_ms)
        case ExportOutcome.FAILED | ExportOutcome.REFUSED:
            again_ms = run.end_ms + pause_ms(export.failures)
            if export.schedule is None:
                return again_ms
            return min(again_ms, _scheduled_ms(export, now_ms))
        case ExportOutcome.STOPPED:  # a client stopped it in the middle
            return run.end_ms + pause_ms(1)
        case ExportOutcome.SUCCEEDED:
            if export.schedule is None:  # a continuous run should not end by itself
                return run.end_ms + pause_ms(1)
            return _scheduled_ms(export, now_ms)


def _scheduled_ms(export: ExportInfo, now_ms: int) -> int:
    """Return the last scheduled time without a run, or the next one."""
    assert export.schedule is not None
    since_ms = export.created_ms if export.last_schedule_ms is None else export.last_schedule_ms
    last_ms = export.schedule.last_ms(now_ms)
    return last_ms if last_ms > since_ms else export.schedule.next_ms(now_ms)


def pause_ms(failures: int) -> int:
    """Return the pause after a number of failures in a row."""
    return int(RETRY.pause_s(failures) * 1000)


def failures_after(export: ExportInfo, end: End) -> int:
    """Return the failures in a row after a run: a commit resets the count."""
    if end.outcome not in _FAILED:
        return 0 if end.outcome is ExportOutcome.SUCCEEDED else export.failures
    return 1 if end.report is not None and end.report.commits else export.failures + 1


def applied(export: ExportInfo, step: Step, *, now_ms: int) -> ExportInfo:
    """Return the Export as its status will show it after a step."""
    match step:
        # The time counts as used even if the run fails: the next run is for a later one.
        case Begin(run, schedule_ms):
            return replace(
                export,
                run=run,
                last_schedule_ms=schedule_ms
                if schedule_ms is not None
                else export.last_schedule_ms,
            )
        # Failures and their message stay until a run commits something (:func:`recovered`).
        case End(outcome, message, _) if export.run is not None:
            failed = outcome in _FAILED
            # Conditions continue after the message with a sentence of their own.
            failure = message.rstrip(".") or "it reported no error"
            return replace(
                export,
                run=replace(export.run, end_ms=now_ms, outcome=outcome),
                failures=failures_after(export, step),
                last_failure=failure if failed else export.last_failure,
                last_success_ms=now_ms
                if outcome is ExportOutcome.SUCCEEDED
                else export.last_success_ms,
            )
    return export


def adopted(export: ExportInfo, order: str) -> ExportInfo:
    """Return the export whose run uses the present spec if the spec describes the run's job.

    ``order``: digest of the desired job, "" with a problem.
    """
    run = export.run
    if run is None or not run.under_way or not order or run.order != order:
        return export
    return replace(export, run=replace(run, generation=export.generation))


def recovered(export: ExportInfo, report: JobReport | None) -> ExportInfo:
    """Reset the failures of a run that has succeeded, committed something, or has nothing to
    commit.
    """
    run = export.run
    well = run is not None and run.outcome is ExportOutcome.SUCCEEDED
    is_running = run is not None and run.under_way and report is not None
    if well or (is_running and report is not None and (report.commits > 0 or report.lag == 0)):
        return replace(export, failures=0, last_failure="")
    return export


def state_of(export: ExportInfo, job: JobSeen) -> str:
    """Return the state as in the metric ``tidemark_exports``."""
    if export.suspended:
        return "suspended"
    if export.run is not None and export.run.under_way:
        if export.failures:
            return "failing"
        return "running" if job.report is not None else "starting"
    if export.failures:
        return "failing"
    return "stopped" if export.schedule is None else "waiting"
