"""The picture in docs/reference/top.md is a frame of ``tidemark top``, and loads nothing."""

from pathlib import Path

from tools.top_picture import main, render

DOCS = Path(__file__).parents[3] / "docs"


def test_picture_is_current() -> None:
    assert main(["--check", str(DOCS / "images" / "top.svg")]) == 0


def test_picture_is_in_its_page_and_loads_nothing() -> None:
    drawn = render()
    assert drawn == render()
    # References to gradients within the picture are allowed.
    assert "url(http" not in drawn.replace('url("', "url(")
    assert "<image" not in drawn
    assert all(glyph in drawn for glyph in "░▒█")
    page = (DOCS / "reference" / "top.md").read_text("utf-8")
    assert "](../images/top.svg)" in page
