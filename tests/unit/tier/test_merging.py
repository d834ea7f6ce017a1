"""Selection of small segments to merge, and what a merge costs and saves."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.tier.conftest import TierPartition
from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import Claim, Head
from tidemark.tier.metadata.merging import (
    SEGMENTS_MAX,
    SEGMENTS_MIN,
    MergeLimits,
    merge_limits,
    merged_segment,
    next_merge,
)
from tidemark.tier.metadata.segment import DigestAlgorithm, Digests, SegmentEntry, SegmentState

ONE = Claim(1, 0)
LIMITS = MergeLimits(size_bytes=64_000, span_ms=10**12)
DIGESTS = Digests(DigestAlgorithm.BLAKE3, bytes(32), bytes(32))


def with_sizes(place: Any, *sizes: int, head: Head | None = None) -> Head:
    """Return a head with finished segments of ten offsets each."""
    head = place.head() if head is None else head
    assert head is not None
    for size_bytes in sizes:
        start = head.next_copy_offset
        entry = place.segment(start, start + 9, size_bytes=size_bytes)
        head = transitions.start_copy(head, ONE, entry)
        head = transitions.finish_copy(head, ONE, entry, b"x", DIGESTS)
    return head


def bounds(parts: tuple[SegmentEntry, ...]) -> tuple[int, int] | None:
    return (parts[0].start_offset, parts[-1].end_offset_inclusive) if parts else None


def merge(head: Head, place: Any, parts: tuple[SegmentEntry, ...], now_ms: int = 9) -> Head:
    number = len(head.entries) + head.version
    segment_id = place.segment(0, 0).segment_id
    entry = merged_segment(head, parts, segment_id=segment_id, broker_id=1)
    ids = {part.segment_id for part in parts}
    head = transitions.start_merge(head, ONE, entry, ids)
    assert head.merging == entry
    assert len(head.entries) + head.version == number + 1
    return transitions.finish_merge(head, ONE, entry, ids, b"m", DIGESTS, now_ms=now_ms)


def without_marked(head: Head) -> Head:
    """Return the head after its marked segments were deleted."""
    due = queries.pending_deletes(head, {}, now_ms=10**15, delay_ms=0)
    return transitions.finish_delete(head, ONE, due)


def test_eight_small_segments_become_one(place: Any) -> None:
    assert next_merge(with_sizes(place, *[100] * 7), LIMITS) == ()
    head = with_sizes(place, *[100] * 8)
    parts = next_merge(head, LIMITS)
    assert bounds(parts) == (0, 79)
    head = merge(head, place, parts)
    (live,) = queries.live_segments(head, {})
    assert (live.start_offset, live.end_offset_inclusive, live.size_bytes) == (0, 79, 800)
    # Retention uses the newest record, and for records without timestamps the newest copy.
    assert (live.max_timestamp_ms, live.event_time_ms) == (790, 5)
    assert queries.totals(head, {}) == queries.Totals(1, 800, 8, 800)


def test_a_backlog_is_merged_at_once(place: Any) -> None:
    head = with_sizes(place, *[100 + n % 3 for n in range(SEGMENTS_MAX + 9)])
    assert len(next_merge(head, LIMITS)) == SEGMENTS_MAX


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # Large segments are never merged: not more than an eighth of the limit.
        ([8001] * 20, None),
        ([8000] * 8, (0, 79)),
        # The result has at most the limit.
        ([8000] * 20, (0, 79)),
        # Segments around a large one are not adjacent.
        ([100] * 7 + [9000] + [100] * 7, None),
        ([100] * 7 + [9000] + [100] * 8, (80, 159)),
        # A merged segment and new ones: the small ones are merged first.
        ([800] * 3 + [100] * 8, (30, 109)),
        # The largest part must grow to four times its size.
        ([800] * 3 + [100] * 7, None),
        ([800] * 4 + [100] * 7, (0, 109)),
        # A small segment between larger ones does not remain.
        ([800, 800, 800, 100, 800, 800, 800, 800, 800], (0, 89)),
    ],
)
def test_sizes_decide(place: Any, sizes: list[int], expected: tuple[int, int] | None) -> None:
    assert bounds(next_merge(with_sizes(place, *sizes), LIMITS)) == expected


def test_segments_with_deleted_records_are_left_out(place: Any) -> None:
    head = with_sizes(place, *[100] * 9)
    # Offset 10 is deleted. The second segment has the new log start.
    head = transitions.expire_to(head, ONE, 11, now_ms=1, delete_delay_ms=0)
    assert next_merge(head, LIMITS) == ()
    head = with_sizes(place, 100, head=head)
    assert bounds(next_merge(head, LIMITS)) == (20, 99)


def test_overlap_another_tiered_epoch_and_the_first_format_are_left_out(place: Any) -> None:
    head = with_sizes(place, *[100] * 10)
    for number, change in itertools.product(
        (2, 7), ({"from_offset": 25}, {"tiered_epoch": 5}, {"digests": None})
    ):
        entries = list(head.entries)
        entries[number] = replace(entries[number], **change)  # type: ignore[arg-type]
        changed = replace(head, entries=tuple(entries))
        assert next_merge(changed, LIMITS) == ()
    assert len(next_merge(head, LIMITS)) == 10


def test_time_between_first_and_last_part_is_limited(place: Any) -> None:
    # Each segment is 100 ms newer than the one before it.
    head = with_sizes(place, *[100] * 12)
    assert len(next_merge(head, replace(LIMITS, span_ms=800))) == 9
    assert next_merge(head, replace(LIMITS, span_ms=600)) == ()


def test_limits_are_those_of_a_segment_and_an_eighth_of_the_retention() -> None:
    whole = merge_limits(
        size_bytes=64, segment_bytes=100, segment_ms=70, retention_bytes=-1, retention_ms=-1
    )
    assert whole == MergeLimits(size_bytes=64, span_ms=70)
    bounded = merge_limits(
        size_bytes=64, segment_bytes=50, segment_ms=70, retention_bytes=160, retention_ms=80
    )
    assert bounded == MergeLimits(size_bytes=20, span_ms=10)
    off = merge_limits(
        size_bytes=0, segment_bytes=50, segment_ms=70, retention_bytes=-1, retention_ms=-1
    )
    assert off.size_bytes == 0


def test_nothing_is_merged_without_a_limit(place: Any) -> None:
    head = with_sizes(place, *[100] * 20)
    assert next_merge(head, replace(LIMITS, size_bytes=0)) == ()


def test_replaced_segments_that_wait_for_their_deletion_are_limited(place: Any) -> None:
    """Otherwise every commit would be large, and a full head would end all copying."""
    head = with_sizes(place, *[100] * 8)
    marked = [
        replace(place.segment(0, 9), state=SegmentState.DELETE_STARTED, marked_at_ms=1)
        for _ in range(257)
    ]
    assert next_merge(replace(head, entries=(*marked[:256], *head.entries)), LIMITS)
    assert not next_merge(replace(head, entries=(*marked, *head.entries)), LIMITS)


def test_leader_epochs_of_a_merged_segment_are_those_of_its_parts(place: Any) -> None:
    head = place.head(leader_epoch=9)
    by = Claim(9, 0)
    epochs = [((1, 0),), ((1, 10), (4, 15)), ((4, 15),), ((6, 30),)]
    for number, pairs in enumerate(epochs):
        entry = place.segment(number * 10, number * 10 + 9, by, epochs=pairs)
        head = transitions.start_copy(head, by, entry)
        head = transitions.finish_copy(head, by, entry, b"x", DIGESTS)
    parts = head.finished_entries
    entry = merged_segment(head, parts, segment_id=parts[0].segment_id, broker_id=1)
    assert entry.leader_epochs == ((1, 0), (4, 15), (6, 30))
    later = merged_segment(head, parts[2:], segment_id=parts[0].segment_id, broker_id=1)
    assert later.leader_epochs == ((4, 15), (6, 30))


@given(st.lists(st.integers(1, 30_000), min_size=100, max_size=400), st.integers(0, 3))
@settings(max_examples=examples(40), deadline=None)
def test_cost_and_number_of_segments_are_bounded(sizes: list[int], scale: int) -> None:
    """Whatever sizes arrive, each byte is written again a logarithmic number of times, and what
    remains between two large segments is few."""
    place = TierPartition()
    sizes = [max(1, size >> (scale * 4)) for size in sizes]
    head: Head = place.head()
    rewritten: dict[int, int] = {}
    for size_bytes in sizes:
        head = with_sizes(place, size_bytes, head=head)
        while parts := next_merge(head, LIMITS):
            assert SEGMENTS_MIN <= len(parts) <= SEGMENTS_MAX
            for offset in range(parts[0].start_offset, parts[-1].end_offset_inclusive, 10):
                rewritten[offset] = rewritten.get(offset, 0) + 1
            head = without_marked(merge(head, place, parts))
    # No record is lost or twice, and the manifest has one line.
    live = list(queries.live_segments(head, {}))
    assert sum(entry.size_bytes for entry in live) == sum(sizes)
    assert [entry.start_offset for entry in live[1:]] == [
        entry.end_offset_inclusive + 1 for entry in live[:-1]
    ]
    for number, size_bytes in enumerate(sizes):
        most = 1
        while size_bytes * 8 * 4 ** (most - 1) <= LIMITS.size_bytes:
            most += 1
        assert rewritten.get(number * 10, 0) <= most
    # Between two segments that are too large to be merged, small ones remain for lack of others.
    large = [entry.size_bytes * SEGMENTS_MIN > LIMITS.size_bytes for entry in live]
    longest = max(
        (len(list(run)) for is_large, run in itertools.groupby(large) if not is_large), default=0
    )
    assert longest <= 64


@pytest.mark.parametrize("size_bytes", [1, 100, 5000])
def test_equal_segments_are_written_again_once_for_each_power_of_eight(
    place: Any, size_bytes: int
) -> None:
    head, written = place.head(), 0
    for _ in range(4096):
        head = with_sizes(place, size_bytes, head=head)
        while parts := next_merge(head, LIMITS):
            written += sum(part.size_bytes for part in parts)
            head = without_marked(merge(head, place, parts))
    levels = 0
    while size_bytes * 8 ** (levels + 1) <= LIMITS.size_bytes:
        levels += 1
    live = len(list(queries.live_segments(head, {})))
    assert written <= levels * 4096 * size_bytes
    # Some wait for others of their size.
    assert live <= 4096 // 8**levels + 10 * levels
