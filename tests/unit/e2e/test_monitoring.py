"""Checks of `make e2e` on the chart's ServiceMonitors and rules."""

import re
from typing import Any

import pytest

from e2e.pods.monitoring.fast_rules import AGES, FOR, WINDOW, hurried
from e2e.pods.monitoring.scraping import jobs
from tests.monitoring.rules import alerts, groups


def monitor(**endpoint: Any) -> dict[str, Any]:
    """Return a ServiceMonitor for a Service with one label."""
    return {
        "metadata": {"name": "brokers", "namespace": "home"},
        "spec": {
            "selector": {"matchLabels": {"tidemark.dev/metrics": "broker"}},
            "endpoints": [{"port": "metrics", "interval": "30s", **endpoint}],
        },
    }


def test_job_keeps_targets_of_its_selector_and_port() -> None:
    (job,) = jobs([monitor(path="/metrics/topics")], 2)
    assert job["metrics_path"] == "/metrics/topics"
    assert job["scrape_interval"] == "2s"
    assert job["kubernetes_sd_configs"][0]["namespaces"] == {"names": ["home"]}
    kept = {
        item["source_labels"][0]: item["regex"]
        for item in job["relabel_configs"]
        if item.get("action") == "keep"
    }
    assert kept == {
        "__meta_kubernetes_service_label_tidemark_dev_metrics": "broker",
        "__meta_kubernetes_endpointslice_port_name": "metrics",
    }


def test_relabelings_become_prometheus_own() -> None:
    relabeling = {"sourceLabels": ["__metrics_path__"], "targetLabel": "metrics_path"}
    (job,) = jobs([monitor(relabelings=[relabeling])], 2)
    assert job["relabel_configs"][-1] == {
        "source_labels": ["__metrics_path__"],
        "target_label": "metrics_path",
    }


def test_untranslated_field_is_refused() -> None:
    with pytest.raises(ValueError, match="tlsConfig"):
        jobs([monitor(tlsConfig={})], 2)


def test_rules_change_in_durations_alone() -> None:
    made = {
        rule["alert"]: rule
        for group in hurried(groups())
        for rule in group["rules"]
        if "alert" in rule
    }
    for name, real in alerts().items():
        hurry = made[name]
        assert ("for" in hurry) == ("for" in real)
        assert hurry.get("for", FOR) == FOR
        # Without the shortened durations, nothing else may differ.
        expression = hurry["expr"].replace(WINDOW, "")
        if name in AGES:
            age, short = AGES[name]
            expression = expression.removesuffix(short) + age
        assert expression == re.sub(r"(?<=\[)\d+[smhd](?=\])", "", real["expr"])
        assert {**hurry, "expr": "", "for": ""} == {**real, "expr": "", "for": ""}


def test_an_age_that_has_changed_is_noticed() -> None:
    name = next(iter(AGES))
    with pytest.raises(ValueError, match="does not end with"):
        hurried([{"name": "one", "rules": [{"alert": name, "expr": "up > 1"}]}])
