"""A stream's offsets, as Spark's driver requests them, in a tier without brokers."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from small_tier import SmallTier

from tidemark.ids import id_text
from tidemark.log_lineage import ReadPosition
from tidemark_pipeline.errors import DataLoss
from tidemark_pipeline.read.options import parse
from tidemark_pipeline.read.streaming import (
    Offsets,
    StreamOffset,
    TidemarkStreamReader,
)


def reader(tier: SmallTier, **options: str) -> TidemarkStreamReader:
    given = {"topic": "t", "path": str(tier.path), "startingOffsets": "earliest", **options}
    return TidemarkStreamReader(parse(given, streaming=True))


def at(offset: int) -> Offsets:
    return {"t": {"0": offset}}


def plain(offsets: Offsets) -> Offsets:
    """Return a checkpoint's offsets without its other entries."""
    return {topic: rows for topic, rows in offsets.items() if not topic.startswith("#")}


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
    """Spark requests the latest offset first, then the initial one, and then the plan."""
    copy(small_tier, 25)
    stream = reader(small_tier, maxOffsetsPerTrigger="10")
    position, seen = at(0), list[int]()
    for _ in range(3):
        end = stream.latestOffset()
        assert plain(stream.initialOffset()) == at(0)
        seen += offsets(stream, stream.partitions(position, end))
        position = end
    assert seen == list(range(25))
    assert plain(stream.latestOffset()) == at(25)
    copy(small_tier, 5)
    assert plain(stream.latestOffset()) == at(30)


def test_restarted_query_counts_its_limit_from_its_position(small_tier: SmallTier) -> None:
    """Spark plans an empty batch there before any other request."""
    copy(small_tier, 30)
    stream = reader(small_tier, maxOffsetsPerTrigger="10")
    assert stream.partitions(at(15), at(15)) == []
    assert plain(stream.latestOffset()) == at(25)


def test_a_batch_that_is_repeated_has_the_same_rows(small_tier: SmallTier) -> None:
    copy(small_tier)
    first = reader(small_tier)
    end = first.latestOffset()
    rows = offsets(first, first.partitions(at(3), end))
    copy(small_tier)
    repeated = reader(small_tier)
    assert offsets(repeated, repeated.partitions(at(3), end)) == rows == list(range(3, 10))


def test_bytes_limit_a_batch(small_tier: SmallTier) -> None:
    for _ in range(4):
        copy(small_tier)
    half = sum(entry.size_bytes for entry in small_tier.entries) // 2
    # Half of the bytes are two of four segments with 10 records each.
    end = reader(small_tier, maxBytesPerTrigger=str(half)).latestOffset()["t"]["0"]
    assert 18 <= end <= 20


def test_a_new_query_begins_at_the_end_by_default(small_tier: SmallTier) -> None:
    copy(small_tier)
    stream = reader(small_tier, startingOffsets="latest")
    assert stream.initialOffset() == stream.latestOffset()
    assert plain(stream.initialOffset()) == at(10)


def test_a_query_with_an_end_stops_there(small_tier: SmallTier) -> None:
    copy(small_tier)
    stream = reader(small_tier, endingOffsets="latest")
    assert plain(stream.latestOffset()) == at(10)
    copy(small_tier)
    assert plain(stream.latestOffset()) == at(10)
    assert plain(reader(small_tier, endingOffsets='{"0": 4}').latestOffset()) == at(4)


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [(2, 10, "is at offset 2 .* goes from 5 to 10"), (5, 11, "from 5 to 10"), (9, 7, "re-created")],
    ids=["expired", "beyond", "back"],
)
def test_unavailable_offsets_are_data_loss(
    small_tier: SmallTier, start: int, end: int, message: str
) -> None:
    copy(small_tier)
    small_tier.expire_to(5)
    with pytest.raises(DataLoss, match=message):
        reader(small_tier).partitions(at(start), at(end))
    lenient = reader(small_tier, failOnDataLoss="false")
    tasks = lenient.partitions(at(start), at(end))
    assert offsets(lenient, tasks) == list(range(max(start, 5), min(end, 10)))


def test_new_partition_is_read_from_its_start(small_tier: SmallTier) -> None:
    copy(small_tier)
    stream = reader(small_tier)
    tasks = stream.partitions({}, at(10))
    assert offsets(stream, tasks) == list(range(10))


def test_a_missing_partition_is_data_loss(small_tier: SmallTier) -> None:
    copy(small_tier)
    both = {"t": {"0": 10, "1": 7}}
    with pytest.raises(DataLoss, match="t-1 no longer exists"):
        reader(small_tier).partitions(at(10), both)
    stream = reader(small_tier)
    # A query that has read the partition to its end loses nothing.
    assert stream.partitions({"t": {"0": 9, "1": 7}}, both)
    assert plain(stream.latestOffset()) == both


def test_a_task_of_another_source_is_refused(small_tier: SmallTier) -> None:
    with pytest.raises(TypeError, match="was not planned by this source"):
        list(reader(small_tier).read(InputPartition(0)))


def test_offsets_are_written_in_order_and_read_back() -> None:
    positions = {
        ("b", 0): ReadPosition(1),
        ("a", 10): ReadPosition(2, 7),
        ("a", 9): ReadPosition(3, 5),
    }
    text = StreamOffset(positions, {"b": "id"}).to_json()
    assert list(text["a"]) == ["9", "10"]
    assert text["#leaderEpochs"] == {"a": {"9": 5, "10": 7}}
    assert StreamOffset.from_json(json.loads(json.dumps(text))) == StreamOffset(
        positions, {"b": "id"}
    )
    # Spark's Kafka source and older versions write offsets alone.
    assert StreamOffset.from_json(at(3)) == StreamOffset({("t", 0): ReadPosition(3)})
    assert StreamOffset({("t", 0): ReadPosition(3)}).to_json() == at(3)


@pytest.mark.parametrize("with_epochs", [True, False], ids=["", "of an older version"])
def test_a_checkpoint_beyond_the_end_of_a_restored_topic_is_refused(
    small_tier: SmallTier, with_epochs: bool
) -> None:
    """The checkpoint stays refused when the log grows past it, and when records expire."""
    copy(small_tier)
    known = reader(small_tier).latestOffset()
    begin: Offsets = {**known, "t": {"0": 15}} if with_epochs else at(15)
    assert small_tier.restore() == 10
    # This query has only read restored records, so that nothing has changed for it.
    assert reader(small_tier).partitions(known if with_epochs else at(10), at(10)) == []
    copy(small_tier)
    end = reader(small_tier).latestOffset()
    reader(small_tier).partitions(known, end)
    for offset in (0, 15):
        small_tier.expire_to(offset)
        with pytest.raises(
            DataLoss, match=r"t-0: .*lost the records from offset 10 up to 15.*new query"
        ):
            reader(small_tier).partitions(begin, end)
    # A repeated batch has the records that were read first, or fails.
    with pytest.raises(DataLoss, match="from offset 10"):
        reader(small_tier).partitions(known, begin)


def test_a_lenient_query_continues_at_the_first_lost_offset(small_tier: SmallTier) -> None:
    copy(small_tier)
    # The query had read up to offset 15, but only 10 records were in the tier.
    begin = {**reader(small_tier).latestOffset(), "t": {"0": 15}}
    small_tier.restore()
    copy(small_tier)
    lenient = reader(small_tier, failOnDataLoss="false")
    tasks = lenient.partitions(begin, lenient.latestOffset())
    assert offsets(lenient, tasks) == list(range(10, 20))


def test_lenient_query_reads_restored_topic_once(
    small_tier: SmallTier,
) -> None:
    """The restored log ends at the query's position, while another log continues."""
    other = SmallTier(small_tier.path, name="u")
    copy(small_tier)
    copy(other)
    options = {"topic": "", "subscribe": "t,u", "failOnDataLoss": "false"}
    begin = reader(small_tier, **options).latestOffset()
    begin["t"] = {"0": 15}
    small_tier.restore()
    copy(small_tier, 5)
    stream, seen = reader(small_tier, **options), list[int]()
    assert stream.partitions(begin, begin) == []
    for _ in range(3):
        copy(other, 5)
        end = stream.latestOffset()
        seen += offsets(stream, stream.partitions(begin, end))
        begin = end
    assert sorted(seen) == sorted([*range(10, 15), *range(10, 25)])


def test_lenient_query_returns_to_the_point_of_divergence(small_tier: SmallTier) -> None:
    copy(small_tier)
    begin = {**reader(small_tier).latestOffset(), "t": {"0": 15}}
    small_tier.restore()
    copy(small_tier, 2)
    stream = reader(small_tier, failOnDataLoss="false", maxOffsetsPerTrigger="3")
    assert stream.partitions(begin, begin) == []
    seen = list[int]()
    for _ in range(4):
        end = stream.latestOffset()
        seen += offsets(stream, stream.partitions(begin, end))
        begin = end
        # The log grows once the query has caught up with it.
        if end["t"] == {"0": 12}:
            copy(small_tier, 5)
    assert seen == list(range(10, 17))


def test_records_replaced_by_a_later_leader_are_not_skipped(
    small_tier: SmallTier,
) -> None:
    copy(small_tier)
    begin = {**at(8), "#leaderEpochs": {"t": {"0": 0}}}
    with pytest.raises(DataLoss, match=r"from offset 0 up to 8 \(leader epoch 0"):
        reader(small_tier).partitions(begin, at(10))


def test_a_recreated_topic_ends_a_query(small_tier: SmallTier, tmp_path: Path) -> None:
    """The re-created topic has enough records, so that offsets alone reveal nothing."""
    copy(small_tier)
    begin = reader(small_tier).latestOffset()
    (tmp_path / "recreated").mkdir()
    recreated = SmallTier(tmp_path / "recreated")
    copy(recreated, 20)
    stream = reader(recreated)
    assert stream.partitions(begin, begin) == []
    with pytest.raises(DataLoss, match="t was deleted and re-created"):
        stream.partitions(begin, stream.latestOffset())
    lenient = reader(recreated, failOnDataLoss="false")
    # Spark plans the empty batch of a restarted query first.
    lenient.partitions(begin, begin)
    end = lenient.latestOffset()
    assert lenient.partitions(begin, end)
    assert end["#topicIds"] == {"t": id_text(recreated.topic_id)}
