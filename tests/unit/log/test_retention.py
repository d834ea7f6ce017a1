"""Local retention: the rules as a pure decision, and their effect on a log's files."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark_broker.log import (
    LogConfig,
    SegmentInfo,
    TieredRetention,
    flushing,
    retention,
    start_offsets,
)
from tidemark_broker.log.bounds import Starts
from tidemark_broker.log.retention import RetentionInput, RetentionPlan, plan_retention

T0 = 1_700_000_000_000
Bench = Any  # the LogBench of conftest.py


def _segments(ends: Sequence[int], *, size: int = 100, start: int = 0) -> tuple[SegmentInfo, ...]:
    """Return segments that end at ``ends``. The largest timestamp of each is T0 plus its end."""
    bases = [start, *ends[:-1]]
    return tuple(
        SegmentInfo(
            base_offset=base,
            next_base_offset=end,
            size_bytes=size if end > base else 0,
            largest_timestamp_ms=T0 + end if end > base else -1,
            modified_ms=T0 + end,
            is_active=number == len(ends) - 1,
        )
        for number, (base, end) in enumerate(zip(bases, ends, strict=True))
    )


def _plan(
    config: LogConfig,
    *,
    ends: Sequence[int] = (10, 20, 30, 40),
    now_ms: int = T0,
    high_watermark: int = 40,
    log_start: int = 0,
    local_start: int | None = None,
    tiered: TieredRetention | None = None,
) -> RetentionPlan:
    # Four segments of ten offsets and 100 bytes each, unless a test says otherwise.
    return plan_retention(
        RetentionInput(
            segments=_segments(ends),
            config=config,
            log_start_offset=log_start,
            local_log_start_offset=log_start if local_start is None else local_start,
            high_watermark=high_watermark,
            now_ms=now_ms,
            tiered=tiered,
        )
    )


def _remote(highest: int, **flags: bool) -> TieredRetention:
    return TieredRetention(highest_remote_offset=highest, **flags)


NOTHING = RetentionPlan()
BY_TIME = LogConfig(retention_ms=5)
BY_SIZE = LogConfig(retention_ms=-1, retention_bytes=250)
YEAR_2100_MS = 4_102_444_800_000
LOCAL_TIME = LogConfig(retention_ms=10**9, local_retention_ms=5)
LOCAL_SIZE = LogConfig(retention_ms=-1, local_retention_bytes=250)


def test_time_retention_is_strict_and_deletes_the_oldest_first() -> None:
    # The first segment's newest record is from T0 + 10: older than 5 ms only from T0 + 16 on.
    assert _plan(BY_TIME, now_ms=T0 + 15) == NOTHING
    assert _plan(BY_TIME, now_ms=T0 + 16) == RetentionPlan(delete=1, log_start_offset=10)
    assert _plan(BY_TIME, now_ms=T0 + 26) == RetentionPlan(delete=2, log_start_offset=20)


def test_size_retention_keeps_at_least_the_limit() -> None:
    assert _plan(BY_SIZE) == RetentionPlan(delete=1, log_start_offset=10)
    assert _plan(LogConfig(retention_bytes=400)) == NOTHING
    assert _plan(LogConfig(retention_bytes=300)) == RetentionPlan(delete=1, log_start_offset=10)
    everything = RetentionPlan(delete=4, roll_active=True, log_start_offset=40)
    assert _plan(LogConfig(retention_bytes=0)) == everything


def test_segments_below_the_log_start_are_deleted_under_any_policy() -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact"}), retention_ms=0)
    assert _plan(config, now_ms=T0 + 10**6) == NOTHING
    assert _plan(config, log_start=19) == RetentionPlan(delete=1, log_start_offset=19)
    assert _plan(config, log_start=20) == RetentionPlan(delete=2, log_start_offset=20)
    # The active segment stays, although it is below the log start as well.
    assert _plan(config, log_start=40).delete == 3


def test_nothing_above_the_high_watermark_is_deleted() -> None:
    assert _plan(BY_TIME, now_ms=T0 + 10**6, high_watermark=29).delete == 2
    assert _plan(BY_TIME, now_ms=T0 + 10**6, high_watermark=39).delete == 3


def test_a_roll_precedes_the_deletion_of_all_segments() -> None:
    everything = RetentionPlan(delete=4, roll_active=True, log_start_offset=40)
    assert _plan(BY_TIME, now_ms=T0 + 10**6) == everything
    # An empty active segment is there already, or is all there is.
    assert _plan(BY_TIME, ends=(10, 20, 20), now_ms=T0 + 10**6, high_watermark=20).delete == 2
    assert _plan(BY_TIME, ends=(0,), now_ms=T0 + 10**6, high_watermark=0) == NOTHING


@pytest.mark.parametrize(("config", "now_ms"), [(LOCAL_TIME, T0 + 26), (LOCAL_SIZE, T0)])
def test_a_tiered_log_deletes_only_records_in_the_tier(config: LogConfig, now_ms: int) -> None:
    expired = 2 if config is LOCAL_TIME else 1
    # A segment may go once its last offset is in the tier: 9, 19, and so on.
    for highest, deleted in ((-1, 0), (8, 0), (9, 1), (18, 1), (19, 2), (39, 2)):
        plan = _plan(config, now_ms=now_ms, tiered=_remote(highest))
        deleted = min(deleted, expired)
        assert plan == (
            RetentionPlan(delete=deleted, local_log_start_offset=10 * deleted)
            if deleted
            else NOTHING
        )
    assert _plan(config, now_ms=now_ms, tiered=_remote(39, suspended=True)) == NOTHING


def test_segments_below_the_log_start_need_no_copy() -> None:
    plan = _plan(LOCAL_TIME, log_start=20, tiered=_remote(-1))
    assert plan == RetentionPlan(delete=2, local_log_start_offset=20)


def test_local_limits_default_to_the_total_limits_and_apply_only_while_copying() -> None:
    assert _plan(BY_TIME, now_ms=T0 + 16, tiered=_remote(39)).delete == 1
    # KIP-950: with copying stopped the log is the only place for new records, so retention.*
    # applies.
    stopped = _remote(39, copy_enabled=False)
    assert _plan(LOCAL_TIME, now_ms=T0 + 10**6, tiered=stopped) == NOTHING
    assert _plan(BY_TIME, now_ms=T0 + 16, tiered=stopped) == RetentionPlan(
        delete=1, log_start_offset=10
    )


def test_a_tiered_active_segment_is_rolled_and_deleted_later() -> None:
    plan = _plan(LOCAL_TIME, now_ms=T0 + 10**6, tiered=_remote(39))
    assert plan == RetentionPlan(delete=3, roll_active=True, local_log_start_offset=30)
    one = _plan(LOCAL_TIME, ends=(40,), now_ms=T0 + 10**6, tiered=_remote(39))
    assert one == RetentionPlan(roll_active=True)


@pytest.mark.parametrize("dated_ms", [T0 + 3_000_000, YEAR_2100_MS], ids=["50min", "2100"])
@pytest.mark.parametrize("number", range(4))
def test_a_future_timestamp_does_not_keep_tiered_segments_local(number: int, dated_ms: int) -> None:
    """The time of the last append bounds the age. Without a tier the timestamps decide, as in
    Kafka."""
    segments = list(_segments((10, 20, 30, 40)))
    segments[number] = replace(segments[number], largest_timestamp_ms=dated_ms)

    def plan(tiered: TieredRetention | None) -> RetentionPlan:
        return plan_retention(
            RetentionInput(
                segments=segments,
                config=replace(LOCAL_TIME, retention_ms=5) if tiered is None else LOCAL_TIME,
                log_start_offset=0,
                local_log_start_offset=0,
                high_watermark=40,
                now_ms=T0 + 46,
                tiered=tiered,
            )
        )

    # Tiered: all three copied segments go, whichever of the four has the future timestamp. Not
    # tiered: deletion stops at that segment.
    assert plan(_remote(29)) == RetentionPlan(delete=3, roll_active=True, local_log_start_offset=30)
    assert plan(None).delete == number


@pytest.mark.parametrize(("config", "now_ms"), [(LOCAL_TIME, T0 + 46), (BY_TIME, T0 + 46)])
def test_an_expired_active_segment_is_rolled_so_that_it_can_be_copied(
    config: LogConfig, now_ms: int
) -> None:
    """In an idle partition no append would ever roll the segment."""
    alone = {"ends": (40,), "log_start": 30, "local_start": 30}
    roll = RetentionPlan(roll_active=True)
    assert _plan(config, now_ms=now_ms, tiered=_remote(29), ends=(40,)) == roll
    assert _plan(config, now_ms=now_ms - 1, tiered=_remote(29), ends=(40,)) == NOTHING
    assert _plan(config, now_ms=now_ms, tiered=_remote(29)) == RetentionPlan(
        delete=3, roll_active=True, local_log_start_offset=30
    )
    assert _plan(config, now_ms=now_ms, tiered=_remote(19)).roll_active is False
    # Uncommitted records and a suspended tier prevent the roll.
    for kept in (
        {"high_watermark": 39, "tiered": _remote(29)},
        {"tiered": _remote(29, suspended=True)},
    ):
        assert _plan(config, now_ms=now_ms, **(alone | kept)) == NOTHING  # type: ignore[arg-type]
    # An empty active segment is never rolled.
    empty = _plan(config, now_ms=now_ms, tiered=_remote(39), ends=(40, 40))
    assert empty == RetentionPlan(delete=1, local_log_start_offset=40)


def test_a_tiered_active_segment_above_the_size_limit_is_rolled() -> None:
    for limit, rolls in ((0, True), (1, False)):
        config = LogConfig(retention_ms=-1, local_retention_bytes=limit)
        assert _plan(config, ends=(40,), tiered=_remote(-1)).roll_active is rolls


def test_records_without_timestamps_age_by_their_segment() -> None:
    segment = SegmentInfo(
        base_offset=0,
        next_base_offset=5,
        size_bytes=10,
        largest_timestamp_ms=-1,
        modified_ms=T0,
        is_active=True,
    )
    # Without timestamps the modification time of the segment counts, as in Kafka's
    # LogSegment.largestTimestamp.
    for now_ms, deleted in ((T0 + 5, 0), (T0 + 6, 1)):
        plan = plan_retention(
            RetentionInput(
                segments=[segment],
                config=BY_TIME,
                log_start_offset=0,
                local_log_start_offset=0,
                high_watermark=5,
                now_ms=now_ms,
                tiered=None,
            )
        )
        assert plan.delete == deleted


@given(
    ends=st.lists(st.integers(1, 200), min_size=1, max_size=8, unique=True).map(sorted),
    high=st.integers(0, 200),
    start=st.integers(0, 200),
    age=st.integers(-1, 300),
    size=st.integers(-1, 900),
    highest=st.none() | st.integers(-1, 200),
    copy=st.booleans(),
)
def test_bounds_stay_in_order_after_any_deletion(
    ends: list[int], high: int, start: int, age: int, size: int, highest: int | None, copy: bool
) -> None:
    # Clamp the drawn offsets to a state that a log can be in.
    high, start = min(high, ends[-1]), min(start, high, ends[-1])
    tiered = None if highest is None else _remote(min(highest, high - 1), copy_enabled=copy)
    plan = _plan(
        LogConfig(retention_ms=age, retention_bytes=size),
        ends=ends,
        now_ms=T0 + 150,
        high_watermark=high,
        log_start=start,
        tiered=tiered,
    )
    new_start = start if plan.log_start_offset is None else plan.log_start_offset
    local = plan.local_log_start_offset
    local = max(start if local is None else local, new_start)
    assert start <= new_start <= local <= high
    if plan.delete:
        assert local >= ends[plan.delete - 1]
    # With copying enabled only the local start moves, and never beyond the copied records.
    if tiered is not None and copy:
        assert new_start == start
        assert local <= max(tiered.highest_remote_offset + 1, start)


def test_untiered_segments_are_deleted_from_the_disk(bench: Bench) -> None:
    bench.config = LogConfig(segment_bytes=500, retention_bytes=1200)
    log = bench.create()
    bench.fill(log, [1] * 30, epoch=1)
    # Nothing is committed yet.
    assert retention.apply_retention(log, T0, tiered=None) == []
    log.advance_high_watermark(30)
    before = log.segment_infos()
    removed = retention.apply_retention(log, T0, tiered=None)
    assert [s.base_offset for s in removed] == [s.base_offset for s in before[: len(removed)]]
    assert 1200 <= log.size_bytes < 1700
    first = log.segment_infos()[0].base_offset
    assert log.log_start_offset == log.local_log_start_offset == first
    assert log.epochs.entries[0].start_offset == first
    assert min(bench.directory.glob("*.log")).name == f"{first:020d}.log"
    assert not list(bench.directory.glob("*.deleted"))
    bench.check(log)
    bench.crash(log)
    reopened = bench.open(high_watermark=30)
    assert (reopened.log_start_offset, reopened.next_offset) == (first, 30)


def test_retention_that_is_not_due_deletes_nothing(bench: Bench) -> None:
    bench.config = LogConfig(segment_bytes=500, retention_bytes=1200)
    log = bench.create()
    bench.fill(log, [1] * 30, epoch=1)
    for high_watermark, deletes in ((0, False), (30, True), (30, False)):
        log.advance_high_watermark(high_watermark)
        assert retention.may_be_due(log, T0, tiered=None) is deletes
        assert bool(retention.apply_retention(log, T0, tiered=None)) is deletes
    # The decision about a long log is left to a thread.
    log.config = LogConfig(segment_bytes=500)
    bench.fill(log, [1] * 300, epoch=1)
    assert log.segment_count > retention._QUICK_SEGMENTS_MAX
    assert retention.may_be_due(log, T0, tiered=None)
    assert not retention.apply_retention(log, T0, tiered=None)


def test_retention_can_delete_every_record(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 25)
    log.config = LogConfig(retention_ms=1)
    log.advance_high_watermark(25)
    assert sum(
        s.next_base_offset - s.base_offset
        for s in retention.apply_retention(log, 2 * T0, tiered=None)
    )
    assert (log.log_start_offset, log.next_offset, log.size_bytes) == (25, 25, 0)
    bench.fill(log, [1])
    bench.check(log)
    bench.crash(log)
    assert bench.open(high_watermark=26).log_start_offset == 25


def test_segments_are_deleted_once_the_new_start_is_on_disk(bench: Bench) -> None:
    bench.config = LogConfig(segment_bytes=500, local_retention_bytes=600, retention_ms=-1)
    log = bench.create()
    bench.fill(log, [1] * 30)
    log.advance_high_watermark(30)
    recorded = []

    # Stands for the journal of log starts. Nothing may be deleted before it returns.
    def record(starts: Starts) -> None:
        assert log.local_log_start_offset == 0
        assert log.segment_infos()[0].base_offset == 0
        recorded.append(starts)

    log.record_starts = record
    highest = log.segment_infos()[2].next_base_offset - 1
    deleted = retention.apply_retention(log, T0, tiered=_remote(highest))
    assert recorded == [Starts(0, highest + 1)]
    assert len(deleted) == 3
    assert (log.log_start_offset, log.local_log_start_offset) == (0, highest + 1)
    # Suspended: the tier's content is uncertain, so local retention stops.
    assert retention.apply_retention(log, T0, tiered=_remote(29, suspended=True)) == []
    bench.check(log)


def test_records_below_the_log_start_are_deleted_by_segment(bench: Bench) -> None:
    bench.config = LogConfig(segment_bytes=500, retention_ms=-1)
    log = bench.create()
    bench.fill(log, [1] * 30)
    flushing.flush(log)
    log.advance_high_watermark(30)
    second = log.segment_infos()[1]
    start_offsets.raise_log_start(log, second.base_offset + 1)
    deleted = retention.apply_retention(log, T0, tiered=None)
    assert [s.base_offset for s in deleted] == [0]
    assert log.log_start_offset == second.base_offset + 1
    assert log.segment_infos()[0].base_offset == second.base_offset
