"""The gauges, computed from the state every few seconds. A placeholder counts as missing."""

from tidemark.tiering import TieringState
from tidemark_operator.controller.disablement import pending, state_name
from tidemark_operator.controller.model import NO_LEADER
from tidemark_operator.reconcile.services import Services


def measure(services: Services) -> None:
    """Set every gauge that the state tells; the API server is not asked."""
    metrics, state = services.metrics, services.state
    metrics.queue_depth.set(services.queue.depth)
    metrics.queue_head_age.set(services.queue.head_age_s())
    registered = [broker for broker in state.brokers.values() if broker.registered]
    live = sum(broker.live for broker in registered)
    metrics.brokers.labels("live").set(live)
    metrics.brokers.labels("fenced").set(len(registered) - live)
    metrics.partitions.set(state.partition_count)
    metrics.offline.set(state.leader_count(NO_LEADER))
    metrics.under_replicated.set(state.short_of_replicas())
    waiting = (state.row(key) for key in state.with_placeholders)
    metrics.placeholders.set(sum(row.placeholders for row in waiting if row is not None))
    metrics.remote_bytes.set(sum(report.remote_bytes for report in state.reports.values()))
    _measure_tiering(services)


def _measure_tiering(services: Services) -> None:
    counts = dict.fromkeys(map(state_name, TieringState), 0)
    waiting = 0
    for topic in services.state.topics.values():
        counts[state_name(topic.tiering.state)] += 1
        if topic.tiering.is_disabling:
            waiting += len(pending(services.state, topic, services.disablements))
    for name, number in counts.items():
        services.metrics.topics.labels(name).set(number)
    services.metrics.pending_disablements.set(waiting)
