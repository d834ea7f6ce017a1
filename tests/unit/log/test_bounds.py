"""Bounds of a log (log start, local start, recovery point, high watermark, end): after any sequence
of events they are in order, and only truncations lower them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark_broker.log.bounds import LogBounds, StartRecord

_OFFSETS = st.integers(min_value=0, max_value=60)
#: Events of a log. Each clamps the drawn offset into the range that the event allows.
_EVENTS: dict[str, Callable[[LogBounds, int], LogBounds]] = {
    "append": lambda bounds, offset: bounds.appended(bounds.end + 1 + offset),
    "append alone": lambda bounds, offset: bounds.appended(bounds.end + 1 + offset, commits=True),
    "commit": LogBounds.committed,
    "flush": lambda bounds, offset: bounds.flushed(min(offset, bounds.end)),
    "log start": lambda bounds, offset: bounds.with_log_start(min(offset, bounds.high_watermark)),
    "local start": lambda bounds, offset: bounds.with_local_start(
        min(offset, bounds.high_watermark)
    ),
    "no remote part": lambda bounds, _: bounds.without_remote_part(),
    "truncate": lambda bounds, offset: bounds.lowered(offset).truncated(offset),
    "restart": lambda bounds, offset: LogBounds.empty(
        offset, log_start=min(bounds.log_start, offset)
    ),
}
_LOWERING = {"truncate", "restart"}
_EVENT_LISTS = st.lists(st.tuples(st.sampled_from(sorted(_EVENTS)), _OFFSETS), max_size=30)


def _in_order(bounds: LogBounds) -> bool:
    # A recovery point may lie below the local start, right after a deletion. It takes no part in
    # the order of the other bounds.
    starts_to_end = list(bounds._replace(recovery_point=bounds.local_start))
    return starts_to_end == sorted(starts_to_end) and bounds.recovery_point <= bounds.end


@st.composite
def _opened(draw: st.DrawFn) -> LogBounds:
    """Draw bounds of a log at startup: files cover [first, end), checkpoints contain any offset."""
    first, end = sorted((draw(_OFFSETS), draw(_OFFSETS)))
    return LogBounds.opened(
        first,
        end,
        log_start=draw(_OFFSETS),
        recovery_point=draw(_OFFSETS),
        high_watermark=draw(_OFFSETS),
    )


@given(_opened(), _EVENT_LISTS)
def test_bounds_stay_in_order_and_only_truncations_lower_them(
    bounds: LogBounds, events: list[tuple[str, int]]
) -> None:
    """Invariants 2 and 4 of the log."""
    assert _in_order(bounds)
    for event, offset in events:
        after = _EVENTS[event](bounds, offset)
        assert _in_order(after)
        if event not in _LOWERING:
            assert all(new >= old for new, old in zip(after, bounds, strict=True))
        bounds = after


@given(_OFFSETS, _OFFSETS, _OFFSETS, _OFFSETS, _OFFSETS)
def test_checkpointed_offsets_are_clamped_to_the_files(
    first: int, more: int, log_start: int, recovery_point: int, high_watermark: int
) -> None:
    end = first + more
    bounds = LogBounds.opened(
        first,
        end,
        log_start=log_start,
        recovery_point=recovery_point,
        high_watermark=high_watermark,
    )
    assert bounds.end == end
    assert bounds.log_start == min(log_start, end)
    assert bounds.recovery_point == min(recovery_point, end)
    assert bounds.local_start == max(first, bounds.log_start)
    # The middle of the three is the checkpointed value, clamped to the local records.
    assert bounds.high_watermark == sorted((bounds.local_start, high_watermark, end))[1]


@given(_opened(), _OFFSETS)
def test_a_truncation_lowers_every_bound_above_its_offset(bounds: LogBounds, offset: int) -> None:
    begun = bounds.lowered(offset)
    assert begun.end == bounds.end  # the files are as they were
    done = begun.truncated(offset)
    assert done == bounds.truncated(offset)
    assert list(done) == [min(bound, offset) for bound in bounds]


@given(_opened(), _OFFSETS)
def test_the_high_watermark_never_exceeds_the_log_end(bounds: LogBounds, offset: int) -> None:
    after = bounds.committed(offset)
    assert after.high_watermark == max(bounds.high_watermark, min(offset, bounds.end))
    # A commit that changes nothing returns the same object, so that no waiter is woken.
    assert (after is bounds) == (after == bounds)


@pytest.mark.parametrize(
    "move",
    [
        lambda bounds: bounds.appended(bounds.end),  # (3) an offset is given out once
        lambda bounds: bounds.flushed(bounds.end + 1),
        lambda bounds: bounds.with_log_start(bounds.high_watermark + 1),  # (13)
        lambda bounds: bounds.with_local_start(bounds.high_watermark + 1),  # (4)
        lambda bounds: bounds.begun_at(bounds.end),
        lambda bounds: LogBounds.empty(bounds.end, log_start=bounds.end + 1),
    ],
)
def test_impossible_moves_fail_an_assertion(move: Callable[[LogBounds], object]) -> None:
    bounds = LogBounds(log_start=2, local_start=4, recovery_point=7, high_watermark=6, end=9)
    with pytest.raises(AssertionError):
        move(bounds)


def test_a_first_batch_below_an_empty_log_lowers_the_local_start_only_above_the_log_start() -> None:
    """Records that are only in the tier do not become local."""
    assert LogBounds.empty(7, log_start=7).begun_at(5) == LogBounds(7, 7, 7, 7, 7)
    assert LogBounds.empty(7, log_start=2).begun_at(5) == LogBounds(2, 5, 7, 7, 7)


@given(_opened(), _OFFSETS, st.lists(st.tuples(st.sampled_from("srta"), _OFFSETS), max_size=20))
def test_a_recorded_log_start_is_never_beyond_the_records_that_a_crash_leaves(
    bounds: LogBounds, announced: int, events: list[tuple[str, int]]
) -> None:
    """No log start takes effect or counts as durable before it is recorded (invariant 2)."""
    announced = min(announced, bounds.high_watermark)
    record = StartRecord(announced, *(bounds.log_start,) * 2)
    for event, offset in events:
        # The four steps of a raised log start, in any order: sync of the records below it, record
        # of the start, truncation, adoption.
        if event == "s":
            record = record.synced(min(offset, bounds.end))
        elif event == "r":
            record = record.recorded(record.recordable(bounds), bounds)
        elif event == "t":
            bounds, record = bounds.lowered(offset).truncated(offset), record.lowered(offset)
        else:
            adopted_offset = record.adoptable(bounds)
            bounds = bounds.with_log_start(adopted_offset)
            record = record.adopted(adopted_offset, bounds)
        # After a crash at this moment the log still reaches this offset. A recorded start beyond
        # it would leave a log that ends below its start.
        on_disk = max(bounds.recovery_point, record.synced_to)
        assert record.recordable(bounds) <= max(bounds.log_start, on_disk)
        assert record.durable <= min(record.checkpointed, bounds.log_start)
        assert record.target(bounds) <= bounds.high_watermark


@given(_opened())
def test_only_an_append_that_commits_moves_the_high_watermark(bounds: LogBounds) -> None:
    end = bounds.end + 3
    assert bounds.appended(end).high_watermark == bounds.high_watermark
    assert bounds.appended(end, commits=True).high_watermark == end
