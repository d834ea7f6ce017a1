"""Panels of a dashboard, and their JSON for Grafana.

A panel is a title, a unit and queries. Everything else is common to all and defined here: the
layout, the variables, and the meanings of the queried metrics, from the table.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.metrics.metric import Metric

Json = dict[str, Any]

_COLUMNS = 24
_HEIGHT = {"stat": 4, "timeseries": 8, "table": 8}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: Of a version of Grafana that opens it; newer ones bring it up to date themselves.
_SCHEMA = 39


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Panel of a dashboard.

    - ``queries``: by legend, in which Grafana replaces ``{{label}}``.
    - ``unit``: Grafana's name of the unit.
    - ``kind``: ``stat``, ``timeseries`` or ``table``.
    - ``width``: of the 24 columns.
    - ``stacked``: the sum of the series has a meaning.
    """

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Selection at the top of a dashboard: a value of ``label`` of the series ``of``."""

    name: str
    of: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """Dashboard. ``uid``: its name in links. ``rows``: panels by the title of their row."""

    uid: str
    title: str
    variables: Sequence[Variable]
    rows: Mapping[str, Sequence[Panel]]

    def panels(self) -> Iterator[Panel]:
        """All panels, in their order."""
        for row in self.rows.values():
            yield from row


def render(dashboard: Dashboard, table: Mapping[str, Metric]) -> Json:
    """Return the dashboard as Grafana imports it. ``table``: metrics by name."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["tidemark"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *map(_variable, dashboard.variables)]},
        "panels": list(_laid_out(dashboard, table)),
    }


def _source() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _variable(variable: Variable) -> Json:
    query = f"label_values({variable.of}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
    }


def _laid_out(dashboard: Dashboard, table: Mapping[str, Metric]) -> Iterator[Json]:
    """Yield the panels as JSON, placed from left to right, with a title above each row.

    ``table``: the metrics by name, for the panels' descriptions.
    """
    # Grafana wants a number for each panel, and places it on a grid of ``_COLUMNS`` columns.
    number, top = 1, 0
    for title, row in dashboard.rows.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1},
        }
        number, top, left, high = number + 1, top + 1, 0, 0
        for panel in row:
            # The row is full: continue below its highest panel.
            if left + panel.width > _COLUMNS:
                left, top, high = 0, top + high, 0
            height = _HEIGHT[panel.kind]
            where = {"x": left, "y": top, "w": panel.width, "h": height}
            yield {"id": number, "gridPos": where, **_panel(panel, table)}
            number, left, high = number + 1, left + panel.width, max(high, height)
        top += high


def _panel(panel: Panel, table: Mapping[str, Metric]) -> Json:
    """Return one panel as JSON for Grafana, without number and place."""
    # Tables and single figures show the last sample only.
    stacking = {"stacking": {"mode": "normal"}, "fillOpacity": 20} if panel.stacked else {}
    # Otherwise Grafana would query a whole range.
    at_once = panel.kind != "timeseries"
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": _meaning(panel, table),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": stacking}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
                **({"instant": True} if at_once else {}),
                **({"format": "table"} if panel.kind == "table" else {}),
            }
            for place, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def _meaning(panel: Panel, table: Mapping[str, Metric]) -> str:
    """Return the meanings of the metrics that the panel queries."""
    tokens = [token for query in panel.queries.values() for token in re.findall(r"\w+", query)]
    rows = dict.fromkeys(token.removesuffix("_bucket") for token in tokens)
    return " ".join(table[name].meaning for name in rows if name in table)
