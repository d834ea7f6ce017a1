"""The operator's metrics: one table of names, so that alerts and dashboards have one place to look.

Labels are closed sets (kinds, outcomes, states); nothing is labelled with a topic.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """One operator process. Each has a registry of its own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.reconciles = Counter(
            "tidemark_operator_reconciles",
            "Reconciliations by kind and outcome (done, retry, error).",
            ("kind", "outcome"),
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "tidemark_operator_reconcile_seconds",
            "Duration of a reconciliation.",
            ("kind",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.queue_depth = Gauge(
            "tidemark_operator_queue_depth", "Keys waiting for a worker.", registry=registry
        )
        self.queue_head_age = Gauge(
            "tidemark_operator_queue_head_age_seconds",
            "How long the oldest key has been waiting or worked on.",
            registry=registry,
        )
        self.last_pass = Gauge(
            "tidemark_operator_last_successful_pass_timestamp_seconds",
            "Unix time of the last reconciliation that ended well.",
            registry=registry,
        )
        self.commits = Counter(
            "tidemark_operator_group_commits", "Group commits.", registry=registry
        )
        self.commit_seconds = Histogram(
            "tidemark_operator_group_commit_seconds",
            "Duration of a group commit.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self.decisions = Counter(
            "tidemark_operator_decisions_committed", "Decisions stored.", registry=registry
        )
        self.slice_writes = Counter(
            "tidemark_operator_slice_writes", "Slices written.", registry=registry
        )
        self.status_writes = Counter(
            "tidemark_operator_status_writes",
            "Statuses written, by kind.",
            ("kind",),
            registry=registry,
        )
        self.conflicts = Counter(
            "tidemark_operator_conflicts",
            "Writes that met another resourceVersion, by kind.",
            ("kind",),
            registry=registry,
        )
        self.leader = Gauge(
            "tidemark_operator_leader", "1 while this process leads.", registry=registry
        )
        self.controller_epoch = Gauge(
            "tidemark_controller_epoch", "Controller epoch of this process.", registry=registry
        )
        self.brokers = Gauge(
            "tidemark_brokers", "Brokers by state (live, fenced).", ("state",), registry=registry
        )
        self.topics = Gauge(
            "tidemark_topics",
            "Topics by tiering state (None, Enabled, Disabling, Disabled).",
            ("tiering",),
            registry=registry,
        )
        self.partitions = Gauge("tidemark_partitions", "Partitions placed.", registry=registry)
        self.offline = Gauge(
            "tidemark_partitions_offline", "Partitions without a leader.", registry=registry
        )
        self.under_replicated = Gauge(
            "tidemark_partitions_under_replicated",
            "Partitions whose ISR is smaller than the replication factor.",
            registry=registry,
        )
        self.placeholders = Gauge(
            "tidemark_placeholders", "Replicas that no broker could take yet.", registry=registry
        )
        self.pending_disablements = Gauge(
            "tidemark_disablements_pending_brokers",
            "Acknowledgements of DisableRemoteTopic that are waited for, over all topics.",
            registry=registry,
        )
        self.remote_bytes = Gauge(
            "tidemark_remote_bytes",
            "Bytes in the tier, by the leaders' reports.",
            registry=registry,
        )
        self.events = Counter(
            "tidemark_operator_events", "Kubernetes Events written.", registry=registry
        )

    def render(self) -> bytes:
        """The page that Prometheus reads."""
        return bytes(generate_latest(self.registry))
