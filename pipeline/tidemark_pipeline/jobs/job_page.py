"""Report and metrics of an ``Export`` job.

The operator and Prometheus read them from a page. The last report is written to a file. The job's
threads write the state, and the page's threads read it.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
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
    """Newest report and progress of the job, and a collector of its metrics."""

    def __init__(self) -> None:
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
            return self._report

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
                topics=progress.topics,
                maintenance=before.maintenance,
            )

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
            report, progress = self._report, self._progress
        figures: dict[Row, float | None] = {
            export_table.LAG: report.lag,
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


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
