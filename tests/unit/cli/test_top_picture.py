"""The picture in docs/reference/top.md is a frame of ``tidemark top``, as text that fetches
nothing."""

from pathlib import Path

from tests.top_picture import main, render

DOCS = Path(__file__).parents[3] / "docs"


def test_the_picture_is_what_is_drawn_today() -> None:
    assert main(["--check", str(DOCS / "images" / "top.svg")]) == 0


def test_the_picture_is_inline_in_its_page_and_fetches_nothing() -> None:
    drawn = render()
    assert drawn == render()
    assert "url(http" not in drawn.replace('url("', "url(")
    assert "<image" not in drawn
    assert all(glyph in drawn for glyph in "░▒█")
    page = (DOCS / "reference" / "top.md").read_text("utf-8")
    assert "](../images/top.svg)" in page
