"""Rates over windows, and pauses, as Kafka's Rate and QuotaUtils compute them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark_broker.admission.rate import WindowedRate, Windows

WINDOWS = Windows(count=11, size_s=1.0)


def test_burst_is_spread_over_all_windows_but_one() -> None:
    """100 bytes in the first moment: 10 a second over 10 s, so 10 s more for a limit of 5."""
    rate = WindowedRate(WINDOWS)
    rate.record(100, 50.0)
    assert rate.per_second(50.0) == 10.0
    assert rate.throttle_s(10.0, 50.0) == 0.0
    assert rate.throttle_s(5.0, 50.0) == 10.0


def test_a_window_under_way_counts_as_long_as_it_has_lasted() -> None:
    rate = WindowedRate(WINDOWS)
    rate.record(30, 0.0)
    rate.record(30, 0.5)
    rate.record(45, 1.5)
    # The rate is over ten complete windows, and the 0.5 s of the current one.
    assert rate.per_second(1.5) == 105 / 10.5


def test_usage_older_than_all_windows_is_forgotten() -> None:
    rate = WindowedRate(WINDOWS)
    rate.record(1000, 0.0)
    assert rate.per_second(10.9) > 0
    assert rate.per_second(11.0) == 0.0


@given(
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(0, 1000)), min_size=1, max_size=60),
    limit=st.integers(1, 500),
)
def test_after_the_rest_the_rate_is_at_most_the_limit(
    steps: list[tuple[float, int]], limit: int
) -> None:
    rate, now_s = WindowedRate(WINDOWS), 0.0
    for pause_s, amount in steps:
        now_s += pause_s
        rate.record(amount, now_s)
    throttle_s = rate.throttle_s(limit, now_s)
    assert (throttle_s > 0) == (rate.per_second(now_s) > limit)
    # Nothing is used meanwhile: usage leaves with its window, or is spread over more time.
    while throttle_s > 1e-6:
        now_s += throttle_s
        throttle_s = rate.throttle_s(limit, now_s)
        assert throttle_s <= 11
    assert rate.per_second(now_s) <= limit * (1 + 1e-6)


def test_a_client_that_obeys_the_throttle_reaches_the_limit_on_average() -> None:
    rate, now_s, used = WindowedRate(WINDOWS), 0.0, 0
    while now_s < 300:
        rate.record(64, now_s)
        used += 64
        now_s += max(rate.throttle_s(100.0, now_s), 0.01)
    assert used / now_s == pytest.approx(100, rel=0.1)
