"""Metrics of ``tidemark spark usage``, written as a file for the node exporter's textfile
collector.
"""

from tidemark.metrics.metric import Label, gauge, rows

_TOPIC = Label("topic", bound="one series per scanned topic")
_BUCKET = Label(
    "bucket",
    bound="buckets of the tier, empty for a directory, `unknown` for copies in "
    "progress; at most 100",
)
_POLICY = Label("policy", ("retention", "disable-delete", "disable-retain"))

TIMESTAMP = gauge(
    "tidemark_usage_timestamp_seconds", "Unix time at which manifests and listings were read."
)
SEGMENTS = gauge("tidemark_usage_segments", "Segments in the manifests.", _TOPIC, _BUCKET)
LOG_BYTES = gauge(
    "tidemark_usage_log_bytes", "Bytes of the logs of segments in the manifests.", _TOPIC, _BUCKET
)
STORED_BYTES = gauge(
    "tidemark_usage_stored_bytes",
    "Stored bytes of segments in the manifests, including indexes (KIP-917).",
    _TOPIC,
    _BUCKET,
)
PENDING_BYTES = gauge(
    "tidemark_usage_pending_bytes", "Stored bytes that are marked for deletion.", _TOPIC, _BUCKET
)
LISTED_BYTES = gauge(
    "tidemark_usage_listed_bytes",
    "Bytes that the store lists. In a scan of all topics, objects without a "
    "topic have an empty topic name.",
    _TOPIC,
    _BUCKET,
)
UNNAMED_BYTES = gauge(
    "tidemark_usage_unnamed_bytes",
    "Bytes of unreferenced objects and of directories without a manifest.",
    _TOPIC,
    _BUCKET,
)
FREEABLE_BYTES = gauge(
    "tidemark_usage_freeable_bytes", "Stored bytes that a policy would delete.", _TOPIC, _POLICY
)

ALL = rows(globals())
