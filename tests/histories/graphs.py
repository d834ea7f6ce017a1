"""Circles in a graph of transactions: strongly connected components, and one short circle of each.

A history of an hour is a path of a hundred thousand transactions, so nothing here calls itself.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Set

Graph = Mapping[str, Set[str]]


def components(graph: Graph) -> list[set[str]]:
    """The strongly connected components of more than one node (Tarjan), in time linear in nodes
    and edges."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    stacked: set[str] = set()
    found: list[set[str]] = []
    # Tarjan's algorithm with a path in place of recursion.
    for root in graph:
        if root in order:
            continue
        path: list[tuple[str, Iterator[str]]] = []
        _enter(root, graph, order, low, stack, stacked, path)
        while path:
            node, others = path[-1]
            other = next(others, None)
            # All edges of the node are done: pass its low link to its predecessor.
            if other is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                # The node is the root of a component, which is everything above it on the stack.
                if low[node] == order[node]:
                    component = _unstack(node, stack, stacked)
                    if len(component) > 1:
                        found.append(component)
            elif other not in order:
                _enter(other, graph, order, low, stack, stacked, path)
            # An edge back into the present path closes a circle.
            elif other in stacked:
                low[node] = min(low[node], order[other])
    return found


def _enter(
    node: str,
    graph: Graph,
    order: dict[str, int],
    low: dict[str, int],
    stack: list[str],
    stacked: set[str],
    path: list[tuple[str, Iterator[str]]],
) -> None:
    order[node] = low[node] = len(order)
    stack.append(node)
    stacked.add(node)
    path.append((node, iter(sorted(graph.get(node, ())))))


def _unstack(node: str, stack: list[str], stacked: set[str]) -> set[str]:
    component: set[str] = set()
    while node not in component:
        component.add(stack.pop())
    stacked -= component
    return component


def circle(graph: Graph, component: Set[str]) -> list[str]:
    """The shortest circle through the component's first node by name, that node first."""
    start = min(component)
    came_from: dict[str, str] = {}
    # Breadth first, so the first way back to the start is a shortest one.
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for other in sorted(graph.get(node, frozenset()) & component):
            if other == start:
                return _way(came_from, start, node)
            if other not in came_from:
                came_from[other] = node
                waiting.append(other)
    raise ValueError(f"{start} is in no circle")


def _way(came_from: Mapping[str, str], start: str, node: str) -> list[str]:
    way = [node]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]
