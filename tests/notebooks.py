"""``python -m tests.notebooks FILE``: run a notebook's cells one after the other, without Jupyter.

Jupyter's own way (nbclient, a kernel, its debugger, its messages) is some thirty packages more, for
cells of plain Python that share their names. So our notebooks keep to what needs no kernel, and
:func:`faults` says where one does not: no magics, no awaiting, nothing that has been run is kept.
What a cell ends with is shown, as there.
"""

import ast
import json
import linecache
import os
import sys
from pathlib import Path
from typing import Any

_FORMAT = (4, 5)
_CELL = {"cell_type", "id", "metadata", "source"}
_OF_KIND = {"code": {"execution_count", "outputs"}, "markdown": set[str]()}


def load(path: Path) -> dict[str, Any]:
    """The notebook as its format has it."""
    return dict(json.loads(path.read_text("utf-8")))


def sources(notebook: dict[str, Any]) -> list[str]:
    """Return the sources of the notebook's code cells, in order."""
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def faults(notebook: dict[str, Any]) -> list[str]:
    """Return the problems of a notebook for Jupyter, for a run here, or for a review."""
    found = []
    if (notebook.get("nbformat"), notebook.get("nbformat_minor")) != _FORMAT:
        found.append(f"its format is not {'.'.join(map(str, _FORMAT))}")
    ids = [cell.get("id") for cell in notebook["cells"]]
    if len(set(ids)) != len(ids):
        found.append("two cells have one id")
    for cell in notebook["cells"]:
        if set(cell) != _CELL | _OF_KIND[cell["cell_type"]]:
            found.append(f"{cell['id']}: its fields are {', '.join(sorted(cell))}")
        if cell.get("outputs") or cell.get("execution_count") is not None:
            found.append(f"{cell['id']}: it was run, and what came of it is kept")
    for number, source in enumerate(sources(notebook), start=1):
        try:
            compile(source, f"cell {number}", "exec")
        except SyntaxError as error:
            found.append(f"cell {number} is no plain Python: {error}")
    return found


def run(path: Path) -> None:
    """In the notebook's own folder, as Jupyter does. Raises what a cell raises."""
    os.chdir(path.parent)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(sources(load(path)), start=1):
        print(f"[{number}]", flush=True)
        _run_cell(source, f"cell {number}", names)


def _run_cell(source: str, name: str, names: dict[str, Any]) -> None:
    # A traceback shows the lines of what failed.
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), names)
        if value is not None:
            print(repr(value), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve())
