"""``docs/reference/metrics.md``, made from the table.

python -m tidemark.metrics.page [--check] FILE
"""

import sys
from collections.abc import Iterable, Iterator, Sequence

from tidemark.generated import command
from tidemark.metrics import (
    audit_table,
    broker_table,
    export_table,
    operator_table,
    process_table,
    tier_table,
    topic_table,
    usage_table,
)
from tidemark.metrics.metric import Label, Metric

_HEAD = """# Metrics

<!-- Generated from tidemark/metrics by `make pages`. Do not edit. -->

Look up the metrics of operator, brokers and jobs, with their types, labels and meaning.

- The operator serves metrics at `--metrics`, a broker at `metrics.port`, both under `/metrics` in
  Prometheus' text format. The [chart](chart.md) has ServiceMonitors.
- The list is complete. A label has one of the listed values, or the stated bound.
- [Alerts](../runbooks/index.md) and dashboards use these metrics.
"""
_OPERATOR = """Only the leading operator exports metrics about the state of the cluster.
"""
_TIER = """Names are Kafka's where Kafka has the metric (KIP-405, KIP-963, KIP-1018).
Values are sums over the partitions that the broker leads.
"""
_TOPICS = f"""Brokers serve them under `/metrics/topics`, for at most {topic_table.TOPICS_MAX}
topics with the most bytes. The chart scrapes them with `metrics.serviceMonitor.topics`.
Values are sums over the partitions of a topic that the broker leads.
"""
_EXPORT = """The job of an `Export` serves them ([Exports](../how-to/exports.md)).
"""
_AUDIT = """`tidemark spark audit --prometheus` writes them to a file
([Audit](../how-to/audit.md)).
"""
_USAGE = """`tidemark spark usage --prometheus` writes them to a file
([Usage](../how-to/usage.md)).
"""
_PARTS = (
    ("Operator", _OPERATOR, operator_table.ALL),
    ("Broker", "", broker_table.ALL),
    ("Broker: the tier", _TIER, tier_table.ALL),
    ("Broker: topics", _TOPICS, topic_table.ALL),
    ("Every process", "On Linux.\n", process_table.ALL),
    ("Export", _EXPORT, export_table.ALL),
    ("Audit", _AUDIT, audit_table.ALL),
    ("Usage", _USAGE, usage_table.ALL),
)


def render() -> str:
    """Return the whole page."""
    lines = [_HEAD]
    for title, text, rows in _PARTS:
        lines += [f"## {title}\n", *([text] if text else []), *_table(rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: Iterable[Metric]) -> Iterator[str]:
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    for row in rows:
        labels = "<br>".join(map(_label, row.labels))
        yield f"| `{row.name}` | {row.kind} | {labels} | {row.meaning} |"


def _label(label: Label) -> str:
    values = ", ".join(f"`{value}`" for value in label.values)
    return f"`{label.name}`: {values or label.bound}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 when ``--check`` finds a difference."""
    return command(lambda path: {path: render()}, "make pages", arguments)


if __name__ == "__main__":
    sys.exit(main())
