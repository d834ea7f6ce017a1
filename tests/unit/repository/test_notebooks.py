"""Notebooks are plain Python without output; anything else is reported."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import faults, load, run

NOTEBOOKS = sorted((Path(__file__).parents[3] / "examples").rglob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_in_order(path: Path) -> None:
    assert faults(load(path)) == []


def test_faults_of_a_notebook_are_reported() -> None:
    sound = load(NOTEBOOKS[0])
    # Faults are planted into the first cell with code.
    code = next(at for at, cell in enumerate(sound["cells"]) if cell["cell_type"] == "code")

    def faults_with(**changed: Any) -> str:
        notebook = copy.deepcopy(sound)
        notebook["cells"][code] |= changed
        return " ".join(faults(notebook))

    assert "is no plain Python" in faults_with(source=["!ls"])
    assert "it was run" in faults_with(outputs=[{}])
    assert "it was run" in faults_with(execution_count=1)
    assert "its fields are" in faults_with(output=[])
    assert "one id" in faults_with(id=sound["cells"][code + 1]["id"])


def test_cells_share_their_names_and_show_what_they_end_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # and back, at the end
    (tmp_path / "n.ipynb").write_text(
        '{"cells": [{"cell_type": "code", "source": ["a = 20\\n", "a + 1"]},'
        '{"cell_type": "markdown", "source": ["a = 0"]},'
        '{"cell_type": "code", "source": ["def f() -> int:\\n", "    return a + 1\\n", "f() + 1"]}'
        "]}"
    )
    run(tmp_path / "n.ipynb")
    assert capsys.readouterr().out.split() == ["[1]", "21", "[2]", "22"]
