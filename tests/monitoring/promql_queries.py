"""Queries of dashboards, recording rules and alerts, each of which must return data."""

import re
from collections.abc import Callable, Mapping
from math import isnan
from typing import Any

from tests.monitoring.rules import NAMESPACE, recorded, rules
from tidemark.metrics.dashboards import ALL

#: What a panel's variables are.
WINDOW = "10s"
#: Shown of what is wrong alone; one thing is wrong in the tests.
OF_WRONG = ("tidemark_objects_stalled", "tidemark_objects_not_ready")
#: Shown of what is wrong otherwise; such queries need only be taken.
UNSETTLED = "tidemark_objects_unsettled"
_SERIES = re.compile(r"[\w:]+\{[^}]*\}")

Query = Callable[[str], list[dict[str, Any]]]


def queries(topic: str) -> Mapping[str, str]:
    """Return the queries of dashboards, recording rules and the series of alerts, by location."""
    found: dict[str, str] = {}
    for name, dashboard in ALL.items():
        for panel in dashboard.panels():
            for legend, query in panel.queries.items():
                # The variables that Grafana fills in.
                text = query.replace("$namespace", NAMESPACE).replace("$topic", topic)
                found[f"{name}: {panel.title}: {legend}"] = text.replace("$__rate_interval", WINDOW)
    # An alert's expression has no result while nothing is wrong, so its series are queried.
    for rule in rules():
        for place, series in enumerate(_SERIES.findall(rule["expr"])):
            name = series.partition("{")[0]
            wrong = name in OF_WRONG
            found[f"{rule.get('alert') or rule['record']}: {place}"] = name if wrong else series
    return found | {name: name for name in recorded()}


def has_data(ask: Query, query: str) -> bool:
    """Not a number is none: a quantile of nothing, say."""
    found = ask(query)
    return UNSETTLED in query or any(not isnan(float(item["value"][1])) for item in found)
