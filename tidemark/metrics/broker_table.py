"""Metrics of a broker, except those of the tier (:mod:`tidemark.metrics.tier_table`).

Figures of partitions are sums over those that the broker has, or leads.
"""

from tidemark.metrics.metric import Label, counter, gauge, histogram, rows

_API = Label("api", bound="Kafka's APIs that the broker serves, and the APIs between brokers")

# ---------------------------------------------------------------- replicas

REPLICAS = gauge("tidemark_broker_replicas", "Replicas on this broker.")
LEADERS = gauge("tidemark_broker_leaders", "Partitions that this broker leads.")
OFFLINE_REPLICAS = gauge(
    "tidemark_broker_offline_replicas", "Replicas whose storage cannot be opened."
)
FAILING_REPLICAS = gauge(
    "tidemark_broker_failing_replicas", "Replicas whose latest storage operation failed."
)
UNDER_REPLICATED = gauge(
    "tidemark_broker_under_replicated_partitions",
    "Led partitions whose ISR is smaller than the number of replicas.",
)
UNDER_MIN_ISR = gauge(
    "tidemark_broker_under_min_isr_partitions",
    "Led partitions whose ISR is below min.insync.replicas, so that acks=all is refused.",
)
LOG_BYTES = gauge("tidemark_broker_log_bytes", "Bytes of all local logs.")
PRODUCER_IDS = gauge(
    "tidemark_broker_producer_ids", "Producer states in all logs. A producer counts once per log."
)
PRODUCERS_REFUSED = counter(
    "tidemark_broker_producers_refused",
    "Batches of new producers that were refused because of tidemark.producer.ids.max.",
)
FENCED = gauge("tidemark_broker_fenced", "1 while the broker is fenced.")
CONTROLLER_CONNECTED = gauge(
    "tidemark_broker_controller_connected", "1 while the broker has a session with a controller."
)
LOOP_AGE = gauge(
    "tidemark_broker_loop_age_seconds", "Seconds since the last iteration of the event loop."
)
PURGATORY = gauge("tidemark_broker_purgatory_operations", "Delayed operations in purgatory.")
STORAGE_FAILURES = counter("tidemark_broker_storage_failures", "Storage failures of partitions.")
CERTIFICATE_EXPIRY = gauge(
    "tidemark_broker_certificate_expiry_timestamp_seconds",
    "Unix time at which a certificate in this broker's directories expires. "
    "For the listeners, the earliest one.",
    Label("certificate", ("cluster", "listener")),
)

# ---------------------------------------------------------------- clients

REQUESTS = counter(
    "tidemark_broker_requests",
    "Requests that were answered, by API and version.",
    _API,
    Label("version", bound="versions of the API"),
)
REQUEST_SECONDS = histogram(
    "tidemark_broker_request_duration_seconds",
    "Seconds from the arrival of a request to its response, including waiting time, by API.",
    _API,
)
NETWORK_BYTES = counter(
    "tidemark_broker_network_bytes",
    "Bytes received from (in) and sent to (out) clients.",
    Label("direction", ("in", "out")),
)
CONNECTIONS = gauge("tidemark_broker_connections", "Open client connections.")
CONNECTIONS_OPENED = counter("tidemark_broker_connections_opened", "Accepted client connections.")
#: Reasons of CONNECTIONS_CLOSED.
MALFORMED, IDLE, FAILED, LIMIT, ASKED = "malformed", "idle", "failed", "limit", "asked"
SLOW, AUTHENTICATION = "slow", "authentication"
CONNECTIONS_CLOSED = counter(
    "tidemark_broker_connections_closed_by_broker",
    "Client connections that the broker closed, by reason.",
    Label("reason", (MALFORMED, IDLE, FAILED, LIMIT, ASKED, SLOW, AUTHENTICATION)),
)
QUEUED_BYTES = gauge("tidemark_broker_queued_request_bytes", "Bytes of requests in process.")
ANSWER_BYTES = gauge(
    "tidemark_broker_answer_bytes",
    "Bytes of responses in process or not yet received by clients.",
)

# ---------------------------------------------------------------- groups and transactions

GROUPS = gauge(
    "tidemark_broker_groups",
    "Consumer groups that this broker coordinates.",
    Label(
        "state",
        (
            "Empty",
            "PreparingRebalance",
            "CompletingRebalance",
            "Stable",
            "Assigning",
            "Reconciling",
        ),
    ),
)
GROUP_MEMBERS = gauge(
    "tidemark_broker_group_members", "Members of the groups that this broker coordinates."
)
GROUPS_BYTES = gauge(
    "tidemark_broker_groups_bytes",
    "Approximate memory of its groups in bytes. The limit is tidemark.groups.bytes.max.",
)
TRANSACTIONAL_IDS = gauge(
    "tidemark_broker_transactional_ids", "Transactional ids that this broker coordinates."
)
TRANSACTIONS_BYTES = gauge(
    "tidemark_broker_transactions_bytes",
    "Memory of the transactional ids in bytes. The limit is tidemark.transactions.bytes.max.",
)
WITHOUT_MARKERS = gauge(
    "tidemark_broker_transactions_without_markers",
    "Decided transactions without a marker in every partition.",
)

# ---------------------------------------------------------------- log compaction

_CLEANER = "tidemark_broker_cleaner_"
MAX_DIRTY = gauge(
    f"{_CLEANER}max_dirty_percent",
    "Dirty ratio of the dirtiest compacted log at the last check.",
)
MAX_COMPACTION_DELAY = gauge(
    f"{_CLEANER}max_compaction_delay_seconds",
    "Seconds that a record has waited beyond max.compaction.lag.ms.",
)
MAX_BUFFER = gauge(
    f"{_CLEANER}max_buffer_utilization_percent",
    "Fill ratio of the key map in the last cleaning.",
)
SINCE_LAST_RUN = gauge(
    f"{_CLEANER}seconds_since_last_run",
    "Seconds since the last successful cleaning. 0 if there was none.",
)
UNCLEANABLE = gauge(
    f"{_CLEANER}uncleanable_partitions",
    "Compacted logs that are excluded from cleaning after a failure.",
)
CLEANER_RUNS = counter(f"{_CLEANER}runs", "Successful cleanings.")
CLEANER_FAILURES = counter(f"{_CLEANER}failures", "Failed cleanings.")
CLEANER_READ = counter(f"{_CLEANER}read_bytes", "Bytes read by cleanings.")
CLEANER_WRITTEN = counter(f"{_CLEANER}written_bytes", "Bytes written by cleanings.")
UNREADABLE_BATCHES = counter(
    f"{_CLEANER}unreadable_batches", "Unreadable batches that cleanings left unchanged."
)
KEYLESS_RECORDS = counter(
    f"{_CLEANER}keyless_records", "Records without a key that cleanings removed."
)

ALL = rows(globals())
