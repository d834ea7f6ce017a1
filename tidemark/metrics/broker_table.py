"""What a broker shows, but for the tier (:mod:`tidemark.metrics.tier_table`).

Figures of partitions are sums over those that the broker has, or leads.
"""

from tidemark.metrics.metric import Label, counter, gauge, histogram, rows

_API = Label("api", bound="Kafka's APIs that are served, and those of brokers among themselves")

# ---------------------------------------------------------------- replicas

REPLICAS = gauge("tidemark_broker_replicas", "Replicas that this broker hosts.")
LEADERS = gauge("tidemark_broker_leaders", "Partitions that this broker leads.")
OFFLINE_REPLICAS = gauge(
    "tidemark_broker_offline_replicas", "Replicas whose storage does not open."
)
FAILING_REPLICAS = gauge(
    "tidemark_broker_failing_replicas", "Replicas whose storage failed when it was last tried."
)
UNDER_REPLICATED = gauge(
    "tidemark_broker_under_replicated_partitions", "Led partitions with fewer in sync than wanted."
)
UNDER_MIN_ISR = gauge(
    "tidemark_broker_under_min_isr_partitions", "Led partitions that refuse acks=all."
)
LOG_BYTES = gauge("tidemark_broker_log_bytes", "Bytes of all local logs.")
PRODUCER_IDS = gauge(
    "tidemark_broker_producer_ids", "Producers that the logs remember, for each log anew."
)
PRODUCERS_REFUSED = counter(
    "tidemark_broker_producers_refused",
    "Batches of new producers that were refused because tidemark.producer.ids.max was reached.",
)
FENCED = gauge("tidemark_broker_fenced", "1 while the controller fences this broker.")
CONTROLLER_CONNECTED = gauge(
    "tidemark_broker_controller_connected", "1 while there is a session with a controller."
)
LOOP_AGE = gauge("tidemark_broker_loop_age_seconds", "Seconds since the main loop last turned.")
PURGATORY = gauge("tidemark_broker_purgatory_operations", "Delayed operations that are waiting.")
STORAGE_FAILURES = counter(
    "tidemark_broker_storage_failures", "Times that a partition's storage failed."
)
CERTIFICATE_EXPIRY = gauge(
    "tidemark_broker_certificate_expiry_timestamp_seconds",
    "Unix time at which a certificate in this broker's folders ends; of the listeners' the first.",
    Label("certificate", ("cluster", "listener")),
)

# ---------------------------------------------------------------- clients

REQUESTS = counter(
    "tidemark_broker_requests",
    "Requests answered, by API and version.",
    _API,
    Label("version", bound="that API's versions"),
)
REQUEST_SECONDS = histogram(
    "tidemark_broker_request_duration_seconds",
    "Seconds from a request's arrival to its answer, waiting included, by API.",
    _API,
)
NETWORK_BYTES = counter(
    "tidemark_broker_network_bytes",
    "Bytes received from (in) and sent to (out) clients.",
    Label("direction", ("in", "out")),
)
CONNECTIONS = gauge("tidemark_broker_connections", "Client connections that are open.")
CONNECTIONS_OPENED = counter(
    "tidemark_broker_connections_opened", "Client connections accepted so far."
)
#: Reasons of CONNECTIONS_CLOSED.
MALFORMED, IDLE, FAILED, LIMIT, ASKED = "malformed", "idle", "failed", "limit", "asked"
SLOW, AUTHENTICATION = "slow", "authentication"
CONNECTIONS_CLOSED = counter(
    "tidemark_broker_connections_closed_by_broker",
    "Client connections that the broker ended, by reason.",
    Label("reason", (MALFORMED, IDLE, FAILED, LIMIT, ASKED, SLOW, AUTHENTICATION)),
)
QUEUED_BYTES = gauge(
    "tidemark_broker_queued_request_bytes", "Bytes of requests that are held and not answered yet."
)
ANSWER_BYTES = gauge(
    "tidemark_broker_answer_bytes",
    "Bytes of answers that are being made, or that clients have not taken yet.",
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
GROUP_MEMBERS = gauge("tidemark_broker_group_members", "Members of all of them.")
GROUPS_BYTES = gauge(
    "tidemark_broker_groups_bytes",
    "About what they take of memory (tidemark.groups.bytes.max is the most).",
)
TRANSACTIONAL_IDS = gauge(
    "tidemark_broker_transactional_ids", "Transactional ids that this broker coordinates."
)
TRANSACTIONS_BYTES = gauge(
    "tidemark_broker_transactions_bytes",
    "Memory that they take (tidemark.transactions.bytes.max is the most).",
)
WITHOUT_MARKERS = gauge(
    "tidemark_broker_transactions_without_markers",
    "Transactions that are decided, and not every partition of which has its marker.",
)

# ---------------------------------------------------------------- log compaction

_CLEANER = "tidemark_broker_cleaner_"
MAX_DIRTY = gauge(
    f"{_CLEANER}max_dirty_percent",
    "Dirty share of the dirtiest compacted log, when it was last looked.",
)
MAX_COMPACTION_DELAY = gauge(
    f"{_CLEANER}max_compaction_delay_seconds",
    "How long a record has waited beyond max.compaction.lag.ms.",
)
MAX_BUFFER = gauge(
    f"{_CLEANER}max_buffer_utilization_percent",
    "How full the last cleaning's memory for keys became.",
)
SINCE_LAST_RUN = gauge(
    f"{_CLEANER}seconds_since_last_run",
    "Seconds since a cleaning ended well; 0 where none has yet.",
)
UNCLEANABLE = gauge(
    f"{_CLEANER}uncleanable_partitions",
    "Compacted logs that were set aside because cleaning them failed.",
)
CLEANER_RUNS = counter(f"{_CLEANER}runs", "Cleanings that ended well.")
CLEANER_FAILURES = counter(f"{_CLEANER}failures", "Cleanings that failed.")
CLEANER_READ = counter(f"{_CLEANER}read_bytes", "Bytes that cleanings read.")
CLEANER_WRITTEN = counter(f"{_CLEANER}written_bytes", "Bytes that cleanings wrote.")
UNREADABLE_BATCHES = counter(
    f"{_CLEANER}unreadable_batches", "Batches that cleanings could not read and left as they are."
)
KEYLESS_RECORDS = counter(
    f"{_CLEANER}keyless_records", "Records without a key that cleanings took away."
)

ALL = rows(globals())
