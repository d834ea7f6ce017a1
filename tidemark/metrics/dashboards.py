"""Grafana's dashboards, made from a table of panels.

python -m tidemark.metrics.dashboards [--check] FOLDER
"""

import json
import sys
from collections.abc import Callable, Sequence

from tidemark.generated import command
from tidemark.metrics import (
    broker_table,
    operator_table,
    process_table,
    tier_table,
    topic_table,
)
from tidemark.metrics.metric import Metric
from tidemark.metrics.panels import Dashboard, Json, Panel, Variable, render

#: As long as Grafana thinks that a rate needs, at the scale that is looked at.
_RATE = "$__rate_interval"
_NS = 'namespace="$namespace"'
_NAMESPACE = Variable(name="namespace", of=operator_table.LEADER.name, label="namespace")
_TOPIC = Variable(name="topic", of=f"{topic_table.END_OFFSETS.name}{{{_NS}}}", label="topic")


def _all(row: Metric, aggregate: str = "sum", by: str = "", only: str = "") -> str:
    """Return a query over the namespace; ``by``: labels to keep; ``only``: further matchers."""
    matchers = ", ".join(filter(None, (_NS, only)))
    kept = f" by ({by})" if by else ""
    return f"{aggregate}{kept} ({row.name}{{{matchers}}})"


def _rate(row: Metric, by: str = "") -> str:
    kept = f" by ({by})" if by else ""
    return f"sum{kept} (rate({row.name}{{{_NS}}}[{_RATE}]))"


def _p99(row: Metric, by: str) -> str:
    inner = f"sum by ({by}, le) (rate({row.name}_bucket{{{_NS}}}[{_RATE}]))"
    return f"histogram_quantile(0.99, {inner})"


def _left(row: Metric) -> str:
    return f"{_all(row, 'min', 'pod, certificate')} - time()"


def _stat(title: str, query: str, unit: str = "short") -> Panel:
    return Panel(title=title, queries={"": query}, unit=unit, kind="stat", width=4)


def _one(
    title: str,
    legend: str,
    query: str,
    unit: str = "short",
    *,
    stacked: bool = False,
    width: int = 8,
) -> Panel:
    return Panel(title=title, queries={legend: query}, unit=unit, stacked=stacked, width=width)


def _by(
    labels: str,
    title: str,
    row: Metric,
    unit: str = "short",
    *,
    query: Callable[..., str] = _all,
    stacked: bool = False,
    width: int = 8,
) -> Panel:
    """Return a graph with a line for each value of the labels, which are its legend."""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
    return _one(title, legend, query(row, by=labels), unit, stacked=stacked, width=width)


def _table(title: str, row: Metric, by: str) -> Panel:
    return Panel(title=title, queries={"": _all(row, by=by)}, kind="table")


FLEET = Dashboard(
    uid="tidemark-fleet",
    title="Tidemark / Fleet",
    variables=[_NAMESPACE],
    rows={
        "State": [
            _stat("Active controllers", _all(operator_table.LEADER)),
            _stat("Live brokers", _all(operator_table.BROKERS, only='state="live"')),
            _stat("Fenced brokers", _all(operator_table.BROKERS, only='state="fenced"')),
            _stat("Partitions without a leader", _all(operator_table.OFFLINE)),
            _stat("Partitions below min.insync.replicas", _all(broker_table.UNDER_MIN_ISR)),
            _stat("Partitions with replicas out of sync", _all(operator_table.UNDER_REPLICATED)),
            _table("Objects that need attention", operator_table.STALLED, "kind, reason"),
            _table("Objects that are not ready", operator_table.NOT_READY, "kind, reason"),
            _table(
                "Objects with other problems", operator_table.UNSETTLED, "kind, condition, reason"
            ),
            _by("kind", "Objects", operator_table.OBJECTS),
            _by("tiering", "Topics by tiering state", operator_table.TOPICS, stacked=True),
            Panel(
                title="Partitions",
                queries={
                    "placed": _all(operator_table.PARTITIONS),
                    "placeholders": _all(operator_table.PLACEHOLDERS),
                    "Unacknowledged disablements": _all(operator_table.PENDING_DISABLEMENTS),
                },
            ),
        ],
        "Clients": [
            _by("api", "Requests", broker_table.REQUESTS, "reqps", query=_rate),
            _by(
                "api",
                "Response time, 99th percentile",
                broker_table.REQUEST_SECONDS,
                "s",
                query=_p99,
            ),
            _by("direction", "Bytes", broker_table.NETWORK_BYTES, "Bps", query=_rate),
            _by("pod", "Connections", broker_table.CONNECTIONS, stacked=True),
            _by(
                "reason",
                "Connections closed by brokers",
                broker_table.CONNECTIONS_CLOSED,
                "cps",
                query=_rate,
            ),
            Panel(
                title="Memory of requests and responses",
                queries={
                    "requests": _all(broker_table.QUEUED_BYTES),
                    "answers": _all(broker_table.ANSWER_BYTES),
                },
                unit="bytes",
            ),
        ],
        "Brokers": [
            _by("pod", "Partitions led", broker_table.LEADERS, stacked=True),
            _by("pod", "Local logs", broker_table.LOG_BYTES, "bytes", stacked=True),
            _by("pod", "Replicas with failed storage", broker_table.FAILING_REPLICAS),
            _by("pod", "Cores", process_table.CPU, query=_rate),
            _by("pod", "Memory", process_table.RESIDENT_MEMORY, "bytes"),
            _one(
                "Time since the last event loop iteration",
                "{{pod}}",
                _all(broker_table.LOOP_AGE, "max", "pod"),
                "s",
            ),
        ],
        "Exports": [
            _by("state", "Exports by job state", operator_table.EXPORTS, stacked=True),
            _one("Age of the oldest table", "", _all(operator_table.EXPORTS_STALE), "s"),
            _one("Offsets missing in tables", "", _all(operator_table.EXPORTS_LAG)),
            _one("Failed runs", "", _rate(operator_table.FAILED_EXPORTS)),
        ],
        "Tier": [
            Panel(
                title="Tier traffic",
                queries={
                    "copied": _rate(tier_table.COPY_BYTES),
                    "merged": _rate(tier_table.MERGED_BYTES),
                    "read": _rate(tier_table.FETCH_BYTES),
                },
                unit="Bps",
            ),
            _by("pod", "Waiting for upload", tier_table.COPY_LAG_BYTES, "bytes", stacked=True),
            Panel(
                title="What fails",
                queries={
                    "copies": _rate(tier_table.COPY_ERRORS),
                    "merges": _rate(tier_table.MERGE_ERRORS),
                    "reads": _rate(tier_table.FETCH_ERRORS),
                    "deletions": _rate(tier_table.DELETE_ERRORS),
                    "damaged objects": _rate(tier_table.INTEGRITY_ERRORS),
                },
                unit="ops",
            ),
            _one("Data in the tier", "bytes", _all(tier_table.SIZE_BYTES), "bytes"),
            _one("Store answers", "{{pod}}", _all(tier_table.STORE_AVAILABLE, "min", "pod")),
            Panel(
                title="Chunk cache on disk",
                queries={
                    "hits": _rate(tier_table.CHUNK_FILE_HITS),
                    "misses": _rate(tier_table.CHUNK_FILE_MISSES),
                    "evictions": _rate(tier_table.CHUNK_FILE_EVICTIONS),
                    "errors": _rate(tier_table.CHUNK_FILE_ERRORS),
                },
                unit="ops",
            ),
            Panel(
                title="Throttle time of tier quotas",
                queries={
                    "copies": _rate(tier_table.COPY_THROTTLED),
                    "reads": _rate(tier_table.FETCH_THROTTLED),
                },
                unit="s",
            ),
        ],
        "Groups, transactions, compaction": [
            _by("state", "Groups", broker_table.GROUPS, stacked=True),
            Panel(
                title="Members and transactional ids",
                queries={
                    "members": _all(broker_table.GROUP_MEMBERS),
                    "transactional ids": _all(broker_table.TRANSACTIONAL_IDS),
                },
            ),
            _one(
                "Dirty ratio of the dirtiest log",
                "{{pod}}",
                _all(broker_table.MAX_DIRTY, "max", "pod"),
                "percent",
            ),
        ],
        "Operator": [
            _by("kind, outcome", "Reconciliations", operator_table.RECONCILES, "ops", query=_rate),
            _by(
                "kind",
                "Reconcile time, 99th percentile",
                operator_table.RECONCILE_SECONDS,
                "s",
                query=_p99,
            ),
            _one("Work queue length", "keys", _all(operator_table.QUEUE_DEPTH)),
            Panel(
                title="API server writes",
                queries={
                    "slices": _rate(operator_table.SLICE_WRITES),
                    "statuses": _rate(operator_table.STATUS_WRITES),
                    "events": _rate(operator_table.EVENTS),
                },
                unit="ops",
            ),
            _one("Oldest RecordDeletion", "age", _all(operator_table.OLDEST_DELETION, "max"), "s"),
            Panel(
                title="Time until certificates expire",
                queries={
                    "{{pod}}, {{certificate}}": _left(operator_table.CERTIFICATE_EXPIRY),
                    "{{pod}}: {{certificate}}": _left(broker_table.CERTIFICATE_EXPIRY),
                },
                unit="s",
            ),
        ],
    },
)


def _of_topic(row: Metric, by: str = "") -> str:
    return _all(row, by=by, only='topic="$topic"')


TOPIC = Dashboard(
    uid="tidemark-topic",
    title="Tidemark / Tiers of a topic",
    variables=[_NAMESPACE, _TOPIC],
    rows={
        "Now": [
            _stat("on brokers (leaders' logs)", _of_topic(topic_table.LOCAL_BYTES), "bytes"),
            _stat("Data in the tier", _of_topic(topic_table.REMOTE_BYTES), "bytes"),
            _stat("Segments in the tier", _of_topic(topic_table.REMOTE_SEGMENTS)),
            _stat("To be deleted", _of_topic(topic_table.REMAINING_BYTES), "bytes"),
            _stat("Partitions with a tier error", _of_topic(topic_table.TIER_ERRORS)),
            _stat("Topics without metrics", _all(topic_table.LEFT_OUT)),
        ],
        "Where the data is": [
            _by("range", "Offsets", topic_table.OFFSETS, query=_of_topic, stacked=True, width=12),
            Panel(
                title="Bytes",
                queries={
                    "on brokers": _of_topic(topic_table.LOCAL_BYTES),
                    "in the tier": _of_topic(topic_table.REMOTE_BYTES),
                },
                unit="bytes",
                width=12,
            ),
        ],
        "How the data moves": [
            _one(
                "Records per second",
                "records",
                f"deriv({_of_topic(topic_table.END_OFFSETS)}[{_RATE}:])",
                width=12,
            ),
            _one(
                "Tier traffic in bytes per second",
                "bytes",
                f"deriv({_of_topic(topic_table.REMOTE_BYTES)}[{_RATE}:])",
                "Bps",
                width=12,
            ),
            _by(
                "tiering",
                "Partitions by tiering state",
                topic_table.PARTITIONS,
                query=_of_topic,
                stacked=True,
                width=12,
            ),
            _by(
                "pod",
                "Leaders' logs by broker",
                topic_table.LOCAL_BYTES,
                "bytes",
                query=_of_topic,
                stacked=True,
                width=12,
            ),
        ],
    },
)

#: By the names of their files.
ALL = {"fleet.json": FLEET, "topic.json": TOPIC}
_TABLE = {
    row.name: row
    for table in (broker_table, operator_table, process_table, tier_table, topic_table)
    for row in table.ALL
}


def render_all() -> dict[str, str]:
    """Return the JSON text of each file, with one panel per line."""
    return {name: _text(render(dashboard, _TABLE)) for name, dashboard in ALL.items()}


def _text(body: Json) -> str:
    head = json.dumps({name: value for name, value in body.items() if name != "panels"})
    panels = ",\n".join(map(json.dumps, body["panels"]))
    return f'{head[:-1]},\n"panels": [\n{panels}\n]}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 when ``--check`` finds a difference."""
    return command(
        lambda folder: {folder / name: text for name, text in render_all().items()},
        "make pages",
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
