"""Metrics of the operator. No label contains the name of a topic, a broker or a user.

Only the leading operator exposes metrics of a cluster's state, so that the knowledge of a former
leader is not mistaken for the present state.
"""

from tidemark.metrics.metric import Label, counter, gauge, histogram, rows

_KIND = Label("kind", ("Cluster", "Broker", "Topic", "RecordDeletion", "User", "Export"))
_REASON = Label("reason", bound="the reasons of docs/reference/conditions.md")

RECONCILES = counter(
    "tidemark_operator_reconciles",
    "Reconciliations by kind and outcome.",
    _KIND,
    Label("outcome", ("done", "retry", "error")),
)
RECONCILE_SECONDS = histogram(
    "tidemark_operator_reconcile_seconds", "Duration of a reconciliation in seconds.", _KIND
)
LAST_PASS = gauge(
    "tidemark_operator_last_successful_pass_timestamp_seconds",
    "Unix time of the last successful reconciliation.",
)
COMMITS = counter("tidemark_operator_group_commits", "Group commits.")
COMMIT_SECONDS = histogram(
    "tidemark_operator_group_commit_seconds", "Duration of a group commit in seconds."
)
DECISIONS = counter("tidemark_operator_decisions_committed", "Decisions stored.")
SLICE_WRITES = counter("tidemark_operator_slice_writes", "PartitionSlices written.")
STATUS_WRITES = counter("tidemark_operator_status_writes", "Statuses written.", _KIND)
CONFLICTS = counter(
    "tidemark_operator_conflicts", "Writes that failed because of another resourceVersion.", _KIND
)
EVENTS = counter("tidemark_operator_events", "Kubernetes Events that were written.")
FAILED_EXPORTS = counter("tidemark_operator_failed_exports", "Failed runs of Exports.")
LEADER = gauge("tidemark_operator_leader", "1 while this process holds the Lease.")
TERM = gauge(
    "tidemark_operator_term",
    "1 while this process is the active controller: it has claimed the PartitionSlices.",
)
CONTROLLER_EPOCH = gauge(
    "tidemark_controller_epoch", "Controller epoch of this process. 0 before it has led."
)
CERTIFICATE_EXPIRY = gauge(
    "tidemark_certificate_expiry_timestamp_seconds",
    "Unix time at which a certificate expires: that of the cluster's CA or of this process.",
    Label("certificate", ("authority", "controller")),
)

QUEUE_DEPTH = gauge("tidemark_operator_queue_depth", "Keys in the work queue.")
QUEUE_HEAD_AGE = gauge(
    "tidemark_operator_queue_head_age_seconds", "Seconds that the oldest key has been in process."
)
BROKERS = gauge(
    "tidemark_brokers", "Registered brokers, without Readers.", Label("state", ("live", "fenced"))
)
READERS = gauge("tidemark_readers", "Registered Readers.", Label("state", ("live", "fenced")))
TOPICS = gauge(
    "tidemark_topics",
    "Topics by tiering state. None: never tiered.",
    Label("tiering", ("None", "Enabled", "Disabling", "Disabled")),
)
PARTITIONS = gauge("tidemark_partitions", "Partitions placed.")
OFFLINE = gauge("tidemark_partitions_offline", "Partitions without a leader.")
UNDER_REPLICATED = gauge(
    "tidemark_partitions_under_replicated",
    "Partitions whose ISR is smaller than the number of replicas.",
)
PLACEHOLDERS = gauge("tidemark_placeholders", "Replicas without a broker (placeholders).")
PENDING_DISABLEMENTS = gauge(
    "tidemark_disablements_pending_brokers",
    "Outstanding acknowledgements of disablements, over all topics.",
)
REMOTE_BYTES = gauge("tidemark_remote_bytes", "Bytes in the tier, as reported by the leaders.")
OBJECTS = gauge("tidemark_objects", "Objects that the operator manages.", _KIND)
NOT_READY = gauge(
    "tidemark_objects_not_ready",
    "Objects whose condition Ready (of a RecordDeletion Succeeded) is False.",
    _KIND,
    _REASON,
)
STALLED = gauge(
    "tidemark_objects_stalled",
    "Objects whose condition Stalled is True. They need attention.",
    _KIND,
    _REASON,
)
UNSETTLED = gauge(
    "tidemark_objects_unsettled",
    "Objects with another condition in a bad state: Draining or TieringLagging is "
    "True, or another condition than Ready is False.",
    _KIND,
    Label(
        "condition",
        (
            "Draining",
            "Exporting",
            "ExternalAddress",
            "FullyReplicated",
            "Maintained",
            "ObjectsAccepted",
            "PodUpToDate",
            "RemoteIntegrity",
            "RemoteStorageReady",
            "TierIntegrity",
            "TierSwept",
            "TieringLagging",
            "TieringSettled",
        ),
    ),
    _REASON,
)
OLDEST_DELETION = gauge(
    "tidemark_record_deletion_oldest_seconds",
    "Seconds since the creation of the oldest RecordDeletion in progress that "
    "is not paused. 0 if there is none.",
)
EXPORTS = gauge(
    "tidemark_exports",
    "Exports by the state of their job: waiting for the next scheduled run, or "
    "stopped because no run can start.",
    Label("state", ("running", "starting", "waiting", "failing", "suspended", "stopped")),
)
EXPORTS_LAG = gauge(
    "tidemark_exports_lag_offsets", "Offsets of topics that are not in the tables of Exports yet."
)
EXPORTS_STALE = gauge(
    "tidemark_exports_stale_seconds",
    "Seconds since the oldest table of a continuous Export was complete, after "
    "it first caught up. 0 if there is none.",
)

ALL = rows(globals())
#: Metrics that are computed from the state at each request for the page, during a term.
MEASURED = (
    QUEUE_DEPTH,
    QUEUE_HEAD_AGE,
    BROKERS,
    READERS,
    TOPICS,
    PARTITIONS,
    OFFLINE,
    UNDER_REPLICATED,
    PLACEHOLDERS,
    PENDING_DISABLEMENTS,
    REMOTE_BYTES,
    OBJECTS,
    NOT_READY,
    STALLED,
    UNSETTLED,
    OLDEST_DELETION,
    EXPORTS,
    EXPORTS_LAG,
    EXPORTS_STALE,
)
