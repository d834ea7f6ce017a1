"""A stream's offsets: as Spark's driver asks for them, of a tier without brokers."""

from collections.abc import Sequence

import pytest
from pyspark.sql.datasource import InputPartition
from small_tier import SmallTier

from tidemark_pipeline.errors import DataLoss
from tidemark_pipeline.options import parse
from tidemark_pipeline.streaming import (
    Offsets,
    TidemarkStreamReader,
    from_json,
    to_json,
)


def reader(tier: SmallTier, **options: str) -> TidemarkStreamReader:
    given = {"topic": "t", "path": str(tier.path), "startingOffsets": "earliest", **options}
    return TidemarkStreamReader(parse(given, streaming=True))


def at(offset: int) -> Offsets:
    return {"t": {"0": offset}}


def copy(tier: SmallTier, records: int = 10) -> None:
    tier.copy([b"%d" % n for n in range(records)])


def offsets(stream: TidemarkStreamReader, tasks: Sequence[InputPartition]) -> list[int]:
    return [
        offset
        for task in tasks
        for batch in stream.read(task)
        for offset in batch.column("offset").to_pylist()
    ]


def test_micro_batches_follow_one_another(small_tier: SmallTier) -> None:
    """As Spark goes about it: the latest offset, only then the initial one, then the plan."""
    copy(small_tier, 25)
    stream = reader(small_tier, maxOffsetsPerTrigger="10")
    position, seen = at(0), list[int]()
    for _ in range(3):
        end = stream.latestOffset()
        assert stream.initialOffset() == at(0)
        seen += offsets(stream, stream.partitions(position, end))
        position = end
    assert seen == list(range(25))
    assert stream.latestOffset() == at(25)
    copy(small_tier, 5)
    assert stream.latestOffset() == at(30)


def test_a_restarted_query_counts_its_limit_from_where_it_was(small_tier: SmallTier) -> None:
    """Spark plans an empty batch there before it asks for anything."""
    copy(small_tier, 30)
    stream = reader(small_tier, maxOffsetsPerTrigger="10")
    assert stream.partitions(at(15), at(15)) == []
    assert stream.latestOffset() == at(25)


def test_a_batch_that_is_repeated_has_the_same_rows(small_tier: SmallTier) -> None:
    copy(small_tier)
    first = reader(small_tier)
    end = first.latestOffset()
    rows = offsets(first, first.partitions(at(3), end))
    copy(small_tier)
    again = reader(small_tier)
    assert offsets(again, again.partitions(at(3), end)) == rows == list(range(3, 10))


def test_bytes_limit_a_batch(small_tier: SmallTier) -> None:
    for _ in range(4):
        copy(small_tier)
    half = sum(entry.size_bytes for entry in small_tier.entries) // 2
    (end,) = from_json(reader(small_tier, maxBytesPerTrigger=str(half)).latestOffset()).values()
    assert 18 <= end <= 20


def test_a_new_query_begins_at_the_end_unless_told(small_tier: SmallTier) -> None:
    copy(small_tier)
    stream = reader(small_tier, startingOffsets="latest")
    assert stream.initialOffset() == stream.latestOffset() == at(10)


def test_a_query_with_an_end_stops_there(small_tier: SmallTier) -> None:
    copy(small_tier)
    stream = reader(small_tier, endingOffsets="latest")
    assert stream.latestOffset() == at(10)
    copy(small_tier)
    assert stream.latestOffset() == at(10)
    assert reader(small_tier, endingOffsets='{"0": 4}').latestOffset() == at(4)


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [(2, 10, "is at offset 2 .* goes from 5 to 10"), (5, 11, "from 5 to 10"), (9, 7, "made anew")],
    ids=["expired", "beyond", "back"],
)
def test_what_is_not_there_any_more_is_data_loss(
    small_tier: SmallTier, start: int, end: int, message: str
) -> None:
    copy(small_tier)
    small_tier.expire_to(5)
    with pytest.raises(DataLoss, match=message):
        reader(small_tier).partitions(at(start), at(end))
    lenient = reader(small_tier, failOnDataLoss="false")
    tasks = lenient.partitions(at(start), at(end))
    assert offsets(lenient, tasks) == list(range(max(start, 5), min(end, 10)))


def test_a_partition_that_came_to_be_is_read_from_its_beginning(small_tier: SmallTier) -> None:
    copy(small_tier)
    stream = reader(small_tier)
    tasks = stream.partitions({}, at(10))
    assert offsets(stream, tasks) == list(range(10))


def test_a_partition_that_is_gone_is_data_loss(small_tier: SmallTier) -> None:
    copy(small_tier)
    both = {"t": {"0": 10, "1": 7}}
    with pytest.raises(DataLoss, match="t-1 is gone"):
        reader(small_tier).partitions(at(10), both)
    stream = reader(small_tier)
    assert stream.partitions({"t": {"0": 9, "1": 7}}, both)
    assert stream.latestOffset() == both


def test_a_task_of_another_source_is_refused(small_tier: SmallTier) -> None:
    with pytest.raises(TypeError, match="was not planned by this source"):
        list(reader(small_tier).read(InputPartition(0)))


def test_offsets_are_written_in_order() -> None:
    places = {("b", 0): 1, ("a", 10): 2, ("a", 9): 3}
    text = to_json(places)
    assert list(text["a"]) == ["9", "10"]
    assert from_json(text) == places
