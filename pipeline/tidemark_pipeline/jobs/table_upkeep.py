"""Scheduled maintenance of the tables that an export's own job writes.

The job is the only writer of its tables. So steps that commit to a table run between two batches:
neither the batch nor the compaction has to be repeated. Such a step is stopped after a time, so
that the export does not wait for long. Parts that it has finished stay, and the next run continues
there. Steps that only delete files run beside the batches.

A job of many topics maintains one table at a time, and exports the others meanwhile. Tables to
which it has committed nothing since their last maintenance are not compacted again. What became old
by their last commits still expires.

A run counts from its start, like that of a CronJob. A job that dies with each run therefore still
exports between two scheduled times.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta

from pyspark.sql import SparkSession

from tidemark.export_job import MaintenancePlan, MaintenanceReport
from tidemark.schedule import Schedule
from tidemark_pipeline.errors import ExportError, project_error
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.maintenance import (
    Maintained,
    MaintenanceStep,
    TableMaintenance,
    steps,
)
from tidemark_pipeline.jobs.maintain import maintain

logger = logging.getLogger(__name__)

_TAG = "tidemark-maintenance"
_POLL_S = 1.0
#: Time to wait for a step that is stopped with the job.
_STOP_S = 20.0


def upkeep_of(plan: MaintenancePlan) -> TableMaintenance:
    """Return the steps of a plan."""

    def age(ms: int | None) -> timedelta | None:
        return None if ms is None else timedelta(milliseconds=ms)

    return TableMaintenance(
        compact=plan.compact,
        keep=age(plan.keep_ms),
        keep_last=plan.keep_last,
        orphans=age(plan.orphans_ms),
    )


@dataclass(frozen=True, slots=True)
class UpkeepTable:
    """Table to maintain, by its name in Spark.

    ``writing``: held by the export while it writes a batch; None for that of the upkeep.
    ``version``: changes with each commit of records; None if a table is always maintained.
    """

    name: str
    writing: "threading.Lock | None" = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class _LastRun:
    """Last maintenance of a table that did not fail.

    ``version``: of the table. ``first_ms``: end of the first run of this version, after which only
    maintenance has committed. ``began_ms``: start of the last one.
    """

    version: int | None
    first_ms: int
    began_ms: int

    def is_needed(self, step: MaintenanceStep) -> bool:
        """Return whether the step may find something if the version is the same."""
        age_ms = step.age / timedelta(milliseconds=1)
        return age_ms > 0 and self.began_ms < self.first_ms + age_ms


class _Ended(threading.Event):
    """Set at the end of the context, and with the stop of the job, which comes before."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def is_set(self) -> bool:
        return super().is_set() or self._stop.is_set()


class TableUpkeep:
    """Maintenance of tables of one format at the times of a plan.

    ``tables``: read at the start of each run. ``on_change``: receives the report of each step.
    ``clock``: returns Unix time in milliseconds.
    """

    def __init__(
        self,
        session: SparkSession,
        kind: Format,
        tables: Callable[[], Sequence[UpkeepTable]],
        plan: MaintenancePlan,
        on_change: Callable[[MaintenanceReport], None] = lambda _: None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        # Delta's maintenance changes settings, which statements of the export must not see.
        self._session = session.newSession() if kind is Format.DELTA else session
        self._kind, self._tables, self._plan = kind, tables, plan
        self._steps = steps(kind, upkeep_of(plan))
        self._on_change, self._clock = on_change, clock
        self._schedule = Schedule.of(plan.schedule, plan.zone)
        self._since_ms = plan.since_ms
        #: Held by the export while it writes a batch.
        self.writing = threading.Lock()
        self._maintained: dict[str, _LastRun] = {}
        self.report = MaintenanceReport(next_ms=self._due_ms())

    @contextmanager
    def during(
        self, is_ready: Callable[[], bool], stop: threading.Event, *, once: bool
    ) -> Iterator[None]:
        """Maintain the tables while the export runs in this context.

        ``is_ready``: whether the export has committed or has nothing to commit. ``stop``: the job
        ends. ``once``: maintain the tables at the end of the context instead.
        """
        self._on_change(self.report)
        if once:
            yield
            self.run_if_due(stop)
            return
        # A batch may wait for a step, and the context does not end before the batch.
        ended = _Ended(stop)

        def loop() -> None:
            # Before its first commit the job maintains nothing, or a table whose maintenance ends
            # the job would never get a commit.
            while not ended.wait(_POLL_S):
                if is_ready():
                    self.run_if_due(ended)

        thread = threading.Thread(target=loop, name="maintenance", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_STOP_S)

    def run_if_due(self, stop: threading.Event) -> bool:
        """Maintain all tables if the schedule says so; return whether it did.

        ``stop``: ends the run early when it is set.
        """
        now_ms = self._clock()
        if self._due_ms() > now_ms or stop.is_set():
            return False
        self._since_ms = now_ms
        self._change(replace(self.report, started_ms=now_ms, next_ms=self._due_ms()))
        done, failures, message = Maintained(), 0, ""
        maintained = dict[str, _LastRun]()
        for table in self._tables():
            # The failure of one table must not keep the others from their maintenance.
            try:
                began_ms, last = self._clock(), self._last_run(table)
                for step in self._steps:
                    if last is None or last.is_needed(step):
                        done += self._run(table, step, stop)
                first_ms = self._clock() if last is None else last.first_ms
                maintained[table.name] = _LastRun(table.version, first_ms, began_ms)
            except Exception as error:
                if stop.is_set():
                    break
                logger.exception("the maintenance of %s failed", table.name)
                failures += 1
                text = project_error(str(error))[1] or type(error).__name__
                message = message or f"{table.name}: {text}"
        # Tables of deleted topics are not kept.
        self._maintained = maintained
        # An interrupted run counts as the run of its time, and has no result.
        if stop.is_set():
            self._change(replace(self.report, step=""))
            return True
        self._change(
            MaintenanceReport(
                message=message,
                started_ms=now_ms,
                ended_ms=self._clock(),
                next_ms=self._due_ms(),
                failures=failures,
                compacted=done.compacted,
                into=done.into,
                expired=done.expired,
                removed=done.removed,
                orphans=done.orphans,
            )
        )
        return True

    def _last_run(self, table: UpkeepTable) -> _LastRun | None:
        """Return the last run for the same version of a table, None if it has changed."""
        last = self._maintained.get(table.name)
        is_same = last is not None and table.version is not None and last.version == table.version
        return last if is_same else None

    def _run(self, table: UpkeepTable, step: MaintenanceStep, stop: threading.Event) -> Maintained:
        """Run one step for one table, between two batches if the step commits to the table."""
        if stop.is_set():
            raise ExportError("the job ends")
        with (table.writing or self.writing) if step.is_exclusive else nullcontext():
            self._change(replace(self.report, step=f"{step.name} of {table.name}"))
            with self._limited(step, stop):
                return maintain(self._session, self._kind, table.name, step.upkeep, logger.info)

    @contextmanager
    def _limited(self, step: MaintenanceStep, stop: threading.Event) -> Iterator[None]:
        """Cancel Spark's jobs of this context when the job ends, or an exclusive step is late.

        Raises :class:`ExportError` if the step was late.
        """
        context = self._session.sparkContext
        limit_s = self._plan.pause_ms / 1000
        until_s = time.monotonic() + limit_s
        done, late = threading.Event(), threading.Event()

        def watch() -> None:
            # A step starts further jobs after one was cancelled, so it is repeated.
            while not done.wait(_POLL_S):
                if step.is_exclusive and time.monotonic() > until_s:
                    late.set()
                if late.is_set() or stop.is_set():
                    context.cancelJobsWithTag(_TAG)

        watcher = threading.Thread(target=watch, name="maintenance-limit", daemon=True)
        context.addJobTag(_TAG)
        watcher.start()
        try:
            yield
        except Exception:
            # The cancelled job's own error says less than the cause.
            if not late.is_set():
                raise
        finally:
            done.set()
            watcher.join()
            context.removeJobTag(_TAG)
        # Iceberg reports cancelled parts only as files that were not compacted.
        if late.is_set():
            raise ExportError(
                f"{step.name} took longer than {limit_s:g} s and was stopped, because the export "
                "waited for it. Finished parts stay, and the next run continues. Run maintenance "
                "more often, raise maintenance.maxPause, or give the job more cores"
            )

    def _due_ms(self) -> int:
        """Return the last scheduled time without a run, or the next one."""
        now_ms = self._clock()
        last_ms = self._schedule.last_ms(now_ms)
        return last_ms if last_ms > self._since_ms else self._schedule.next_ms(now_ms)

    def _change(self, report: MaintenanceReport) -> None:
        self.report = report
        self._on_change(report)
