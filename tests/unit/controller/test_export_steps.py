"""Next step of an Export: start and end of runs, and the owner of a table."""

import dataclasses
import random
import zoneinfo
from typing import Any

import pytest

from tests.unit.controller.export_builders import (
    HOUR,
    MINUTE,
    ORDER,
    T0,
    ended,
    info,
    report,
    run,
    scheduled,
)
from tidemark.export_job import ExportJobPhase, JobReport
from tidemark.schedule import Schedule, ScheduleError
from tidemark_operator.controller import exports
from tidemark_operator.controller.state.export_values import (
    ABSENT,
    Begin,
    End,
    ExportInfo,
    ExportOutcome,
    Exports,
    JobPhase,
    JobSeen,
    Launch,
    NextCheck,
    Problem,
    Stop,
)

STARTING = JobSeen(phase=JobPhase.STARTING)
RUNNING = JobSeen(phase=JobPhase.RUNNING, report=report(lag=3))
ENDING = JobSeen(phase=JobPhase.ENDING)
NOT_NOW = Problem(reason="SourceUnusable", message="no", waits=True)
NO_TOPIC = Problem(reason="TopicNotFound", message="no", waits=True, stops=True)


def step(
    export: ExportInfo,
    job: JobSeen = ABSENT,
    problem: Problem | None = None,
    *,
    order: str = ORDER,
    now_ms: int = T0 + 2 * MINUTE,
) -> Any:
    return exports.next_step(export, job, problem, order if problem is None else "", now_ms=now_ms)


# ---------------------------------------------------------------- continuous


def test_run_is_in_the_status_before_its_job_is_launched() -> None:
    begun = step(info())
    assert begun == Begin(run(start_ms=T0 + 2 * MINUTE))
    export = exports.applied(info(), begun, now_ms=T0)
    # An operator crash before the launch, or a removed job, repeats the same number.
    assert step(export) == Launch()
    assert step(export, STARTING) == NextCheck(T0 + 2 * MINUTE + exports.SOON_MS)
    assert step(export, RUNNING) == NextCheck(T0 + 2 * MINUTE + exports.LOOK_MS)


def test_a_failure_is_retried_after_growing_pauses() -> None:
    export = info(run=run())
    pauses = []
    for number in range(1, 9):
        failed = step(export, JobSeen(phase=JobPhase.ENDED, why="killed."))
        assert failed == End(ExportOutcome.FAILED, "killed.")
        export = exports.applied(export, failed, now_ms=T0)
        waits = step(export, now_ms=T0)
        assert isinstance(waits, NextCheck)
        assert waits.until_ms is not None
        pauses.append((waits.until_ms - T0) // 1000)
        begun = step(export, now_ms=waits.until_ms)
        assert begun.run.number == number + 1
        export = exports.applied(export, begun, now_ms=waits.until_ms)
    # Doubling from 10 s, with a limit of 10 minutes.
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]
    assert (export.failures, export.last_failure) == (8, "killed")


def test_commits_reset_the_failure_count() -> None:
    export = info(run=run(), failures=6)
    failure = report(ExportJobPhase.FAILED, message="no more", commits=2)
    failed = step(export, JobSeen(phase=JobPhase.ENDED, report=failure))
    assert failed == End(ExportOutcome.FAILED, "no more", failure)
    assert exports.applied(export, failed, now_ms=T0).failures == 1


@pytest.mark.parametrize(
    ("last_report", "recovers"),
    [
        (report(lag=5, commits=1), True),
        (report(lag=0), True),
        (report(lag=5), False),
        (report(), False),
        (None, False),
    ],
    ids=[
        "has committed",
        "has nothing to commit",
        "has begun",
        "knows nothing",
        "cannot reach its metrics page",
    ],
)
def test_run_recovers_with_a_commit_or_without_lag(
    last_report: JobReport | None, recovers: bool
) -> None:
    export = exports.recovered(info(run=run(2), failures=4, last_failure="no"), last_report)
    assert (export.failures, export.last_failure) == ((0, "") if recovers else (4, "no"))


def test_changed_order_replaces_the_job() -> None:
    export = info(run=run(), generation=2)
    assert step(export, RUNNING, order="other") == Stop()
    assert step(export, ENDING, order="other").until_ms
    gone = step(export, ABSENT, order="other")
    assert gone == End(ExportOutcome.STOPPED)
    export = exports.applied(export, gone, now_ms=T0 + 2 * MINUTE)
    begun = step(export, order="other")
    assert (begun.run.number, begun.run.order, begun.run.generation) == (2, "other", 2)


def test_a_running_job_continues_while_its_state_is_unknown() -> None:
    """Missing bootstrap brokers for a moment are no change of the order."""
    export = info(run=run())
    assert isinstance(step(export, RUNNING, NOT_NOW), NextCheck)
    assert step(export, RUNNING, NO_TOPIC) == Stop()
    assert step(export, ABSENT, NOT_NOW) == NextCheck()  # a new run would be due
    assert step(info(), ABSENT, NOT_NOW) == NextCheck()


def test_a_job_that_ended_cleanly_without_request_restarts_soon() -> None:
    """This happens when a node is drained and its pods are evicted."""
    export = info(run=run())
    stopped = JobSeen(phase=JobPhase.ENDED, report=report(ExportJobPhase.STOPPED), well=True)
    end = step(export, stopped)
    assert end.outcome is ExportOutcome.STOPPED
    export = exports.applied(export, end, now_ms=T0)
    assert (export.failures, step(export, now_ms=T0)) == (0, NextCheck(T0 + 10_000))


def test_taken_over_table_is_reclaimed_only_on_request() -> None:
    export = info(run=run())
    superseded = report(ExportJobPhase.SUPERSEDED, message="another job has taken the table over")
    end = step(export, JobSeen(phase=JobPhase.ENDED, report=superseded))
    export = exports.applied(export, end, now_ms=T0)
    assert step(export, now_ms=T0 + 1000 * HOUR) == NextCheck()
    # An edited spec counts as the request to take the table back.
    changed = dataclasses.replace(export, generation=2)
    assert isinstance(step(changed, now_ms=T0), Begin)


@pytest.mark.parametrize(
    ("job", "outcome"),
    [
        (JobSeen(phase=JobPhase.ENDED, report=report(ExportJobPhase.DONE), well=True), "Succeeded"),
        (JobSeen(phase=JobPhase.ENDED, report=report(ExportJobPhase.DONE)), "Failed"),
        (JobSeen(phase=JobPhase.ENDED, report=report(ExportJobPhase.RUNNING)), "Failed"),
        (JobSeen(phase=JobPhase.ENDED, report=report(ExportJobPhase.REFUSED)), "Refused"),
        (JobSeen(phase=JobPhase.ENDED), "Failed"),
        (JobSeen(phase=JobPhase.ENDED, well=True), "Succeeded"),
    ],
    ids=["done", "done and killed", "killed", "refused", "silent", "silent and well"],
)
def test_an_end_combines_the_jobs_report_and_exit_status(job: JobSeen, outcome: str) -> None:
    assert step(info(run=run()), job).outcome == outcome


def test_a_suspended_export_has_no_job_and_continues_when_resumed() -> None:
    export = info(run=run(), suspended=True, generation=2)
    assert step(export, RUNNING) == Stop()
    export = exports.applied(export, step(export, ABSENT), now_ms=T0)
    assert step(export) == NextCheck()
    again = dataclasses.replace(export, suspended=False, generation=3)
    assert isinstance(step(again, now_ms=T0), Begin)


# ---------------------------------------------------------------- schedules


def test_scheduled_run_starts_at_its_time() -> None:
    assert step(scheduled()) == NextCheck(T0 + HOUR)
    begun = step(scheduled(), now_ms=T0 + HOUR)
    # At the scheduled time, and after success the next one.
    assert begun.schedule_ms == T0 + HOUR
    export = exports.applied(scheduled(), begun, now_ms=T0 + HOUR)
    done = JobSeen(phase=JobPhase.ENDED, report=report(ExportJobPhase.DONE), well=True)
    export = exports.applied(export, step(export, done), now_ms=T0 + HOUR + MINUTE)
    assert export.last_success_ms == T0 + HOUR + MINUTE
    assert step(export, now_ms=T0 + HOUR + MINUTE) == NextCheck(T0 + 2 * HOUR)


def test_missed_times_cause_one_run() -> None:
    export = scheduled(run=ended(ExportOutcome.SUCCEEDED), last_schedule_ms=T0 + HOUR)
    begun = step(export, now_ms=T0 + 9 * HOUR + MINUTE)
    assert (begun.run.number, begun.schedule_ms) == (2, T0 + 9 * HOUR)


def test_long_run_is_not_joined_by_another() -> None:
    export = scheduled(run=run(), last_schedule_ms=T0 + HOUR)
    assert isinstance(step(export, RUNNING, now_ms=T0 + 5 * HOUR), NextCheck)
    # Another pending order does not start it a second time either.
    assert isinstance(step(export, RUNNING, order="other"), NextCheck)


def test_a_scheduled_run_that_failed_is_tried_again_before_the_next_time() -> None:
    failed = ended(ExportOutcome.FAILED, end_ms=T0 + HOUR)
    export = scheduled(run=failed, failures=1, last_schedule_ms=T0 + HOUR)
    assert step(export, now_ms=T0 + HOUR) == NextCheck(T0 + HOUR + 10_000)
    export = scheduled(run=failed, failures=99, last_schedule_ms=T0 + HOUR)
    # A long back-off never delays the run past its next scheduled time.
    late = dataclasses.replace(
        export, run=ended(ExportOutcome.FAILED, end_ms=T0 + 2 * HOUR - MINUTE)
    )
    assert step(late, now_ms=T0 + 2 * HOUR - 1) == NextCheck(T0 + 2 * HOUR)


@pytest.mark.parametrize(
    ("text", "zone", "message"),
    [
        ("61 * * * *", "", "invalid schedule"),
        ("0 0 30 2 *", "", "invalid schedule"),
        ("0 0 * * *", "Mars/Olympus", "unknown time zone Mars/Olympus"),
        ("0 0 * * *", "../etc/passwd", "unknown time zone"),
    ],
)
def test_an_invalid_schedule_is_refused(text: str, zone: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule.of(text, zone)


def test_schedule_uses_its_time_zone() -> None:
    """The operator's image has no time zone database of the system."""
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    berlin = Schedule.of("30 2 * * *", "Europe/Berlin")
    # 02:30 in Berlin is 01:30 UTC in winter.
    assert berlin.next_ms(T0) == T0 + HOUR + 30 * MINUTE
    assert berlin.last_ms(T0 + HOUR + 30 * MINUTE) == T0 + HOUR + 30 * MINUTE
    assert berlin.last_ms(T0 + HOUR + 30 * MINUTE - 1) == T0 + HOUR + 30 * MINUTE - 24 * HOUR
    assert Schedule.of("@daily").next_ms(T0) == T0 + 24 * HOUR
    zoneinfo.reset_tzpath()


# ---------------------------------------------------------------- owners of a table


def test_older_of_two_exports_owns_the_table() -> None:
    registry = Exports()
    old = info(key="ns/old")
    # Two Exports collide on any common table, such as the dead letters.
    same = frozenset({("lake", "db.t"), ("lake", "db.t_dlq")})
    young = info(key="ns/a-young-one", created_ms=T0 + 1000, tables=same)
    other = info(key="ns/other", tables=frozenset({("lake", "db.u")}))
    for item in (young, other, old):
        registry.put(item)
    assert registry.holder(old) is None
    assert registry.holder(other) is None
    assert registry.holder(young) == ("ns/old", "db.t")
    assert registry.drop("ns/old") == {"ns/a-young-one"}
    assert registry.holder(young) is None


def test_exports_of_one_second_are_ordered_by_name() -> None:
    registry = Exports()
    one, two = info(key="ns/a"), info(key="ns/b")
    registry.put(two)
    registry.put(one)
    assert registry.holder(one) is None
    assert registry.holder(two) == ("ns/a", "db.t")


def test_deleted_exports_leave_nothing_in_the_registry() -> None:
    registry = Exports()
    for number in range(5):
        registry.put(info(key=f"ns/{number}"))
        registry.put(info(key=f"ns/{number}", topic_key="ns/u"))
        registry.observe_job(info(key=f"ns/{number}"), RUNNING)
    assert registry.of_topic("ns/u") == {f"ns/{number}" for number in range(5)}
    assert registry.of_topic("ns/t") == frozenset()
    for number in range(5):
        registry.drop(f"ns/{number}")
    registry.observe_job(info(), RUNNING)
    assert list(registry.all()) == []
    assert not vars(registry)["_by_table"]
    assert not vars(registry)["_by_topic"]
    assert not vars(registry)["_jobs"]


# ---------------------------------------------------------------- any history


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_have_one_job_at_a_time_and_restart_it(seed: int) -> None:
    """Random histories of a job and of an operator that crashes between any two calls.

    After a crash, only the status is known.
    """
    chance = random.Random(seed)
    export, jobs, now_ms = info(), dict[int, JobPhase](), T0
    made: list[int] = []
    for _ in range(300):
        now_ms += chance.choice((0, 1_000, 30_000))
        seen = JobSeen(phase=JobPhase.ABSENT)
        if export.run is not None and export.run.number in jobs:
            phase = jobs[export.run.number]
            report_ = report(ExportJobPhase.FAILED) if phase is JobPhase.ENDED else report(lag=1)
            seen = JobSeen(phase=phase, report=report_)
        found = step(export, seen, order=chance.choice((ORDER,) * 9 + ("other",)), now_ms=now_ms)
        # With a probability of 20 %, the status write is lost.
        crashed = chance.random() < 0.2
        match found:
            case Begin() | End() if not crashed:
                export = exports.applied(export, found, now_ms=now_ms)
            case Launch():
                assert export.run is not None
                # The invariant: a job is launched only if no other one is alive.
                alive = [job for job in jobs if jobs[job] is not JobPhase.ENDED]
                assert alive == []
                jobs[export.run.number] = JobPhase.STARTING
                made.append(export.run.number)
            case Stop():
                assert export.run is not None
                jobs[export.run.number] = JobPhase.ENDING
        for number, phase in list(jobs.items()):
            # The job advances, fails or disappears on its own.
            moved = chance.choice(_NEXT[phase])
            if moved is JobPhase.ABSENT:
                del jobs[number]
            else:
                jobs[number] = moved
    assert made == sorted(made)
    assert len(set(made)) > 5


_NEXT = {
    JobPhase.STARTING: (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.ENDED),
    JobPhase.RUNNING: (JobPhase.RUNNING, JobPhase.RUNNING, JobPhase.ENDED, JobPhase.ABSENT),
    JobPhase.ENDING: (JobPhase.ENDING, JobPhase.ABSENT),
    JobPhase.ENDED: (JobPhase.ENDED,),
}


def test_run_takes_the_generation_of_a_spec_that_describes_its_job() -> None:
    export = info(generation=2, run=run())
    assert exports.adopted(export, ORDER).run == run(generation=2)
    # Another spec needs another job, and with a problem there is no desired job.
    assert exports.adopted(export, "other") == export
    older = info(generation=2, run=run(order=""))
    assert exports.adopted(older, "") == older
    ended_run = info(generation=2, run=ended(ExportOutcome.STOPPED))
    assert exports.adopted(ended_run, ORDER) == ended_run
