"""Cycles are found, a shortest one of each component, even on long paths."""

from tests.histories.graphs import circle, components


def test_components_of_one_node_are_no_circles() -> None:
    assert components({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_each_component_is_found_with_a_shortest_circle() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"f", "d"}, "f": {"d"}}
    found = sorted(components(graph), key=min)
    assert found == [{"a", "b", "c"}, {"d", "e", "f"}]
    assert [circle(graph, component) for component in found] == [["a", "b", "c"], ["d", "e"]]


def test_long_circle_is_found() -> None:
    # A recursive search would exceed the depth that Python allows.
    names = [f"{number:06}" for number in range(50_000)]
    graph = {name: {other} for name, other in zip(names, [*names[1:], names[0]], strict=True)}
    (component,) = components(graph)
    assert circle(graph, component) == names
