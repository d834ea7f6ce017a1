"""Copies of definitions and policies in the chart match their sources, and Helm keeps them."""

import pytest
import yaml

from tools.chart_files import FOLDER, KEEP, ROOT, kept, main, render_all
from tools.release import version


def test_files_of_the_chart_are_current() -> None:
    assert main(["--check", str(FOLDER)]) == 0, "make crds"


def test_definitions_survive_the_end_of_a_release() -> None:
    for name, text in render_all().items():
        if name.startswith("crds/"):
            # Otherwise the end of a release would delete every object of the kind.
            annotations = yaml.safe_load(text)["metadata"]["annotations"]
            assert annotations == {"helm.sh/resource-policy": "keep"}, name


def test_definition_with_annotations_is_refused() -> None:
    with pytest.raises(ValueError, match="annotations of its own"):
        kept(f"kind: X\nmetadata:\n{KEEP}  name: x\n")
    with pytest.raises(ValueError, match="begins with metadata"):
        kept("kind: X\n")


def test_versions_of_charts_and_images_match_the_packages() -> None:
    for path in ROOT.glob("charts/*/Chart.yaml"):
        chart = yaml.safe_load(path.read_text("utf-8"))
        assert (chart["version"], chart["appVersion"]) == (version(), version()), path.parent.name
    for path in ROOT.glob("*/Dockerfile"):
        assert f"\nARG VERSION={version()}\n" in path.read_text("utf-8"), path.parent.name
