"""A read of the tier gives every offset between start and end once (invariants 5, 26, 27)."""

from collections.abc import Mapping

import pytest
from small_tier import SmallTier

from tidemark_pipeline import remote
from tidemark_pipeline.decode import CorruptData
from tidemark_pipeline.options import OptionError, parse
from tidemark_pipeline.plan import Planner
from tidemark_pipeline.tasks import RemoteTask


def values(first: int, count: int) -> list[bytes]:
    return [f"value {first + i}".encode() for i in range(count)]


def read(tier: SmallTier, **options: str) -> list[tuple[int, bytes]]:
    return [
        (int(row["offset"]), bytes(row["value"]))
        for task in plan(tier, options)
        for batch in remote.read_task(
            tier.tier,
            "t",
            tier.topic_id,
            task,
            fail_on_data_loss=options.get("failOnDataLoss") != "false",
        )
        for row in batch.to_pylist()
    ]


def plan(tier: SmallTier, options: Mapping[str, str]) -> list[RemoteTask]:
    parsed = parse({"topic": "t", "path": str(tier.path), **options})
    topic_id, tasks = Planner(tier.tier.reader, parsed).plan()
    assert topic_id == tier.topic_id
    remote_tasks = [task for task in tasks if isinstance(task, RemoteTask)]
    assert len(remote_tasks) == len(tasks)
    return remote_tasks


def expected(first: int, end: int) -> list[tuple[int, bytes]]:
    return list(enumerate(values(first, end - first), start=first))


def test_all_segments_are_read_in_order(small_tier: SmallTier) -> None:
    for number in range(5):
        small_tier.copy(values(number * 7, 7))
    assert read(small_tier) == expected(0, 35)


def test_small_tasks_read_the_same_rows(small_tier: SmallTier) -> None:
    for number in range(5):
        small_tier.copy(values(number * 7, 7))
    assert len(plan(small_tier, {"bytesPerTask": "1"})) == 5
    assert read(small_tier, bytesPerTask="1") == expected(0, 35)


def test_a_batch_larger_than_a_piece_is_read_whole(
    small_tier: SmallTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PIECE_BYTES", 100)
    small_tier.copy(values(0, 30), batch_records=10)
    assert read(small_tier) == expected(0, 30)


def test_start_and_end_may_lie_inside_segments(small_tier: SmallTier) -> None:
    for number in range(3):
        small_tier.copy(values(number * 10, 10))
    got = read(small_tier, startingOffsets='{"0": 4}', endingOffsets='{"0": 27}')
    assert got == expected(4, 27)


def test_deleted_records_are_not_read(small_tier: SmallTier) -> None:
    for number in range(3):
        small_tier.copy(values(number * 10, 10))
    small_tier.expire_to(13)
    assert read(small_tier) == expected(13, 30)


def test_a_start_below_the_log_start_is_refused(small_tier: SmallTier) -> None:
    small_tier.copy(values(0, 10))
    small_tier.expire_to(5)
    with pytest.raises(OptionError, match="its log starts at 5"):
        plan(small_tier, {"startingOffsets": '{"0": 2}'})
    lenient = read(small_tier, startingOffsets='{"0": 2}', failOnDataLoss="false")
    assert lenient == expected(5, 10)


def test_a_segment_that_expired_meanwhile_is_data_loss(small_tier: SmallTier) -> None:
    entry = small_tier.copy(values(0, 10))
    small_tier.copy(values(10, 10))
    tasks = plan(small_tier, {})
    small_tier.expire_to(10)
    small_tier.tier.segments.delete(entry)
    with pytest.raises(remote.DataLoss, match="t-0, offsets 0 to 9 expired"):
        list(
            remote.read_task(
                small_tier.tier, "t", small_tier.topic_id, tasks[0], fail_on_data_loss=True
            )
        )
    rest = remote.read_task(
        small_tier.tier, "t", small_tier.topic_id, tasks[0], fail_on_data_loss=False
    )
    assert sum(batch.num_rows for batch in rest) == 10


def test_an_object_that_is_gone_without_reason_is_corruption(small_tier: SmallTier) -> None:
    entry = small_tier.copy(values(0, 10))
    tasks = plan(small_tier, {})
    small_tier.tier.segments.delete(entry)
    with pytest.raises(CorruptData, match="the manifest names"):
        list(
            remote.read_task(
                small_tier.tier, "t", small_tier.topic_id, tasks[0], fail_on_data_loss=False
            )
        )
