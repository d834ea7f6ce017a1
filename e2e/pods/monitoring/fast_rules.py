"""The chart's rules with short durations, so that tests do not wait a quarter of an hour for an
alert.

Only durations differ: a rule's ``for``, the range of a rate, and two ages in seconds that an
expression compares. ``tests/integration/monitoring/test_alerts.py`` runs promtool on the rules with
their real durations.
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
    """Return the groups of a PrometheusRule with short durations.

    Raises ValueError if an expected age is no longer in its rule.
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
