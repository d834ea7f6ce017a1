"""Plans: every offset is in one task, and micro-batches are within their limits."""

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.tier.metadata.queries import SegmentRange
from tidemark.tier.metadata.segment import DigestAlgorithm, Digests, SegmentState, new_segment
from tidemark_pipeline.read.options import BatchLimits
from tidemark_pipeline.read.plan import PlannedTask, ReadPlan
from tidemark_pipeline.read.streaming import PendingPartition, Weight, limited
from tidemark_pipeline.read.tasks import MissingOffsets, RemoteTask, TailTask, Task, cut
from tidemark_pipeline.read.topic_survey import Part


def segment(start: int, end_inclusive: int, size_bytes: int = 100) -> SegmentRange:
    entry = new_segment(
        topic="t",
        topic_id=uuid.UUID(int=1),
        partition=0,
        segment_id=uuid.UUID(int=start),
        start_offset=start,
        end_offset_inclusive=end_inclusive,
        max_timestamp_ms=end_inclusive,
        size_bytes=size_bytes,
        broker_id=1,
        event_time_ms=0,
        leader_epochs=[(0, 0)],
        leader_epoch=0,
        tiered_epoch=0,
    )
    return SegmentRange(entry, start, end_inclusive)


@st.composite
def logs(draw: st.DrawFn) -> tuple[int, int, list[SegmentRange]]:
    """Draw the start and the end of a log, and the tier's segments between them."""
    before = draw(st.integers(0, 5))
    sizes = draw(st.lists(st.integers(1, 9), max_size=6))
    start = draw(st.integers(0, 100))
    position = start + before
    ranges = []
    for size in sizes:
        ranges.append(segment(position, position + size - 1, draw(st.integers(1, 500))))
        position += size
    return start, position + draw(st.integers(0, 5)), ranges


def tasks_of(
    log: tuple[int, int, list[SegmentRange]], task_bytes: int = 1, *, brokers: bool = True
) -> list[Task]:
    start, end, ranges = log
    made = cut(0, start, end, ranges, brokers=brokers, task_bytes=task_bytes)
    return list(made)


def offsets_of(task: Task) -> list[int]:
    if isinstance(task, TailTask):
        return list(range(task.start_offset, task.end_offset))
    return [o for r in task.ranges for o in range(r.from_offset, r.to_offset_inclusive + 1)]


@given(log=logs(), task_bytes=st.integers(1, 1000))
def test_every_offset_is_in_exactly_one_task(
    log: tuple[int, int, list[SegmentRange]], task_bytes: int
) -> None:
    """Invariants 5 and 26."""
    made = tasks_of(log, task_bytes)
    assert [o for task in made for o in offsets_of(task)] == list(range(log[0], log[1]))
    assert all(offsets_of(task) for task in made)


@given(log=logs())
def test_without_brokers_the_tier_must_have_every_offset(
    log: tuple[int, int, list[SegmentRange]],
) -> None:
    if any(isinstance(task, TailTask) for task in tasks_of(log)):
        with pytest.raises(MissingOffsets, match="give 'bootstrap'"):
            tasks_of(log, brokers=False)
    else:
        assert tasks_of(log, brokers=False) == tasks_of(log)


@given(log=logs(), data=st.data())
def test_a_hole_within_the_tier_is_read_from_no_replica(
    log: tuple[int, int, list[SegmentRange]], data: st.DataObject
) -> None:
    start, end, ranges = log
    if len(ranges) < 3:
        return
    # The first and the last segment stay, so that the hole is within the tier.
    del ranges[data.draw(st.integers(1, len(ranges) - 2))]
    with pytest.raises(MissingOffsets, match="was expected"):
        tasks_of((start, end, ranges))


def test_segments_that_are_too_old_are_left_out() -> None:
    ranges = [segment(0, 9), segment(10, 19), segment(20, 29)]
    made = list(cut(0, 0, 35, ranges, brokers=True, task_bytes=10**6, since_ms=15))
    assert made == [RemoteTask.of(0, (ranges[1], ranges[2])), TailTask(0, 30, 35)]


@given(
    times=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), max_size=8),
    skew=st.integers(0, 20),
    until=st.integers(0, 60),
)
def test_time_limit_keeps_every_record_within_the_skew(
    times: list[list[int]], skew: int, until: int
) -> None:
    """``times`` are those of each segment's records, raised to what the skew allows."""
    latest, start = 0, 0
    ranges, in_time = [], []
    for item in times:
        moved = []
        for time in item:
            moved.append(max(time, latest - skew))
            latest = max(latest, moved[-1])
        part = segment(start, start + len(item) - 1)
        ranges.append(replace(part, entry=replace(part.entry, max_timestamp_ms=max(moved))))
        in_time += [start + n for n, time in enumerate(moved) if time <= until]
        start += len(item)
    made = list(
        cut(
            0,
            0,
            start + 2,
            ranges,
            brokers=True,
            task_bytes=1,
            over_ms=until + skew,
        )
    )
    planned = [o for task in made for o in offsets_of(task)]
    assert planned == list(range(len(planned)))
    assert set(in_time) <= set(planned)
    # Without a segment that is too late, the plan covers the complete log.
    assert len(planned) == start + 2 or latest > until + skew


def test_behind_a_segment_that_is_too_late_nothing_is_read() -> None:
    ranges = [segment(0, 9), segment(10, 19), segment(20, 29)]
    made = list(cut(0, 0, 35, ranges, brokers=True, task_bytes=10**6, over_ms=15))
    assert made == [RemoteTask.of(0, (ranges[0], ranges[1]))]


def large_segment(size_bytes: int) -> SegmentRange:
    """Return a segment of 100 offsets whose parts can be verified alone."""
    whole = segment(0, 99, size_bytes)
    return replace(
        whole,
        entry=replace(whole.entry, digests=Digests(DigestAlgorithm.BLAKE3, b"l" * 32, b"a" * 32)),
    )


@pytest.mark.parametrize(("mebibytes", "tasks"), [(31, 1), (32, 2), (64, 4), (1000, 15)])
def test_a_large_segment_is_read_by_several_tasks(mebibytes: int, tasks: int) -> None:
    """One partition may have most of a topic's bytes, in segments of up to 2 GiB."""
    whole = large_segment(mebibytes << 20)
    task_bytes = 16 << 20 if mebibytes < 100 else 64 << 20
    made = tasks_of((0, 100, [whole]), task_bytes)
    assert len(made) == tasks
    assert [offset for task in made for offset in offsets_of(task)] == list(range(100))
    # Without digests the reader of a part would read the whole segment.
    plain = replace(whole, entry=replace(whole.entry, digests=None))
    assert len(tasks_of((0, 100, [plain]), task_bytes)) == 1


def test_a_segment_is_not_divided_into_tiny_parts() -> None:
    assert len(tasks_of((0, 100, [large_segment(20 << 20)]), 1)) == 1


@given(log=logs())
def test_a_task_keeps_every_field_of_its_segments(
    log: tuple[int, int, list[SegmentRange]],
) -> None:
    ranges = [*log[2], large_segment(5)]
    entry = replace(
        ranges[0].entry,
        custom_metadata=b"c",
        marked_at_ms=3,
        state=SegmentState.COPY_FINISHED,
        leader_epochs=((0, 0), (3, 5)),
    )
    ranges[0] = replace(ranges[0], entry=entry)
    assert RemoteTask.of(0, ranges).ranges == tuple(ranges)


def planned(partition: int, task: Task) -> PlannedTask:
    return PlannedTask(Part("t", partition), task)


def test_small_pieces_of_many_partitions_are_read_by_one_task() -> None:
    small = [planned(n, TailTask(n, 0, 1024)) for n in range(20)]
    large = planned(20, RemoteTask.of(20, [segment(0, 9, 100 << 20)]))
    plan = ReadPlan({}, (*small, large), ends_with_tier=False)
    # A record of brokers counts as 1 KiB, and pieces up to 8 MiB are grouped.
    assert [len(group) for group in plan.groups(64 << 20)] == [8, 8, 4, 1]
    assert [task for group in plan.groups(64 << 20) for task in group] == [*small, large]
    # The option limits groups as well.
    assert [len(group) for group in plan.groups(1)] == [1] * 21


def test_a_small_tail_is_read_by_the_last_tier_task_of_its_partition() -> None:
    def remote(partition: int, mebibytes: int) -> PlannedTask:
        return planned(partition, RemoteTask.of(partition, [segment(0, 9, mebibytes << 20)]))

    def tail(partition: int, mebibytes: int) -> PlannedTask:
        return planned(partition, TailTask(partition, 10, 10 + mebibytes * 1024))

    def sizes(*tasks: PlannedTask) -> list[int]:
        plan = ReadPlan({}, tasks, ends_with_tier=False)
        groups = list(plan.groups(64 << 20))
        # Each task is in one group, in the order of the plan.
        assert [task for group in groups for task in group] == list(tasks)
        return [len(group) for group in groups]

    assert sizes(remote(0, 40), tail(0, 7), remote(1, 40), tail(1, 7)) == [2, 2]
    # A tail that is not small, or does not fit, is a task: another core may read it.
    assert sizes(remote(0, 40), tail(0, 9)) == [1, 1]
    assert sizes(remote(0, 60), tail(0, 7)) == [1, 1]
    # So is the tail of another partition.
    assert sizes(remote(0, 40), tail(1, 1)) == [1, 1]


def test_a_part_of_a_segment_counts_by_its_share_of_the_bytes() -> None:
    complete = segment(0, 9, 1000)
    part = replace(complete, from_offset=5)
    # Half of a segment counts 500 bytes, which do not fill a task of 600.
    made = tasks_of((5, 20, [part, segment(10, 19, 1000)]), 600)
    assert [len(task.ranges) for task in made if isinstance(task, RemoteTask)] == [2]


waits = st.builds(
    lambda start, length, steps: PendingPartition(
        start, start + length, [Weight(start + end, item) for end, item in sorted(steps)]
    ),
    st.integers(0, 50),
    st.integers(-3, 40),
    st.lists(st.tuples(st.integers(1, 60), st.floats(0.5, 500)), max_size=4),
)


@given(
    waiting=st.dictionaries(st.integers(0, 5), waits, max_size=5),
    limits=st.builds(BatchLimits, st.none() | st.integers(1, 80), st.none() | st.integers(1, 5000)),
)
def test_micro_batches_advance_within_their_limits(
    waiting: dict[int, PendingPartition], limits: BatchLimits
) -> None:
    """A batch never moves back or beyond the end, and always advances.

    Each partition may exceed the limits by one offset.
    """
    rounds = 0
    goal = {part: max(item.start, item.end) for part, item in waiting.items()}
    while any(item.offsets for item in waiting.values()):
        ends = limited(waiting, limits)
        for part, item in waiting.items():
            least = item.start + 1 if item.offsets else item.start
            assert least <= ends[part] <= goal[part]
        moved = {part: ends[part] - item.start for part, item in waiting.items()}
        if limits.offsets is not None:
            assert sum(moved.values()) <= limits.offsets + len(waiting)
        waiting = {part: replace(item, start=ends[part]) for part, item in waiting.items()}
        rounds += 1
        assert rounds <= 200
    assert {part: max(item.start, item.end) for part, item in waiting.items()} == goal


def test_pending_bytes_are_extrapolated_from_the_last_segment() -> None:
    waiting = PendingPartition(0, 40, [Weight(10, 100.0), Weight(20, 1.0)])
    # 10 offsets of 100 bytes, 10 of 1 byte, and 20 more that are not in a segment.
    assert waiting.bytes == 1000 + 10 + 20
    assert waiting.end_of_bytes(500) == 5
    assert waiting.end_of_bytes(1005) == 15
    # Without any segment, an offset counts 1 KiB.
    assert PendingPartition(3, 5).bytes == 2 * 1024
