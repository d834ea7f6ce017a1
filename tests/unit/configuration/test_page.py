"""The page in the repository is the one that the table generates."""

from pathlib import Path

import pytest

from tidemark.configuration import page, table

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"


def test_page_is_current() -> None:
    assert page.main(["--check", str(PAGE)]) == 0


def test_a_differing_page_is_found_and_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "configuration.md"
    assert page.main(["--check", str(copy)]) == 1
    assert "make pages" in capsys.readouterr().err
    assert page.main([str(copy)]) == 0
    assert page.main(["--check", str(copy)]) == 0


def test_every_key_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    keys = {*table.TOPIC, *table.CLUSTER, *table.BROKER}
    not_served = {name for name, key in table.CLUSTER.items() if not key.served}
    assert {name for name in keys - not_served if f"`{name}`" not in text} == set()
