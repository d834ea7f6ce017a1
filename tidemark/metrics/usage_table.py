"""What ``tidemark spark usage`` writes for Prometheus, as a file for the node exporter's textfile
collector."""

from tidemark.metrics.metric import Label, gauge, rows

_TOPIC = Label("topic", bound="the topics that were looked at")
_BUCKET = Label(
    "bucket",
    bound="the tier's buckets, empty for a directory, `unknown` of copies under way; 100 at most",
)
_POLICY = Label("policy", ("retention", "disable-delete", "disable-retain"))

TIMESTAMP = gauge("tidemark_usage_timestamp_seconds", "When manifests and listings were read.")
SEGMENTS = gauge("tidemark_usage_segments", "Segments that manifests name.", _TOPIC, _BUCKET)
LOG_BYTES = gauge("tidemark_usage_log_bytes", "Bytes of their logs.", _TOPIC, _BUCKET)
STORED_BYTES = gauge(
    "tidemark_usage_stored_bytes",
    "Bytes that were stored of them, indexes included (KIP-917).",
    _TOPIC,
    _BUCKET,
)
PENDING_BYTES = gauge(
    "tidemark_usage_pending_bytes", "Stored bytes of what is marked, and goes.", _TOPIC, _BUCKET
)
LISTED_BYTES = gauge(
    "tidemark_usage_listed_bytes",
    "Bytes that the store lists; those of no topic, in a look at all, under the topic of no name.",
    _TOPIC,
    _BUCKET,
)
UNNAMED_BYTES = gauge(
    "tidemark_usage_unnamed_bytes",
    "Of these, what nothing names, or what lies in folders without a manifest.",
    _TOPIC,
    _BUCKET,
)
FREEABLE_BYTES = gauge(
    "tidemark_usage_freeable_bytes", "Stored bytes that a policy would free.", _TOPIC, _POLICY
)

ALL = rows(globals())
