"""Expressions of clients: what RE2J takes is taken, and nothing takes long."""

import pytest

from tidemark_broker.groups.core.topic_patterns import BadPattern, compiled

NAMES = ("orders", "orders.eu", "orders_1", "a+b", "O", "aaa", "x", "yx", "a{2", "a{,2}")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders", ("orders",)),
        (r"orders\..*", ("orders.eu",)),
        (r"\w+", ("orders", "orders_1", "O", "aaa", "x", "yx")),
        (r"[\w.]+\d", ("orders_1",)),
        (r"\Qa+b\E", ("a+b",)),
        (r"(?i)o", ("O",)),
        ("x|y", ("x",)),
        ("a{3}", ("aaa",)),
        ("[[:upper:]]", ("O",)),
        ("(?:a|b)*", ("aaa",)),
        ("^x$", ("x",)),
        # As RE2J has them, other engines of its kind have not.
        ("a{2", ("a{2",)),
        ("a{,2}", ("a{,2}",)),
        ("[x&&y]+", ("x", "yx")),
        ("[x[]+", ("x",)),
        (r"\<x", ()),
        (r"[\d]", ()),
        ("[^a-z]", ("O",)),
        ("(?P<name>x)", ("x",)),
        (r"\x78", ("x",)),
        (r"[]x]", ("x",)),
        ("[+-Z]", ("O",)),
        ("a{3}?", ("aaa",)),
    ],
)
def test_a_name_is_matched_as_a_whole(pattern: str, expected: tuple[str, ...]) -> None:
    matches = compiled(pattern)
    assert tuple(name for name in NAMES if matches(name)) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)(b", "[a", "a\\", "{3}", "(?=a)", r"(a)\1", r"\pL", "a" * 1001),
        *("a{1001}", "(a{40}){40}", "((a{9}){9}){99}", "a{99999999999999999999}"),
        *("a**", "a+{2}", "(?x)a b", "(?R)", "[a--b]", r"\u0061", r"\Z", "[a", "[", r"[\pL]", "*"),
    ],
    ids=range(25),
)
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern) as refused:
        compiled(pattern)
    assert str(refused.value)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(a|a?)+b", "(.*)*b"])
def test_matching_never_backtracks(pattern: str) -> None:
    """Python's engine would need longer than the universe lasts."""
    assert not compiled(pattern)("a" * 249)
