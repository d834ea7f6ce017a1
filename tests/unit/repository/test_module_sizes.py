"""Packages grow neither in lines, nor in fragments, nor in crowded folders."""

import ast
import dataclasses
from pathlib import Path

import pytest

from tools import module_sizes
from tools.module_sizes import ModuleSizes, code_lines, measured

SMALL = ModuleSizes(code_lines=10, folders={"a": 31}, fragments=frozenset({"a/b.py"}))


def test_packages_have_not_grown() -> None:
    assert measured().growth(ModuleSizes.recorded()) == []


def test_fragments_and_crowded_folders_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "p"
    package.mkdir()
    files = {f"m{number}": "" for number in range(31)}
    # A neighbour imports `fragment`; `shared` has two importers, `entry` has none.
    files |= {"fragment": "X = 1\n", "shared": "", "entry": "from p import fragment, shared\n"}
    files |= {"other": "import p.shared\n"}
    for name, text in files.items():
        (package / f"{name}.py").write_text(text, "utf-8")
    monkeypatch.setattr(module_sizes, "ROOT", tmp_path)
    monkeypatch.setattr(module_sizes, "packages", lambda: [package])
    found = measured()
    assert found.fragments == {"p/fragment.py"}
    assert found.folders == {"p": len(files)}
    assert found.code_lines == 3


def test_comments_docstrings_and_blank_lines_are_no_code() -> None:
    text = '"""Text."""\n\n# Comment.\nX = (\n    1  # one\n)\n'
    text += '\n\ndef f():\n    """Text\n    again."""\n'
    assert code_lines(text, ast.parse(text)) == 4


@pytest.mark.parametrize(
    "grown",
    [{"code_lines": 11}, {"folders": {"a": 32}}, {"folders": {"b": 31}}, {"fragments": {"c.py"}}],
    ids=["lines", "crowded folder", "new folder", "fragment"],
)
def test_growth_is_a_failure(grown: dict[str, object]) -> None:
    assert len(dataclasses.replace(SMALL, **grown).growth(SMALL)) == 1
    assert SMALL.growth(SMALL) == []


def test_record_is_only_lowered() -> None:
    now = ModuleSizes(code_lines=11, folders={}, fragments=frozenset({"a/b.py", "c.py"}))
    lowered = SMALL.lowered_to(now)
    assert lowered == ModuleSizes(10, {}, frozenset({"a/b.py"}))
