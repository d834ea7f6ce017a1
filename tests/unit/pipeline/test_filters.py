"""A query's WHERE narrows what is read, and keeps every row that passes."""

import datetime
from dataclasses import dataclass

import pytest

from tidemark_pipeline.read.filters import NO_NARROWING, Narrowing, narrow


@dataclass
class Filter:
    attribute: tuple[str, ...]
    value: object = None


def made(kind: str, column: str, value: object) -> object:
    return type(kind, (Filter,), {})((column,), value)


# A record's timestamp has no half milliseconds, so that bounds have to be rounded.
T0 = datetime.datetime(2024, 1, 1, microsecond=1500, tzinfo=datetime.UTC)
T0_MS = 1_704_067_200_001
BOTH = Narrowing(since_ms=T0_MS, until_ms=T0_MS)


def among(*values: object) -> frozenset[object]:
    return frozenset(values)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([("EqualTo", "partition", 3)], Narrowing(partitions=among(3))),
        (
            [("In", "partition", [1, 2]), ("In", "partition", [2, 3])],
            Narrowing(partitions=among(2)),
        ),
        ([("EqualTo", "topic", "a")], Narrowing(topics=among("a"))),
        (
            [("GreaterThan", "offset", 4), ("LessThanOrEqual", "offset", 9)],
            Narrowing(first_offset=5, last_offset=9),
        ),
        (
            [("GreaterThanOrEqual", "offset", 4), ("LessThan", "offset", 9)],
            Narrowing(first_offset=4, last_offset=8),
        ),
        ([("In", "offset", [7, 4])], Narrowing(first_offset=4, last_offset=7)),
        ([("GreaterThanOrEqual", "timestamp", T0)], Narrowing(since_ms=T0_MS)),
        (
            [("EqualTo", "timestamp", T0), ("GreaterThan", "Timestamp", T0.replace(year=2023))],
            BOTH,
        ),
        ([("LessThan", "timestamp", T0)], Narrowing(until_ms=T0_MS)),
        (
            [
                ("LessThanOrEqual", "timestamp", T0),
                ("LessThan", "timestamp", T0.replace(year=2099)),
            ],
            Narrowing(until_ms=T0_MS),
        ),
        ([("In", "timestamp", [T0, T0.replace(year=2099)]), ("LessThan", "timestamp", T0)], BOTH),
        ([("StringContains", "topic", "a"), ("EqualTo", "value", b"x")], NO_NARROWING),
        ([("EqualTo", "offset", None), ("GreaterThan", "partition", 3)], NO_NARROWING),
    ],
    ids=[
        *("partition", "partitions", "topic", "open-offsets", "offsets", "some-offsets"),
        *("since", "later", "until", "sooner", "some-times", "others", "unknown"),
    ],
)
def test_comparisons_narrow_the_read(
    filters: list[tuple[str, str, object]], expected: Narrowing
) -> None:
    assert narrow(made(*filter_) for filter_ in filters) == expected


def test_other_predicates_are_ignored() -> None:
    negated = type("Not", (), {"child": made("EqualTo", "partition", 3)})()
    is_null = type("IsNotNull", (), {"attribute": ("partition",)})()
    assert narrow([negated, is_null, made("EqualTo", "a", 1)]) == NO_NARROWING
