"""Subscription expressions: RE2J's syntax is accepted, and matching never takes long."""

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
        # RE2J differs from other RE2 engines here.
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
def test_expression_matches_the_complete_name(pattern: str, expected: tuple[str, ...]) -> None:
    matches = compiled(pattern)
    assert tuple(name for name in NAMES if matches(name)) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)(b", "[a", "a\\", "{3}", "(?=a)", r"(a)\1", r"\pL", "a" * 1001),
        # Repetitions are limited to 1,000, also where they multiply.
        *("a{1001}", "(a{40}){40}", "((a{9}){9}){99}", "a{99999999999999999999}"),
        *("a**", "a+{2}", "(?x)a b", "(?R)", "[a--b]", r"\u0061", r"\Z", "[a", "[", r"[\pL]", "*"),
    ],
    ids=range(25),
)
def test_unsupported_expression_is_rejected(pattern: str) -> None:
    with pytest.raises(BadPattern) as refused:
        compiled(pattern)
    assert str(refused.value)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(a|a?)+b", "(.*)*b"])
def test_matching_never_backtracks(pattern: str) -> None:
    """Python's engine would need longer than the universe lasts."""
    assert not compiled(pattern)("a" * 249)
