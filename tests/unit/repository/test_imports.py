"""Imports have no cycle, neither between files nor between their packages.

Imports inside functions and under TYPE_CHECKING count as well: they hide a cycle from Python, not
from a reader.
"""

from collections.abc import Callable, Iterable
from functools import cache

import grimp
import pytest

ROOTS = (
    "tidemark",
    "tidemark_avro",
    "tidemark_operator",
    "tidemark_broker",
    "tidemark_pipeline",
    "tidemark_cli",
    "tidemark_devcluster",
    "tidemark_kube",
)

Graph = dict[str, set[str]]


@cache
def _files() -> Graph:
    graph = grimp.build_graph(*ROOTS, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def _packages() -> Graph:
    """Return the imports between packages.

    Modules directly below a root combine the packages, and may import all of them.
    """
    files = _files()
    folders = {module.rpartition(".")[0] for module in files}
    folder = {name: name if name in folders else name.rpartition(".")[0] for name in files}
    rooms = {name for name in folders if "." in name}
    graph: Graph = {room: set() for room in rooms}
    for module, imported in files.items():
        if (room := folder[module]) in rooms:
            graph[room] |= {folder[other] for other in imported} & rooms - {room}
    return graph


def cycles(graph: Graph) -> list[set[str]]:
    """Return the strongly connected components of more than one node (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        # The node is the root of a component, whose nodes are on top of the stack.
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def _sorted(sets: Iterable[set[str]]) -> list[list[str]]:
    return sorted(sorted(names) for names in sets)


@pytest.mark.parametrize("graph", [_files, _packages], ids=["files", "packages"])
def test_imports_have_no_cycle(graph: Callable[[], Graph]) -> None:
    assert cycles(graph()) == []


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert _sorted(cycles(graph)) == [["a", "b", "c"], ["d", "e"]]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
