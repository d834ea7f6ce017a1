"""Metrics of a broker by topic, on a page of its own (``/metrics/topics``), because they are many
series.

For each topic they are sums over the partitions that the broker leads, for at most
:data:`TOPICS_MAX` topics, those with the most bytes.
"""

from tidemark.metrics.metric import Label, gauge, rows

TOPICS_MAX = 1000

_TOPIC = Label(
    "topic", bound=f"topics with a partition that the broker leads, at most {TOPICS_MAX}"
)
_TIERING = Label("tiering", ("None", "Enabled", "Disabling", "Disabled"))
_RANGE = Label("range", ("remote", "both", "local"))

PARTITIONS = gauge("tidemark_topic_partitions", "Partitions by tiering state.", _TOPIC, _TIERING)
OFFSETS = gauge(
    "tidemark_topic_offsets",
    "Offsets between log start and log end, by location: only in the tier, in "
    "both, only on brokers.",
    _TOPIC,
    _RANGE,
)
END_OFFSETS = gauge("tidemark_topic_end_offsets", "Sum of the log end offsets.", _TOPIC)
LOCAL_BYTES = gauge("tidemark_topic_local_bytes", "Bytes of the leaders' local logs.", _TOPIC)
REMOTE_BYTES = gauge("tidemark_topic_remote_bytes", "Bytes of live segments in the tier.", _TOPIC)
REMOTE_SEGMENTS = gauge("tidemark_topic_remote_segments", "Live segments in the tier.", _TOPIC)
REMAINING_BYTES = gauge(
    "tidemark_topic_remaining_bytes", "Bytes in the tier that are still to be deleted.", _TOPIC
)
COPY_LAG_SECONDS = gauge(
    "tidemark_topic_copy_lag_seconds",
    "Seconds since the append of the oldest committed record that is not in the tier, of all "
    "partitions. 0 if all are in the tier.",
    _TOPIC,
)
WAITING_BYTES = gauge(
    "tidemark_topic_waiting_bytes",
    "Bytes of segments with committed records that are not in the tier, active segments included.",
    _TOPIC,
)
TIER_ERRORS = gauge("tidemark_topic_tier_errors", "Partitions with a tier error.", _TOPIC)
LEFT_OUT = gauge(
    "tidemark_topics_left_out", "Topics without metrics because the limit is exceeded."
)

ALL = rows(globals())
