"""Findings of an audit as Prometheus text for node_exporter's textfile collector."""

from collections import Counter
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from tidemark.metrics import audit_table
from tidemark.metrics.families import gauge
from tidemark.tier.maintenance.findings import FindingKind
from tidemark_pipeline.audit.segments import AuditReport


def prometheus_text(
    reports: Sequence[AuditReport], leftovers: Mapping[FindingKind, int] | None, *, now_ms: int
) -> bytes:
    """Return the audit's metrics in Prometheus' text format.

    Each kind of finding has a sample, also with the value 0, so that an alert resolves.
    ``leftovers``: objects that no manifest names, by kind; None if they were not searched for,
    which omits their samples. ``now_ms``: Unix time of the audit.
    """
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {row.name: gauge(row, registry) for row in audit_table.ALL}
    gauges[audit_table.TIMESTAMP.name].set(now_ms / 1000)
    for report in reports:
        name = report.topic.name
        gauges[audit_table.SEGMENTS.name].labels(name).set(report.segments)
        gauges[audit_table.BYTES.name].labels(name).set(report.size_bytes)
        counts = Counter(finding.kind for finding in report.findings)
        for kind in FindingKind:
            # Leftovers are not damage, and have a metric of their own.
            if kind.is_damage:
                gauges[audit_table.FINDINGS.name].labels(name, kind.value).set(counts[kind])
    for kind, count in (leftovers or {}).items():
        gauges[audit_table.LEFTOVERS.name].labels(kind.value).set(count)
    return generate_latest(registry)
