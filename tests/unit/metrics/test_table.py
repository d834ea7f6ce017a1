"""Table of metrics: names follow Prometheus's conventions, and docs/ has the page."""

import re
from collections import Counter as Count
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.monitoring.exposition import differences
from tidemark.metrics import (
    broker_table,
    families,
    operator_table,
    page,
    process_table,
    tier_table,
    topic_table,
)
from tidemark.metrics.metric import Label, Metric, MetricType, counter, gauge
from tidemark.tiering import TieringState
from tidemark_broker.groups.core.values import ConsumerGroupState, GroupState
from tidemark_operator.kube.kinds import BY_KIND

ROOT = Path(__file__).parents[3]
TABLES = (broker_table, operator_table, process_table, tier_table, topic_table)
ROWS = [row for table in TABLES for row in table.ALL]


def test_no_name_occurs_twice() -> None:
    names = Count(row.name for row in ROWS)
    assert {name for name, times in names.items() if times > 1} == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_metric_has_a_description_and_label_values(row: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]+", row.name)
    assert (row.kind is MetricType.COUNTER) == row.name.endswith("_total")
    assert re.fullmatch(r"\S.+\.", row.meaning)
    assert all(bool(label.values) != bool(label.bound) for label in row.labels)


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8") == page.render(), (
        "run make pages"
    )


def values_of(row: Metric, name: str) -> set[str]:
    return next(set(label.values) for label in row.labels if label.name == name)


def test_closed_sets_are_those_of_the_code() -> None:
    """The table is in a lower layer than the code with these values, and cannot import it."""
    groups = {*GroupState, *ConsumerGroupState} - {GroupState.DEAD}
    assert values_of(broker_table.GROUPS, "state") == {state.value for state in groups}
    assert values_of(operator_table.OBJECTS, "kind") == set(BY_KIND)
    states = {state.name.capitalize() for state in TieringState}
    assert values_of(operator_table.TOPICS, "tiering") == states
    assert values_of(topic_table.PARTITIONS, "tiering") == states


def test_deviations_from_the_table_are_found() -> None:
    reads_row = counter("a_reads", "Reads.", Label("how", ("cold", "warm")))
    rows = (reads_row, gauge("a_size_bytes", "Size."), gauge("an_age_seconds", "Age."))
    registry = CollectorRegistry()
    reads = families.counter(reads_row, registry)
    # A counter has a sample for each label value before its first increment.
    assert 'a_reads_total{how="warm"} 0.0' in generate_latest(registry).decode()
    reads.labels("cold").inc()
    # One metric has another label, one is not in the table, and one is missing.
    families.gauge(gauge("a_size_bytes", "Size.", Label("of", bound="many")), registry)
    families.gauge(gauge("another", "Another."), registry)
    shown = generate_latest(registry).decode()
    assert "_created" not in shown
    assert differences(shown, rows, {}) == [
        "an_age_seconds is not shown",
        "another is not in the table",
    ]
    reads.labels("lukewarm").inc()
    assert "a_reads_total: how is 'lukewarm'" in differences(
        generate_latest(registry).decode(), rows, {}
    )
    assert "a_reads is a counter, in the table a gauge" in differences(
        shown, [gauge("a_reads", "Reads.", *reads_row.labels)], {}
    )
