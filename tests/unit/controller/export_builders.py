"""Builders of the core's Export values: a continuous and a scheduled Export, runs and reports."""

from typing import Any

from tidemark.export_job import ExportJobPhase, JobReport
from tidemark.schedule import Schedule
from tidemark_operator.controller.state.export_values import (
    ExportInfo,
    ExportOutcome,
    ExportRunRecord,
)

MINUTE, HOUR = 60_000, 3_600_000
#: 2026-01-01T00:00:00Z
T0 = 1_767_225_600_000
ORDER = "0123456789abcdef"
HOURLY = Schedule.of("0 * * * *")


def info(**fields: Any) -> ExportInfo:
    base: dict[str, Any] = {
        "key": "ns/flights",
        "uid": "u",
        "generation": 1,
        "created_ms": T0,
        "topic_key": "ns/t",
        "tables": frozenset({("lake", "db.t")}),
        "schedule": None,
        "interval_ms": MINUTE,
        "suspended": False,
    }
    return ExportInfo(**base | fields)


def run(number: int = 1, **fields: Any) -> ExportRunRecord:
    base: dict[str, Any] = {"generation": 1, "order": ORDER, "start_ms": T0}
    return ExportRunRecord(number=number, **base | fields)


def ended(
    outcome: ExportOutcome, *, number: int = 1, end_ms: int = T0 + MINUTE, **fields: Any
) -> ExportRunRecord:
    return run(number, end_ms=end_ms, outcome=outcome, **fields)


def report(phase: ExportJobPhase = ExportJobPhase.RUNNING, **fields: Any) -> JobReport:
    return JobReport(phase=phase, **fields)


def scheduled(**fields: Any) -> ExportInfo:
    return info(schedule=HOURLY, created_ms=T0 + MINUTE, **fields)
