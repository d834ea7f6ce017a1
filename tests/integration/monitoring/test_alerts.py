"""Every alert fires with its text and resolves: promtool's unit tests, generated from a table."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.alert_cases import CASES, AlertCase
from tests.monitoring.programs import ensure_promtool
from tests.monitoring.rules import FILE, NAMESPACE, alerts, rules

pytestmark = pytest.mark.full

TIMEOUT_S = 100


def promtool(*arguments: str) -> None:
    """Run promtool; its output explains a failure."""
    command = [str(ensure_promtool()), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_rules() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(FILE))


def test_every_alert_has_a_case() -> None:
    assert CASES.keys() == alerts().keys()


def test_every_alert_fires_and_resolves(tmp_path: Path) -> None:
    """All at once, each in a namespace of its own; "other" is one in which everything is wrong."""
    all_rules, files = tmp_path / "rules.json", []
    all_rules.write_text(
        json.dumps({"groups": [{"name": name, "rules": _needed(name)} for name in CASES]})
    )
    # One file for each step, because promtool has one interval per file.
    for step in sorted({case.step for case in CASES.values()}):
        file = tmp_path / f"{step}.json"
        cases = {name: case for name, case in CASES.items() if case.step == step}
        body = {
            "rule_files": [str(all_rules)],
            "evaluation_interval": f"{step}m",
            "tests": [_group(cases, step)],
        }
        file.write_text(json.dumps(body))
        files.append(str(file))
    promtool("test", "rules", *files)


def _needed(alert: str) -> list[dict[str, Any]]:
    """Return the alert, after the recording rules that it uses, for the namespace of its case."""
    expression = alerts()[alert]["expr"]
    # Recording rules come before the alerts that use them.
    recorded = [rule for rule in rules() if "record" in rule and rule["record"] in expression]
    return [
        {**rule, "expr": rule["expr"].replace(f'"{NAMESPACE}"', f'"{alert}"')}
        for rule in (*recorded, alerts()[alert])
    ]


def _group(cases: Mapping[str, AlertCase], step: int) -> dict[str, Any]:
    series = {
        _of(sample, namespace): values
        for name, case in cases.items()
        for sample, good in case.series.items()
        # The other namespace has a large value of every series, which must not matter.
        for namespace, values in ((name, good), ("other", "1x4000"))
    }
    return {
        "interval": f"{step}m",
        "input_series": [{"series": sample, "values": values} for sample, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minutes}m", "alertname": name, "exp_alerts": fired}
            for name, case in cases.items()
            # Before, during and after the condition.
            for minutes, fired in (
                (case.not_yet, []),
                (case.fires, [_fired(name, case)]),
                (case.over, []),
            )
        ],
    }


def _fired(name: str, case: AlertCase) -> dict[str, Any]:
    rule = alerts()[name]
    return {
        "exp_labels": {"namespace": name, **rule["labels"], **case.labels},
        "exp_annotations": {
            # Labels in annotations are replaced as Prometheus does it.
            key: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: case.labels[found[1]], text)
            for key, text in rule["annotations"].items()
        },
    }


def _of(series: str, namespace: str) -> str:
    name, _, labels = series.rstrip("}").partition("{")
    matchers = ", ".join(filter(None, (labels, f'namespace="{namespace}"')))
    return f"{name}{{{matchers}}}"
