"""Expiry of remote segments and the choice of the next segment to copy, as pure rules."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.tier.metadata import retention
from tidemark.tier.metadata.retention import RetentionLimits
from tidemark.tier.metadata.segment import SegmentEntry, SegmentState, new_segment
from tidemark_broker.log import SegmentInfo
from tidemark_broker.remote_log import eligibility, expirer
from tidemark_broker.remote_log.eligibility import Blocked

DAY_MS = 86_400_000


def entry(start: int, *, records: int = 10, size: int = 100, newest_ms: int = 0) -> SegmentEntry:
    made = new_segment(
        topic="t",
        topic_id=uuid.UUID(int=1),
        partition=0,
        segment_id=uuid.UUID(int=start + 1),
        start_offset=start,
        end_offset_inclusive=start + records - 1,
        max_timestamp_ms=newest_ms,
        size_bytes=size,
        broker_id=1,
        # The copy was made on day 5, which matters only for records without timestamps.
        event_time_ms=5 * DAY_MS,
        leader_epochs=[(1, 0)],
        leader_epoch=1,
        tiered_epoch=0,
    )
    return replace(made, state=SegmentState.COPY_FINISHED)


def expired(live: list[SegmentEntry], now_ms: int = 0, local: int = 0, **limits: int) -> int | None:
    return retention.expired_up_to(
        live,
        RetentionLimits(**({"retention_ms": -1, "retention_bytes": -1} | limits)),
        live_bytes=sum(item.size_bytes for item in live),
        local_bytes=local,
        now_ms=now_ms,
    )


def test_time_retention_deletes_the_oldest_segments_up_to_the_first_that_stays() -> None:
    live = [entry(n * 10, newest_ms=ms) for n, ms in enumerate((10, 20, 90, 30))]
    assert expired(live, now_ms=110, retention_ms=100) is None
    # The first two are older than 100 ms. The fourth would be soon, but it is behind the third.
    assert expired(live, now_ms=121, retention_ms=100) == 20
    assert expired(live, now_ms=1000, retention_ms=100) == 40
    assert expired(live, now_ms=DAY_MS, retention_ms=-1) is None
    assert expired([], now_ms=DAY_MS, retention_ms=0) is None


def test_records_without_timestamps_are_as_old_as_their_copy() -> None:
    live = [entry(0, newest_ms=-1)]
    assert expired(live, now_ms=6 * DAY_MS, retention_ms=2 * DAY_MS) is None
    assert expired(live, now_ms=8 * DAY_MS, retention_ms=2 * DAY_MS) == 10


def test_size_retention_deletes_only_complete_segments_above_the_limit() -> None:
    # 400 bytes are remote, and 50 exist locally only.
    live = [entry(n * 10) for n in range(4)]
    assert expired(live, local=50, retention_bytes=351) is None
    assert expired(live, local=50, retention_bytes=350) == 10
    assert expired(live, local=50, retention_bytes=151) == 20
    assert expired(live, local=50, retention_bytes=0) == 40
    assert expired(live, local=10_000, retention_bytes=-1) is None


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "deletes", "are_set"),
    [(-1, -1, True, False), (0, -1, True, True), (-1, 0, True, True), (0, 0, False, False)],
)
def test_limits_without_a_value_expire_nothing(
    retention_ms: int, retention_bytes: int, deletes: bool, are_set: bool
) -> None:
    limits = RetentionLimits(
        retention_ms=retention_ms, retention_bytes=retention_bytes, deletes=deletes
    )
    assert limits.are_set is are_set
    expires = retention.expired_up_to(
        [entry(0)], limits, live_bytes=100, local_bytes=0, now_ms=9 * DAY_MS
    )
    assert (expires is not None) is are_set


def test_a_topic_that_does_not_delete_expires_nothing() -> None:
    limits = RetentionLimits(retention_ms=0, retention_bytes=0, deletes=False)
    assert (
        retention.expired_up_to(
            [entry(0)], limits, live_bytes=100, local_bytes=0, now_ms=9 * DAY_MS
        )
        is None
    )


@given(
    sizes=st.lists(st.integers(1, 50), max_size=12),
    limit=st.integers(0, 300),
    local=st.integers(0, 100),
)
def test_size_retention_keeps_at_least_the_limit(sizes: list[int], limit: int, local: int) -> None:
    live = [entry(n * 10, size=size) for n, size in enumerate(sizes)]
    start = expired(live, local=local, retention_bytes=limit) or 0
    kept = sum(sizes[start // 10 :]) + local
    assert kept >= min(limit, sum(sizes) + local)
    remaining = sizes[start // 10 :]
    # Nor does it keep more: without the oldest segment less than the limit would remain.
    assert not remaining or kept - remaining[0] < limit


def local(*bases: int) -> list[SegmentInfo]:
    """Return segments between the bases. The last one is active and has 3 records."""
    ends = [*bases[1:], bases[-1] + 3]
    return [
        SegmentInfo(
            base_offset=base,
            next_base_offset=end,
            size_bytes=end - base,
            largest_timestamp_ms=0,
            modified_ms=0,
            is_active=base == bases[-1],
        )
        for base, end in zip(bases, ends, strict=True)
    ]


def following(segments: list[SegmentInfo], copied_up_to: int, start: int, stable: int) -> object:
    found = eligibility.next_segment(
        segments,
        next_copy_offset=copied_up_to,
        log_start_offset=start,
        last_stable_offset=stable,
    )
    return found if isinstance(found, Blocked) else found.base_offset


def test_the_next_segment_to_copy_is_closed_and_stable() -> None:
    segments = local(0, 10, 20, 30)
    assert following(segments, 0, 0, 10) == 0
    # KIP-405: a segment is copied only below the last stable offset.
    assert following(segments, 0, 0, 9) is Blocked.NOT_STABLE
    assert following(segments, 10, 0, 33) == 10
    assert (
        following(segments, 15, 0, 33) == 10
    )  # another leader's boundaries: copied completely, trimmed by the manifest
    assert following(segments, 30, 0, 33) is Blocked.NOTHING_CLOSED
    assert following(segments, 99, 0, 33) is Blocked.NOTHING_CLOSED


def test_a_gap_between_copies_is_reported() -> None:
    segments = local(20, 30, 40)
    assert following(segments, 10, 0, 43) is Blocked.HOLE
    assert following(segments, 10, 20, 43) == 20  # below the log start there is no gap
    assert eligibility.stable_from(segments, 10) == 30
    assert eligibility.stable_from(segments, 40) is None


def test_the_lag_counts_closed_segments_that_are_not_copied() -> None:
    lag = eligibility.lag(local(0, 10, 30, 40), 10)
    assert (lag.segments, lag.size_bytes) == (2, 30)
    assert expirer.local_only_bytes(local(0, 10, 30, 40), 9) == 33


#: (limit in ms, limit in bytes, age of the newest record in ms) and when the segment is permitted.
DELAYS: list[tuple[int, int, int, int | None]] = [
    (100, -1, 99, 1),
    (100, -1, 100, 0),
    (100, -1, 40, 60),
    # A timestamp in the future says nothing about the age.
    (100, -1, -1, 0),
    # The two segments after the first one have 13 bytes.
    (-1, 13, 0, 0),
    (-1, 14, 0, None),
    # One permission is enough.
    (100, 13, 0, 0),
    (100, 14, 30, 70),
    (100, 14, 100, 0),
    (-1, -1, 10**9, None),
]


@pytest.mark.parametrize(("lag_ms", "lag_bytes", "age_ms", "expected"), DELAYS)
def test_copy_is_delayed_until_one_limit_permits_it(
    lag_ms: int, lag_bytes: int, age_ms: int, expected: int | None
) -> None:
    """KIP-1241: by the age of the newest record, or by the bytes after the segment."""
    segments = local(0, 10, 20)
    found = eligibility.copy_delay_ms(
        segments, 0, lag_ms=lag_ms, lag_bytes=lag_bytes, now_ms=age_ms
    )
    assert found == expected
    # Nothing is closed, so nothing is delayed.
    behind = eligibility.copy_delay_ms(segments, 20, lag_ms=100, lag_bytes=-1, now_ms=0)
    assert behind == 0


class CountingSegments(Sequence[SegmentInfo]):
    """Segments that count accesses."""

    def __init__(self, segments: Sequence[SegmentInfo]) -> None:
        self._segments = segments
        self.accesses = 0

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, index: Any) -> Any:
        self.accesses += 1
        return self._segments[index]


@pytest.mark.parametrize("count", [10, 1_000, 100_000])
def test_choosing_a_segment_takes_a_bisection(count: int) -> None:
    """The number of accesses for each copied segment is logarithmic."""
    segments = CountingSegments(local(*range(0, 10 * count + 10, 10)))
    for at in (0, count // 2, count - 2):
        before = segments.accesses
        found = eligibility.next_segment(
            segments,
            next_copy_offset=10 * at,
            log_start_offset=0,
            last_stable_offset=10 * count,
        )
        assert isinstance(found, SegmentInfo)
        assert found.base_offset == 10 * at
        assert eligibility.stable_from(segments, 10 * at) == 10 * at + 10
        assert segments.accesses - before <= 2 * (count.bit_length() + 2)
    before = segments.accesses
    assert eligibility.lag(segments, 10 * (count - 2)).segments == 2
    assert expirer.local_only_bytes(segments, 10 * (count - 2) - 1) > 0
    assert segments.accesses - before <= 2 * (count.bit_length() + 6)
