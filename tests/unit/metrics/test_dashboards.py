"""Dashboards: files match the table of panels, and query existing metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.rules import ROOT, metrics_in
from tidemark.metrics import dashboards
from tidemark.metrics.dashboards import ALL

FOLDER = ROOT / "charts" / "tidemark" / "files" / "dashboards"


def panels(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboards.render_all()[name])["panels"]
    return found


def test_files_are_current() -> None:
    existing = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir()}
    assert existing == dashboards.render_all(), "run make pages"


def test_a_file_that_differs_is_found(tmp_path: Path) -> None:
    assert dashboards.main([str(tmp_path)]) == 0
    assert dashboards.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "fleet.json").write_text("{}\n")
    assert dashboards.main(["--check", str(tmp_path)]) == 1


@pytest.mark.parametrize("name", ALL)
def test_panels_lie_side_by_side(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(name):
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        fields = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & fields, panel["title"]
        taken |= fields
    assert len({panel["id"] for panel in panels(name)}) == len(panels(name))


@pytest.mark.parametrize("name", ALL)
def test_every_panel_queries_what_it_shows_and_has_a_description(name: str) -> None:
    shown = dashboards._TABLE
    for panel in panels(name):
        if panel["type"] == "row":
            continue
        assert panel["description"], panel["title"]
        for target in panel["targets"]:
            queried = metrics_in(target["expr"])
            assert queried
            assert queried <= shown.keys(), panel["title"]
            # Every selector is restricted to the namespace of the dashboard.
            assert target["expr"].count("{") == target["expr"].count('{namespace="$namespace"')
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            # The legend names exactly the labels by which a graph is grouped.
            by = {
                word
                for kept in re.findall(r"by \(([^)]+)\)", target["expr"])
                for word in kept.split(", ")
            }
            assert labels == by - {"le"} or panel["type"] == "table", panel["title"]
