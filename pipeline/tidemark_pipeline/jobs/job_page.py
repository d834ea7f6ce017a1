"""Report and metrics of an ``Export`` job.

The operator and Prometheus read them from a page. The last report is written to a file. The job's
threads write the state, and the page's threads read it.
"""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tidemark.export_job import (
    REPORT_PATH,
    SERVED_BYTES_MAX,
    ExportJobPhase,
    JobReport,
    MaintenanceReport,
)
from tidemark.http_page import HttpPage
from tidemark.metrics import export_table
from tidemark.metrics.families import single
from tidemark.metrics.metric import Metric as Row

if TYPE_CHECKING:
    from tidemark_pipeline.jobs.export import ExportProgress
    from tidemark_pipeline.jobs.export_topics import TopicsProgress


class JobStatus(Collector):
    """Newest report and progress of the job, and a collector of its metrics.

    ``is_alone``: the job has no executors, so that its CPU time is that of processes of this
    machine.
    """

    def __init__(self, *, is_alone: bool = True) -> None:
        self._is_alone, self._cpu_ms = is_alone, 0
        self._lock = threading.Lock()
        self._report = JobReport(phase=ExportJobPhase.STARTING)
        self._progress: ExportProgress | TopicsProgress | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    @property
    def report(self) -> JobReport:
        """Report as of now."""
        with self._lock:
            # The CPU time is read only for a reader, because that reads all of /proc.
            if self._progress is None:
                return self._report
            return replace(self._report, cpu_ms=self._cpu())

    def update(self, progress: "ExportProgress | TopicsProgress") -> None:
        """Store the export's progress, after the claim, a commit, or a query of the topic's end."""
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            before = self._report
            # The time of the last commit changes only if this call reports a commit.
            committed = progress.commits > before.commits
            self._progress = progress
            self._report = JobReport(
                phase=ExportJobPhase.RUNNING,
                lag=progress.lag,
                rows=progress.counts.rows,
                letters=progress.counts.letters,
                commits=progress.commits,
                committed_ms=now_ms if committed else before.committed_ms,
                current_ms=progress.current_ms,
                observed_ms=progress.observed_ms,
                lag_ms=progress.lag_ms,
                exported=progress.exported_offsets,
                written_bytes=progress.written.bytes,
                topics=progress.topics,
                maintenance=before.maintenance,
            )

    def _cpu(self) -> int | None:
        """Return the CPU time of the job's processes, which never decreases.

        The sum may do, because processes end while they are counted.
        """
        found = cpu_ms(os.getpid()) if self._is_alone else None
        self._cpu_ms = max(self._cpu_ms, found or 0)
        return None if found is None else self._cpu_ms

    def maintained(self, report: MaintenanceReport) -> None:
        """Store the state of the tables' maintenance."""
        with self._lock:
            self._report = replace(self._report, maintenance=report)

    def end(self, phase: ExportJobPhase, message: str = "") -> None:
        """Set the final phase and its message."""
        with self._lock:
            self._report = replace(self._report, phase=phase, message=message)

    def page(self) -> HttpPage:
        """Return the page, which the caller starts."""
        return HttpPage(
            metrics=lambda: bytes(generate_latest(self._registry)),
            health=lambda: (True, str(self.report.phase)),
            more={REPORT_PATH: self._report_json},
        )

    def _report_json(self) -> bytes:
        return self.report.to_json(SERVED_BYTES_MAX)

    def collect(self) -> Iterator[Metric]:
        """Yield the Prometheus metrics whose value is known."""
        # Read together, so that the metrics of one scrape belong to one state.
        with self._lock:
            report, progress, cpu = self._report, self._progress, self._cpu()
        figures: dict[Row, float | None] = {
            export_table.LAG: report.lag,
            export_table.LAG_SECONDS: _seconds(report.lag_ms),
            export_table.EXPORTED: report.exported,
            export_table.CPU: _seconds(cpu),
            export_table.CURRENT: _seconds(report.current_ms),
            export_table.LAST_COMMIT: _seconds(report.committed_ms),
            export_table.COMMITS: report.commits,
            export_table.TABLE_ROWS: report.rows,
            export_table.TABLE_LETTERS: report.letters,
        }
        if report.topics is not None:
            figures[export_table.TOPICS] = report.topics.total
            figures[export_table.TOPICS_FAILING] = report.topics.failing
            figures[export_table.TOPICS_BEHIND] = report.topics.behind
        if report.maintenance is not None:
            figures[export_table.MAINTAINED] = _seconds(report.maintenance.ended_ms)
            figures[export_table.MAINTENANCE_FAILURES] = report.maintenance.failures
        # Counters of this run exist only once the table is claimed.
        if progress is not None:
            figures[export_table.WRITTEN_ROWS] = progress.written.rows
            figures[export_table.WRITTEN_BYTES] = progress.written.bytes
            figures[export_table.WRITTEN_LETTERS] = progress.written.letters
        for row, value in figures.items():
            if value is not None:
                yield single(row, value)


def cpu_ms(root: int) -> int | None:
    """Return the CPU time (ms) of a process and its descendants; None without ``/proc`` of Linux.

    Processes that have ended count with the parent that waited for them.
    """
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        # Field 1 is the parent. Fields 11 to 14 are user and system time: those of the process, and
        # those of children that it has waited for.
        number = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(number)
        ticks[number] = sum(map(int, fields[11:15]))
    if root not in ticks:
        return None
    total, remaining = 0, [root]
    while remaining:
        number = remaining.pop()
        total += ticks.get(number, 0)
        remaining += children.get(number, ())
    return total * 1000 // os.sysconf("SC_CLK_TCK")


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
