"""Every alert fires when it should, with what it says, and resolves: promtool's own unit tests,
made of a table."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.monitoring.alert_cases import CASES, AlertCase
from tests.monitoring.programs import ensure_promtool
from tests.monitoring.rules import FILE, NAMESPACE, alerts, rules

TIMEOUT_S = 60


def promtool(*arguments: str) -> None:
    """Fails with what it says."""
    command = [str(ensure_promtool()), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(FILE))


def test_every_alert_has_a_case() -> None:
    assert CASES.keys() == alerts().keys()


def test_every_alert_fires_and_resolves(tmp_path: Path) -> None:
    """Each with the rules that it needs alone: promtool evaluates all that are in a file."""
    files = []
    for name, case in CASES.items():
        rules, file = tmp_path / f"{name}.rules.json", tmp_path / f"{name}.json"
        rules.write_text(json.dumps({"groups": [{"name": "all", "rules": _needed(name)}]}))
        body = {
            "rule_files": [str(rules)],
            "evaluation_interval": f"{case.step}m",
            "tests": [_group(name, case)],
        }
        file.write_text(json.dumps(body))
        files.append(str(file))
    promtool("test", "rules", *files)


def _needed(alert: str) -> list[dict[str, Any]]:
    """The alert, behind the recording rules that it asks."""
    expression = alerts()[alert]["expr"]
    recorded = [rule for rule in rules() if "record" in rule and rule["record"] in expression]
    return [*recorded, alerts()[alert]]


def _group(name: str, case: AlertCase) -> dict[str, Any]:
    rule = alerts()[name]
    fired = {
        "exp_labels": {"namespace": NAMESPACE, **rule["labels"], **case.labels},
        "exp_annotations": {
            key: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: case.labels[found[1]], text)
            for key, text in rule["annotations"].items()
        },
    }
    others = {_of(series, "other"): "1x4000" for series in case.series}
    series = {_of(series, NAMESPACE): values for series, values in case.series.items()} | others
    return {
        "name": name,
        "interval": f"{case.step}m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{case.not_yet}m", "alertname": name, "exp_alerts": []},
            {"eval_time": f"{case.fires}m", "alertname": name, "exp_alerts": [fired]},
            {"eval_time": f"{case.over}m", "alertname": name, "exp_alerts": []},
        ],
    }


def _of(series: str, namespace: str) -> str:
    name, _, labels = series.rstrip("}").partition("{")
    return f'{name}{{{", ".join(filter(None, (labels, f"""namespace="{namespace}" """.strip())))}}}'
