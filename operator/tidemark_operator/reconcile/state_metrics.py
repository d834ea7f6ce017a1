"""Metrics that are computed from the state when the page is read.

With thousands of objects a full count would be the most expensive work of an idle operator, so most
figures are counted as they change. A placeholder counts as missing.
"""

import datetime as dt
from collections import Counter
from collections.abc import Collection

from tidemark.metrics import operator_table
from tidemark.metrics.families import Values
from tidemark.metrics.metric import Metric
from tidemark.tiering import TieringState
from tidemark_operator.clock import utc_now, wall_ms
from tidemark_operator.controller.exports import state_of
from tidemark_operator.controller.state.model import NO_LEADER
from tidemark_operator.controller.tiering_disablement import pending, state_name
from tidemark_operator.kube.kinds import WATCHED
from tidemark_operator.reconcile.services import TermServices

#: Conditions that are in a bad state while they are True.
_BAD_IF_TRUE = ("Draining", "TieringLagging")
#: Conditions that are not as they should be, and the metric that counts them. Reconciling and
#: Registered add nothing to Ready.
_WRONG = {
    ("Ready", "False"): operator_table.NOT_READY,
    ("Succeeded", "False"): operator_table.NOT_READY,
    ("Stalled", "True"): operator_table.STALLED,
    **{
        (name, "True" if name in _BAD_IF_TRUE else "False"): operator_table.UNSETTLED
        for name in operator_table.UNSETTLED.labels[1].values
    },
}


def measure(services: TermServices) -> None:
    """Set the operator's metrics from the state and the stored objects, without an API call."""
    state, queue = services.state, services.queue
    waiting = (state.row(key) for key in state.partitions.with_placeholders)
    # Metrics without labels have one value each.
    single: dict[Metric, float] = {
        operator_table.QUEUE_DEPTH: queue.depth,
        operator_table.QUEUE_HEAD_AGE: queue.head_age_s(),
        operator_table.PARTITIONS: state.partitions.count,
        operator_table.OFFLINE: state.partitions.leader_count(NO_LEADER),
        operator_table.UNDER_REPLICATED: state.short_of_replicas(),
        operator_table.PLACEHOLDERS: sum(row.placeholders for row in waiting if row is not None),
        operator_table.REMOTE_BYTES: sum(report.remote_bytes for report in state.reports.values()),
    }
    services.metrics.measured.take(
        {
            **{row: {(): value} for row, value in single.items()},
            operator_table.BROKERS: _registered(services, are_readers=False),
            operator_table.READERS: _registered(services, are_readers=True),
            **_tiering(services),
            **_conditions(services),
            **_exports(services),
        }
    )


def _registered(services: TermServices, *, are_readers: bool) -> Values:
    """Return the numbers of registered brokers, each of which is either live or fenced."""
    brokers = services.state.brokers.values()
    found = [item.live for item in brokers if item.registered and item.is_reader == are_readers]
    return {("live",): sum(found), ("fenced",): len(found) - sum(found)}


def _tiering(services: TermServices) -> dict[Metric, Values]:
    state = services.state
    disabling = (state.topics[key] for key in state.topics.disabling)
    waiting = sum(len(pending(state, topic, services.disablements)) for topic in disabling)
    return {
        operator_table.TOPICS: {
            (state_name(tiering),): state.topics.tierings[tiering] for tiering in TieringState
        },
        operator_table.PENDING_DISABLEMENTS: {(): waiting},
    }


def _conditions(services: TermServices) -> dict[Metric, Values]:
    """Count objects by wrong condition and reason; combinations without an object are left out."""
    wrong: dict[Metric, Counter[tuple[str, ...]]] = {row: Counter() for row in _WRONG.values()}
    # The counts are maintained with each change of an object, so nothing is scanned here.
    for (kind, type_, status, reason), number in services.objects.counts.conditions.items():
        row = _WRONG.get((type_, status))
        if row is not None:
            # The metric of unsettled objects also has the condition type as a label.
            named = (type_,) if row is operator_table.UNSETTLED else ()
            wrong[row][kind, *named, reason] += number
    return {
        operator_table.OBJECTS: {(kind.kind,): services.objects.count(kind) for kind in WATCHED},
        **wrong,
        operator_table.OLDEST_DELETION: {(): _oldest_s(services.objects.counts.under_way.values())},
    }


def _exports(services: TermServices) -> dict[Metric, Values]:
    """Return the metrics of Exports: their number by state, the lag in records and in seconds."""
    now_ms = wall_ms()
    states: Counter[str] = Counter()
    lag, stale_ms = 0, 0
    for export, job in services.state.exports.all():
        states[state_of(export, job)] += 1
        lag += (job.report and job.report.lag) or 0
        # Only continuous exports have a lag in time; a scheduled one is idle between runs.
        if export.schedule is None and not export.suspended:
            current_ms = (job.report and job.report.current_ms) or export.current_ms or now_ms
            stale_ms = max(stale_ms, now_ms - current_ms)
    (label,) = operator_table.EXPORTS.labels
    return {
        operator_table.EXPORTS: {(name,): states[name] for name in label.values},
        operator_table.EXPORTS_LAG: {(): lag},
        operator_table.EXPORTS_STALE: {(): stale_ms / 1000},
    }


def _oldest_s(made: Collection[str]) -> float:
    if not made:
        return 0.0
    return max(0.0, (utc_now() - dt.datetime.fromisoformat(min(made))).total_seconds())
