"""Grafana's dashboards, made from a table of panels.

python -m tidemark.metrics.dashboards [--check] FOLDER
"""

import json
import sys
from collections.abc import Sequence

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


def _stat(title: str, query: str, unit: str = "short", width: int = 4) -> Panel:
    return Panel(title=title, queries={"": query}, unit=unit, kind="stat", width=width)


def _one(
    title: str, legend: str, query: str, unit: str = "short", *, stacked: bool = False
) -> Panel:
    return Panel(title=title, queries={legend: query}, unit=unit, stacked=stacked)


def _wide(
    title: str, legend: str, query: str, unit: str = "short", *, stacked: bool = False
) -> Panel:
    return Panel(title=title, queries={legend: query}, unit=unit, stacked=stacked, width=12)


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
            Panel(
                title="Objects that need attention",
                queries={"": _all(operator_table.STALLED, by="kind, reason")},
                kind="table",
            ),
            Panel(
                title="Objects that are not ready",
                queries={"": _all(operator_table.NOT_READY, by="kind, reason")},
                kind="table",
            ),
            Panel(
                title="Objects with other problems",
                queries={"": _all(operator_table.UNSETTLED, by="kind, condition, reason")},
                kind="table",
            ),
            _one("Objects", "{{kind}}", _all(operator_table.OBJECTS, by="kind")),
            _one(
                "Topics by tiering state",
                "{{tiering}}",
                _all(operator_table.TOPICS, by="tiering"),
                stacked=True,
            ),
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
            _one("Requests", "{{api}}", _rate(broker_table.REQUESTS, "api"), "reqps"),
            _one(
                "Response time, 99th percentile",
                "{{api}}",
                _p99(broker_table.REQUEST_SECONDS, "api"),
                "s",
            ),
            _one("Bytes", "{{direction}}", _rate(broker_table.NETWORK_BYTES, "direction"), "Bps"),
            _one("Connections", "{{pod}}", _all(broker_table.CONNECTIONS, by="pod"), stacked=True),
            _one(
                "Connections closed by brokers",
                "{{reason}}",
                _rate(broker_table.CONNECTIONS_CLOSED, "reason"),
                "cps",
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
            _one("Partitions led", "{{pod}}", _all(broker_table.LEADERS, by="pod"), stacked=True),
            _one(
                "Local logs",
                "{{pod}}",
                _all(broker_table.LOG_BYTES, by="pod"),
                "bytes",
                stacked=True,
            ),
            _one(
                "Replicas with failed storage",
                "{{pod}}",
                _all(broker_table.FAILING_REPLICAS, by="pod"),
            ),
            _one("Cores", "{{pod}}", _rate(process_table.CPU, "pod")),
            _one("Memory", "{{pod}}", _all(process_table.RESIDENT_MEMORY, by="pod"), "bytes"),
            _one(
                "Time since the last event loop iteration",
                "{{pod}}",
                _all(broker_table.LOOP_AGE, "max", "pod"),
                "s",
            ),
        ],
        "Exports": [
            _one(
                "Exports by job state",
                "{{state}}",
                _all(operator_table.EXPORTS, by="state"),
                stacked=True,
            ),
            _one("Age of the oldest table", "", _all(operator_table.EXPORTS_STALE), "s"),
            _one("Offsets missing in tables", "", _all(operator_table.EXPORTS_LAG)),
            _one("Failed runs", "", _rate(operator_table.FAILED_EXPORTS)),
        ],
        "Tier": [
            Panel(
                title="Tier traffic",
                queries={
                    "copied": _rate(tier_table.COPY_BYTES),
                    "read": _rate(tier_table.FETCH_BYTES),
                },
                unit="Bps",
            ),
            _one(
                "Waiting for upload",
                "{{pod}}",
                _all(tier_table.COPY_LAG_BYTES, by="pod"),
                "bytes",
                stacked=True,
            ),
            Panel(
                title="What fails",
                queries={
                    "copies": _rate(tier_table.COPY_ERRORS),
                    "reads": _rate(tier_table.FETCH_ERRORS),
                    "deletions": _rate(tier_table.DELETE_ERRORS),
                    "damaged objects": _rate(tier_table.INTEGRITY_ERRORS),
                },
                unit="ops",
            ),
            _one("Data in the tier", "bytes", _all(tier_table.SIZE_BYTES), "bytes"),
            _one("Store answers", "{{pod}}", _all(tier_table.STORE_AVAILABLE, "min", "pod")),
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
            _one("Groups", "{{state}}", _all(broker_table.GROUPS, by="state"), stacked=True),
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
            _one(
                "Reconciliations",
                "{{kind}} {{outcome}}",
                _rate(operator_table.RECONCILES, "kind, outcome"),
                "ops",
            ),
            _one(
                "Reconcile time, 99th percentile",
                "{{kind}}",
                _p99(operator_table.RECONCILE_SECONDS, "kind"),
                "s",
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
            _wide("Offsets", "{{range}}", _of_topic(topic_table.OFFSETS, "range"), stacked=True),
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
            _wide(
                "Records per second",
                "records",
                f"deriv({_of_topic(topic_table.END_OFFSETS)}[{_RATE}:])",
            ),
            _wide(
                "Tier traffic in bytes per second",
                "bytes",
                f"deriv({_of_topic(topic_table.REMOTE_BYTES)}[{_RATE}:])",
                "Bps",
            ),
            _wide(
                "Partitions by tiering state",
                "{{tiering}}",
                _of_topic(topic_table.PARTITIONS, "tiering"),
                stacked=True,
            ),
            _wide(
                "Leaders' logs by broker",
                "{{pod}}",
                _of_topic(topic_table.LOCAL_BYTES, "pod"),
                "bytes",
                stacked=True,
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
