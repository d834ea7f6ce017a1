"""Metrics of an audit of the tier, written as a file for the node exporter's textfile collector.

An audit is a short-lived job, which Prometheus cannot scrape.
"""

from tidemark.metrics.metric import Label, gauge, rows
from tidemark.tier.maintenance.findings import FindingKind

_TOPIC = Label("topic", bound="one series per audited topic")
_KIND = Label("kind", tuple(kind.value for kind in FindingKind if kind.is_damage))
_LEFT = Label("kind", tuple(kind.value for kind in FindingKind if not kind.is_damage))

TIMESTAMP = gauge("tidemark_audit_timestamp_seconds", "Unix time of the end of the audit.")
SEGMENTS = gauge("tidemark_audit_segments", "Segments that were read completely.", _TOPIC)
BYTES = gauge("tidemark_audit_bytes", "Bytes of the logs of audited segments.", _TOPIC)
FINDINGS = gauge("tidemark_audit_findings", "Number of findings.", _TOPIC, _KIND)
LEFTOVERS = gauge(
    "tidemark_audit_leftovers", "Unreferenced objects and uploads in the whole tier.", _LEFT
)

ALL = rows(globals())
