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

In Prometheus' text format: the operator's at `--metrics`, a broker's at `metrics.port`, both under
`/metrics`; the chart has ServiceMonitors ([The Helm charts](../reference/chart.md)). What stands
here is
shown, with these types and labels, and nothing else (`e2e/test_metrics.py`). A label has one of the
values that are listed, or is bounded by what stands beside it. [Alerts](../runbooks/index.md) and
dashboards are made of these.
"""
_OPERATOR = """What the state of the cluster says is shown by the operator that leads; the others
have no sample of it.
"""
_TIER = """Kafka's names where Kafka has the figure (KIP-405, KIP-963, KIP-1018). Sums over the
partitions that the broker leads.
"""
_TOPICS = f"""On a page of their own, `/metrics/topics`: as many as there are topics, though
no more than {topic_table.TOPICS_MAX} a broker, those with the most bytes. The chart scrapes it with
`metrics.serviceMonitor.topics`. Of each topic the sums over the partitions that the broker leads.
"""
_EXPORT = """The job of an `Export`, on its own page ([Exports](../how-to/exports.md)).
"""
_AUDIT = """In the file that `tidemark spark audit --prometheus` writes
([Audit](../how-to/audit.md)).
"""
_USAGE = """In the file that `tidemark spark usage --prometheus` writes
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
    """The whole page."""
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
