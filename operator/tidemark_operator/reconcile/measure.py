"""The gauges, computed from the state every few seconds. A placeholder counts as missing."""

from tidemark.tiering import TieringState
from tidemark_operator.controller.model import NO_LEADER
from tidemark_operator.controller.tiering import pending, state_name
from tidemark_operator.reconcile.context import Context


def measure(context: Context) -> None:
    """Set every gauge that the state tells; the API server is not asked."""
    metrics, state = context.metrics, context.state
    metrics.queue_depth.set(context.queue.depth)
    metrics.queue_head_age.set(context.queue.head_age_s())
    registered = [broker for broker in state.brokers.values() if broker.registered]
    live = sum(broker.live for broker in registered)
    metrics.brokers.labels("live").set(live)
    metrics.brokers.labels("fenced").set(len(registered) - live)
    rows = list(state.all_rows())
    metrics.partitions.set(len(rows))
    metrics.offline.set(sum(row.leader == NO_LEADER for row in rows))
    metrics.under_replicated.set(sum(len(row.isr) < len(row.replicas) for row in rows))
    metrics.placeholders.set(sum(row.placeholders for row in rows))
    metrics.remote_bytes.set(sum(report.remote_bytes for report in state.reports.values()))
    _measure_tiering(context)


def _measure_tiering(context: Context) -> None:
    counts = dict.fromkeys(map(state_name, TieringState), 0)
    waiting = 0
    for topic in context.state.topics.values():
        counts[state_name(topic.tiering.state)] += 1
        if topic.tiering.is_disabling:
            waiting += len(pending(context.state, topic, context.disablements))
    for name, number in counts.items():
        context.metrics.topics.labels(name).set(number)
    context.metrics.pending_disablements.set(waiting)
