"""The bounds of a log: whatever happens to them, they keep their order and their promises."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark_broker.log.bounds import LogBounds
from tidemark_broker.log.start_record import StartRecord

_OFFSETS = st.integers(min_value=0, max_value=60)
#: What may happen to a log, each with an offset that is brought to where it may lie.
_EVENTS: dict[str, Callable[[LogBounds, int], LogBounds]] = {
    "append": lambda bounds, offset: bounds.appended(bounds.end + 1 + offset),
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
_TAKE_BACK = {"truncate", "restart"}
_HAPPENINGS = st.lists(st.tuples(st.sampled_from(sorted(_EVENTS)), _OFFSETS), max_size=30)


def _in_order(bounds: LogBounds) -> bool:
    starts_to_end = list(bounds._replace(recovery_point=bounds.local_start))
    return starts_to_end == sorted(starts_to_end) and bounds.recovery_point <= bounds.end


@st.composite
def _opened(draw: st.DrawFn) -> LogBounds:
    """As a start finds them: files say [first, end), checkpoints say what they like."""
    first, end = sorted((draw(_OFFSETS), draw(_OFFSETS)))
    return LogBounds.opened(
        first,
        end,
        log_start=draw(_OFFSETS),
        recovery_point=draw(_OFFSETS),
        high_watermark=draw(_OFFSETS),
    )


@given(_opened(), _HAPPENINGS)
def test_the_order_holds_and_only_truncations_move_back(
    bounds: LogBounds, happenings: list[tuple[str, int]]
) -> None:
    """Invariants 2 and 4."""
    assert _in_order(bounds)
    for event, offset in happenings:
        after = _EVENTS[event](bounds, offset)
        assert _in_order(after)
        if event not in _TAKE_BACK:
            assert all(new >= old for new, old in zip(after, bounds, strict=True))
        bounds = after


@given(_OFFSETS, _OFFSETS, _OFFSETS, _OFFSETS, _OFFSETS)
def test_what_checkpoints_say_gives_way_to_the_files(
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
    assert bounds.high_watermark == sorted((bounds.local_start, high_watermark, end))[1]


@given(_opened(), _OFFSETS)
def test_a_truncation_lowers_all_that_lies_above_it(bounds: LogBounds, offset: int) -> None:
    begun = bounds.lowered(offset)
    assert begun.end == bounds.end  # the files are as they were
    done = begun.truncated(offset)
    assert done == bounds.truncated(offset)
    assert list(done) == [min(bound, offset) for bound in bounds]


@given(_opened(), _OFFSETS)
def test_a_commit_reaches_to_the_end_and_no_further(bounds: LogBounds, offset: int) -> None:
    after = bounds.committed(offset)
    assert after.high_watermark == max(bounds.high_watermark, min(offset, bounds.end))
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
def test_what_must_not_happen_is_a_bug(move: Callable[[LogBounds], object]) -> None:
    bounds = LogBounds(log_start=2, local_start=4, recovery_point=7, high_watermark=6, end=9)
    with pytest.raises(AssertionError):
        move(bounds)


def test_a_batch_that_begins_below_an_empty_log() -> None:
    """Records that are only in the tier do not become local."""
    assert LogBounds.empty(7, log_start=7).begun_at(5) == LogBounds(7, 7, 7, 7, 7)
    assert LogBounds.empty(7, log_start=2).begun_at(5) == LogBounds(2, 5, 7, 7, 7)


@given(_opened(), _OFFSETS, st.lists(st.tuples(st.sampled_from("srta"), _OFFSETS), max_size=20))
def test_a_recorded_log_start_is_never_beyond_the_records_that_a_crash_leaves(
    bounds: LogBounds, announced: int, happenings: list[tuple[str, int]]
) -> None:
    """No log start takes effect or counts as durable before it is recorded (invariant 2)."""
    announced = min(announced, bounds.high_watermark)
    record = StartRecord(announced, *(bounds.log_start,) * 2)
    for event, offset in happenings:
        if event == "s":
            record = record.synced(min(offset, bounds.end))
        elif event == "r":
            record = record.recorded(record.recordable(bounds), bounds)
        elif event == "t":
            bounds, record = bounds.lowered(offset).truncated(offset), record.lowered(offset)
        else:
            held = record.adoptable(bounds)
            bounds = bounds.with_log_start(held)
            record = record.adopted(held, bounds)
        on_disk = max(bounds.recovery_point, record.synced_to)
        assert record.recordable(bounds) <= max(bounds.log_start, on_disk)
        assert record.durable <= min(record.checkpointed, bounds.log_start)
        assert record.target(bounds) <= bounds.high_watermark
