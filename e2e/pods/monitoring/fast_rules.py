"""The chart's rules with short durations, so that nobody waits a quarter of an hour for an alert.

Only durations are other ones: how long something must last (``for``), over how long a rate is
taken, and two ages in seconds that an expression compares. What promtool says of the rules with
their real durations stands in ``tests/integration/monitoring/test_alerts.py``. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

FOR = "2s"
WINDOW = "16s"
#: Ages in seconds, by the alert that compares with them: what stands there, and what does here.
AGES = {
    "TidemarkReconcilingStalled": ("> 120", "> 3"),
    "TidemarkRecordDeletionStuck": ("> 900", "> 3"),
}
_WINDOW = re.compile(r"\[\d+[smhd]\]")


def hurried(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The groups of a PrometheusRule, each rule with short durations.

    Raises ValueError where an age does not stand in its rule any more.
    """
    return [{**group, "rules": [_rule(rule) for rule in group["rules"]]} for group in groups]


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    expression = _WINDOW.sub(f"[{WINDOW}]", rule["expr"])
    if rule.get("alert") in AGES:
        age, short = AGES[rule["alert"]]
        if not expression.endswith(age):
            raise ValueError(f"{rule['alert']} does not end with {age!r}: {expression}")
        expression = expression.removesuffix(age) + short
    found = {**rule, "expr": expression}
    if "for" in found:
        found["for"] = FOR
    return found
