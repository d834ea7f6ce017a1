"""The chart's copies of definitions and policies: as their sources say, and kept by Helm."""

import pytest
import yaml

from tests.chart_files import FOLDER, KEEP, ROOT, kept, main, render_all
from tests.release import version


def test_files_in_the_chart_are_what_their_sources_say() -> None:
    assert main(["--check", str(FOLDER)]) == 0, "make crds"


def test_every_definition_is_left_where_it_is_when_a_release_ends() -> None:
    for name, text in render_all().items():
        if name.startswith("crds/"):
            annotations = yaml.safe_load(text)["metadata"]["annotations"]
            assert annotations == {"helm.sh/resource-policy": "keep"}, name


def test_a_definition_with_annotations_of_its_own_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="annotations of its own"):
        kept(f"kind: X\nmetadata:\n{KEEP}  name: x\n")
    with pytest.raises(ValueError, match="begins with metadata"):
        kept("kind: X\n")


def test_charts_and_images_are_of_the_version_of_the_packages() -> None:
    for path in ROOT.glob("charts/*/Chart.yaml"):
        chart = yaml.safe_load(path.read_text("utf-8"))
        assert (chart["version"], chart["appVersion"]) == (version(), version()), path.parent.name
    for path in ROOT.glob("*/Dockerfile"):
        assert f"\nARG VERSION={version()}\n" in path.read_text("utf-8"), path.parent.name
