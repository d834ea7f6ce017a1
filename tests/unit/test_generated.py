"""Files that are made from the code: written, compared, and told with what to run."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tidemark.generated import command


def two(folder: Path) -> Mapping[Path, str]:
    return {folder / "a.md": "a\n", folder / "deep" / "b.md": "b\n"}


def test_what_is_written_is_as_it_has_to_be(tmp_path: Path) -> None:
    assert command(two, "make pages", [str(tmp_path)]) == 0
    assert (tmp_path / "deep" / "b.md").read_text() == "b\n"
    assert command(two, "make pages", ["--check", str(tmp_path)]) == 0


def test_a_difference_is_named_with_its_remedy_and_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("changed by hand\n")
    assert command(two, "make pages", ["--check", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "a.md is out of date: make pages" in told
    assert "b.md is out of date: make pages" in told
    assert (tmp_path / "a.md").read_text() == "changed by hand\n"
    assert not (tmp_path / "deep").exists()
