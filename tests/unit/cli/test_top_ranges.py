"""Locations of a partition's offsets, derived from the few that its leader reports."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark_cli.top.ranges import PartitionOffsets, Range, RangePlace, cells, lag, ranges

REMOTE, BOTH, LOCAL, NOWHERE = (
    RangePlace.REMOTE,
    RangePlace.BOTH,
    RangePlace.LOCAL,
    RangePlace.NOWHERE,
)


def offsets(start: int, local: int, tier: int | None, end: int, **ends: int) -> PartitionOffsets:
    return PartitionOffsets(
        log_start=start,
        local_start=local,
        tier_end=tier,
        high_watermark=end,
        log_ends={int(node[1:]): at for node, at in ends.items()},
    )


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (offsets(0, 0, None, 100), [(LOCAL, 0, 100)]),
        (offsets(10, 40, 70, 100), [(REMOTE, 10, 40), (BOTH, 40, 70), (LOCAL, 70, 100)]),
        (offsets(0, 40, 40, 100), [(REMOTE, 0, 40), (LOCAL, 40, 100)]),
        (offsets(0, 0, 100, 100), [(BOTH, 0, 100)]),
        (offsets(0, 100, 100, 100), [(REMOTE, 0, 100)]),
        # Records below 60 are deleted, so that the tier's part is not in the log.
        (offsets(60, 60, 50, 100), [(LOCAL, 60, 100)]),
        (offsets(0, 40, 30, 100), [(REMOTE, 0, 30), (NOWHERE, 30, 40), (LOCAL, 40, 100)]),
        (offsets(5, 5, None, 5), []),
        (offsets(5, 5, None, 3), []),
    ],
    ids=["untiered", "all-three", "no-overlap", "copied", "only-remote", "deleted", "hole", "empty",
         "before-the-first-commit"],
)  # fmt: skip
def test_ranges(reported: PartitionOffsets, expected: list[tuple[RangePlace, int, int]]) -> None:
    assert [tuple(range_) for range_ in ranges(reported)] == expected


@given(st.tuples(*[st.integers(0, 1 << 62)] * 4), st.integers(3, 200))
def test_ranges_leave_no_hole_and_a_bar_has_its_width(
    numbers: tuple[int, int, int, int], width: int
) -> None:
    start, local, tier, end = numbers
    found = ranges(offsets(start, local, tier, end))
    assert all(one.end == next_one.start for one, next_one in itertools.pairwise(found))
    assert all(item.start < item.end for item in found)
    drawn = cells(found, width)
    assert [place for place, _ in drawn] == [item.place for item in found]
    assert all(count >= 1 for _, count in drawn)
    assert sum(count for _, count in drawn) == (width if found else 0)


def test_a_bar_shows_shares_and_the_smallest_range() -> None:
    found = (Range(REMOTE, 0, 750), Range(BOTH, 750, 751), Range(LOCAL, 751, 1000))
    # 75 % of 40 cells are 30. The single offset has a cell, although its share is smaller.
    assert cells(found, 40) == ((REMOTE, 30), (BOTH, 1), (LOCAL, 9))


def test_a_lag_is_known_only_if_both_offsets_are() -> None:
    reported = offsets(0, 0, None, 90, n1=100, n2=90, n3=101)
    assert [lag(reported, 1, node) for node in (2, 3, 4)] == [10, 0, None]
    assert lag(reported, 5, 2) is None
