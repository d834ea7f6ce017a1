"""The operator's metrics: one table of names, so that alerts and dashboards have one place to look.

Labels are closed sets (kinds, outcomes, states); nothing is labelled with a topic.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: Name and help of every metric; counters are shown with ``_total``.
HELP = {
    "tidemark_operator_reconciles": "Reconciliations by kind and outcome (done, retry, error).",
    "tidemark_operator_reconcile_seconds": "Duration of a reconciliation.",
    "tidemark_operator_queue_depth": "Keys waiting for a worker.",
    "tidemark_operator_queue_head_age_seconds": "How long the oldest key has been under way.",
    "tidemark_operator_last_successful_pass_timestamp_seconds": (
        "Unix time of the last reconciliation that ended well."
    ),
    "tidemark_operator_group_commits": "Group commits.",
    "tidemark_operator_group_commit_seconds": "Duration of a group commit.",
    "tidemark_operator_decisions_committed": "Decisions stored.",
    "tidemark_operator_slice_writes": "Slices written.",
    "tidemark_operator_status_writes": "Statuses written, by kind.",
    "tidemark_operator_conflicts": "Writes that met another resourceVersion, by kind.",
    "tidemark_operator_events": "Kubernetes Events written.",
    "tidemark_operator_leader": "1 while this process leads.",
    "tidemark_controller_epoch": "Controller epoch of this process.",
    "tidemark_brokers": "Brokers by state (live, fenced).",
    "tidemark_topics": "Topics by tiering state (None, Enabled, Disabling, Disabled).",
    "tidemark_partitions": "Partitions placed.",
    "tidemark_partitions_offline": "Partitions without a leader.",
    "tidemark_partitions_under_replicated": "Partitions whose ISR is below their replicas.",
    "tidemark_placeholders": "Replicas that no broker could take yet.",
    "tidemark_disablements_pending_brokers": (
        "Brokers whose acknowledgement of a disablement is waited for, over all topics."
    ),
    "tidemark_remote_bytes": "Bytes in the tier, by the leaders' reports.",
}


class Metrics:
    """One operator process. Each has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = self._counter("tidemark_operator_reconciles", "kind", "outcome")
        self.reconcile_seconds = self._histogram("tidemark_operator_reconcile_seconds", "kind")
        self.queue_depth = self._gauge("tidemark_operator_queue_depth")
        self.queue_head_age = self._gauge("tidemark_operator_queue_head_age_seconds")
        self.last_pass = self._gauge("tidemark_operator_last_successful_pass_timestamp_seconds")
        self.commits = self._counter("tidemark_operator_group_commits")
        self.commit_seconds = self._histogram("tidemark_operator_group_commit_seconds")
        self.decisions = self._counter("tidemark_operator_decisions_committed")
        self.slice_writes = self._counter("tidemark_operator_slice_writes")
        self.status_writes = self._counter("tidemark_operator_status_writes", "kind")
        self.conflicts = self._counter("tidemark_operator_conflicts", "kind")
        self.events = self._counter("tidemark_operator_events")
        self.leader = self._gauge("tidemark_operator_leader")
        self.controller_epoch = self._gauge("tidemark_controller_epoch")
        self.brokers = self._gauge("tidemark_brokers", "state")
        self.topics = self._gauge("tidemark_topics", "tiering")
        self.partitions = self._gauge("tidemark_partitions")
        self.offline = self._gauge("tidemark_partitions_offline")
        self.under_replicated = self._gauge("tidemark_partitions_under_replicated")
        self.placeholders = self._gauge("tidemark_placeholders")
        self.pending_disablements = self._gauge("tidemark_disablements_pending_brokers")
        self.remote_bytes = self._gauge("tidemark_remote_bytes")

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(name, HELP[name], labels, registry=self.registry)

    def _gauge(self, name: str, *labels: str) -> Gauge:
        return Gauge(name, HELP[name], labels, registry=self.registry)

    def _histogram(self, name: str, *labels: str) -> Histogram:
        return Histogram(name, HELP[name], labels, buckets=_BUCKETS, registry=self.registry)

    def render(self) -> bytes:
        """The page that Prometheus reads."""
        return bytes(generate_latest(self.registry))
