"""``tidemark spark audit``: read and verify every segment in the tier."""

import importlib.metadata
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tidemark.message_text import count
from tidemark.tier.maintenance.audit_record import TopicAudit, write_record
from tidemark.tier.maintenance.findings import FindingKind
from tidemark.tier.maintenance.sweeper import Sweeper, SweepReport
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.stores.objects import StoreError
from tidemark_cli.common import console, errors, fail, write_atomically
from tidemark_cli.option_groups import option_groups
from tidemark_cli.tier.stores import OpenTier, TierOptions
from tidemark_cli.tier.tables import EXPLAINED, SparkOptions

if TYPE_CHECKING:
    from tidemark_pipeline.audit.segments import AuditReport

SHOWN_MAX = 100
_DAY_MS = 24 * 3600 * 1000


@option_groups
def audit(
    *,
    topics: Annotated[
        list[str] | None, typer.Argument(help="Names of topics. Default: the whole tier.")
    ] = None,
    prometheus: Annotated[
        Path | None, typer.Option(help="Write metrics to this .prom file for the node exporter.")
    ] = None,
    record: Annotated[
        bool, typer.Option(help="Store the result for the condition RemoteIntegrity of Topics.")
    ] = True,
    spark: SparkOptions,
    tier: TierOptions,
) -> None:
    """Compare every segment in the tier with its manifest: digests, sizes, checksums, contiguous
    offsets, leader and tiered epochs. Without topics, find unreferenced objects, too.

    Exit status: 0 if everything is intact; 3 if something is damaged or missing; 1 if the command
    failed.
    """
    opened = tier.open()
    console.print(f"tier: {opened.tier.store.describe()}", markup=False)
    reports: list[AuditReport] = []
    outcomes: list[TopicAudit] = []
    leftovers, problem = None, ""
    try:
        log = spark.prepare(tier.directory)
        for report, outcome in _audited(opened, opened.chosen_topics(topics), spark, log):
            reports.append(report)
            outcomes.append(outcome)
        leftovers = None if topics else _leftovers(opened)
    except EXPLAINED as error:
        problem = str(error)
    # A partial run still records the topics that it finished, but not as an audit of the whole
    # tier.
    if record and (outcomes or not problem):
        _record(opened, outcomes, covers_tier=not topics and not problem)
    if problem:
        fail(problem)
    print_reports(reports, leftovers)
    if prometheus is not None:
        from tidemark_pipeline.audit.metrics_text import prometheus_text

        write_atomically(prometheus, prometheus_text(reports, leftovers, now_ms=_now_ms()))
    if any(report.findings for report in reports):
        raise typer.Exit(3)


def _audited(
    opened: OpenTier, topics: Sequence[TopicObject], spark: SparkOptions, log: Path
) -> "Iterator[tuple[AuditReport, TopicAudit]]":
    """Audit the topics in one Spark session; yield each topic's report and its stored summary."""
    from tidemark_pipeline.audit.segments import audit as run
    from tidemark_pipeline.session import reporting_stages

    # The record names the program version that made the audit.
    program = f"tidemark-{importlib.metadata.version('tidemark')}"
    with spark.session("tidemark audit", log) as session:
        for topic in topics:

            def say(done: int, tasks: int, name: str = topic.name) -> None:
                errors.print(f"{name}: {done:,} of {tasks:,} shares read")

            # The summary has the start of the audit, as later changes of the topic are not covered.
            at_ms = _now_ms()
            with reporting_stages(session.sparkContext, say):
                report = run(session, opened.config, topic)
            yield report, report.outcome(at_ms=at_ms, by=program)


def _record(opened: OpenTier, outcomes: Sequence[TopicAudit], *, covers_tier: bool) -> None:
    """Store the outcomes in the tier; a failure to do so is only a warning, as the findings
    stand.
    """
    try:
        left_out = write_record(opened.tier.store, outcomes, replaces_all=covers_tier)
    except StoreError as error:
        _warn(f"the outcome could not be stored in the tier: {error}")
        return
    if left_out:
        _warn(
            f"the audit record is full: {count(left_out, 'topic', 'was')} left out; "
            "audit those by name to record them"
        )


def _warn(text: str) -> None:
    errors.print(text, markup=False)


def _leftovers(opened: OpenTier) -> dict[FindingKind, int]:
    """Count objects that no manifest names; only `tidemark sweep` lists and removes them."""
    report: SweepReport = Sweeper(opened.tier, now_ms=_now_ms, delay_ms=_DAY_MS).run()
    return {
        FindingKind.UNNAMED: report.orphans.count,
        FindingKind.UNFINISHED: report.uploads.count,
        FindingKind.UNKNOWN: report.unknown_objects,
    }


def print_reports(
    reports: "Sequence[AuditReport]", leftovers: Mapping[FindingKind, int] | None
) -> None:
    """Print a table row for each topic, then at most 100 findings.

    ``leftovers``: objects that no manifest names, by kind; None if they were not searched for.
    """
    table = Table("topic", "segments", "bytes", "findings")
    for report in reports:
        counts = report.segments, report.size_bytes, len(report.findings)
        table.add_row(report.topic.name, *(f"{count:,}" for count in counts))
    console.print(table)
    # Bounded, as a damaged tier can have a finding for every segment.
    findings = [finding for report in reports for finding in report.findings]
    for shown in findings[:SHOWN_MAX]:
        where = f"{shown.topic}-{shown.partition}"
        if shown.start_offset >= 0:
            where += f", offsets {shown.start_offset} to {shown.end_offset_inclusive}"
        _say(f"{shown.kind.value}: {where}: {shown.detail}")
    if len(findings) > SHOWN_MAX:
        _say(f"{len(findings) - SHOWN_MAX:,} more findings")
    # Nothing is printed about objects that were not searched for.
    for kind, found in (leftovers or {}).items():
        if found:
            _say(f"{kind.value}: {found:,}; list them with: tidemark sweep")
    if not findings:
        _say("no findings: every segment matches its manifest, and the offsets have no gap")


def _say(text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
