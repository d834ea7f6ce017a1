"""Partition that coordinates an id, computed as in Java."""

import pytest

from tidemark_broker.coordinators.coordinator_lookup import partition_of, string_hash

#: Results of ``"…".hashCode()`` in jshell.
KNOWN = [
    ("", 0),
    ("a", 97),
    ("group", 98629247),
    ("my-group", -1906497762),
    ("polygenelubricants", -(2**31)),
    ("\U0001f600", 1772899),
]


@pytest.mark.parametrize(("text", "expected"), KNOWN, ids=[str(n) for n in range(len(KNOWN))])
def test_hash_matches_java(text: str, expected: int) -> None:
    assert string_hash(text) == expected


def test_every_key_has_a_partition() -> None:
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("group", 50) == 98629247 % 50
    assert {partition_of(f"g{n}", 50) for n in range(1000)} == set(range(50))
