"""Generated files: written, compared, and reported with the command that writes them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tidemark.generated import command


def two(folder: Path) -> Mapping[Path, str]:
    return {folder / "a.md": "a\n", folder / "deep" / "b.md": "b\n"}


def test_written_files_are_current(tmp_path: Path) -> None:
    assert command(two, "make pages", [str(tmp_path)]) == 0
    assert (tmp_path / "deep" / "b.md").read_text() == "b\n"
    assert command(two, "make pages", ["--check", str(tmp_path)]) == 0


def test_a_difference_is_named_with_its_remedy_and_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("changed by hand\n")
    assert command(two, "make pages", ["--check", str(tmp_path)]) == 1
    output = capsys.readouterr().err
    assert "a.md is out of date: make pages" in output
    assert "b.md is out of date: make pages" in output
    assert (tmp_path / "a.md").read_text() == "changed by hand\n"
    assert not (tmp_path / "deep").exists()


def test_files_without_a_source_are_reported_and_removed_when_all_are_generated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(two, "make pages", [str(tmp_path)], owned="*.md")
    (tmp_path / "deep" / "gone.md").write_text("")
    (tmp_path / "notes.txt").write_text("")
    # Without a pattern of owned files, other files may exist in the folder.
    assert command(two, "make pages", ["--check", str(tmp_path)]) == 0
    assert command(two, "make pages", ["--check", str(tmp_path)], owned="*.md") == 1
    assert "gone.md is out of date: make pages" in capsys.readouterr().err
    assert command(two, "make pages", [str(tmp_path)], owned="*.md") == 0
    remaining = {path.name for path in tmp_path.rglob("*.*")}
    assert remaining == {"a.md", "b.md", "notes.txt"}
