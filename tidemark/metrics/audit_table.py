"""What an audit of the tier writes for Prometheus, as a file for the node exporter's textfile
collector: it runs now and then, and nobody could scrape it."""

from tidemark.metrics.metric import Label, gauge, rows
from tidemark.tier.findings import FindingKind

_TOPIC = Label("topic", bound="the audited topics")
_KIND = Label("kind", tuple(kind.value for kind in FindingKind if kind.is_damage))
_LEFT = Label("kind", tuple(kind.value for kind in FindingKind if not kind.is_damage))

TIMESTAMP = gauge("tidemark_audit_timestamp_seconds", "When the audit ended.")
SEGMENTS = gauge("tidemark_audit_segments", "Segments that were read whole.", _TOPIC)
BYTES = gauge("tidemark_audit_bytes", "Bytes of their logs.", _TOPIC)
FINDINGS = gauge("tidemark_audit_findings", "What is not as it should be.", _TOPIC, _KIND)
LEFTOVERS = gauge(
    "tidemark_audit_leftovers", "Objects and uploads of the whole tier that nothing names.", _LEFT
)

ALL = rows(globals())
