"""Positions are written as in Spark's Kafka source, and resolve to offsets within the log."""

import pytest

from tidemark_pipeline.read.options import OptionError, parse
from tidemark_pipeline.read.positions import (
    Earliest,
    Extent,
    FixedOffset,
    Latest,
    NoSuchTime,
    Since,
    offset_of,
)

BASE = {"subscribe": "a,b", "path": "/tier"}
EXTENT = Extent(10, 20)


def found_at(timestamp_ms: int) -> int | None:
    """Find an offset in a log with a record every 100 ms."""
    return timestamp_ms // 100 if timestamp_ms < 2000 else None


def test_json_names_topics_and_partitions() -> None:
    options = parse({**BASE, "startingOffsets": '{"a": {"0": 23, "1": -2}, "b": {"0": -1}}'})
    positions = [options.starting.of(*item) for item in (("a", 0), ("a", 1), ("a", 2), ("b", 0))]
    assert positions == [FixedOffset(23), Earliest(), Earliest(), Latest()]
    assert options.starting.topics == {"a", "b"}


def test_most_specific_option_wins() -> None:
    options = parse(
        {
            **BASE,
            "startingTimestamp": "5",
            "startingOffsetsByTimestamp": '{"a": {"0": 7}}',
            "startingOffsets": "latest",
            "endingOffsetsByTimestamp": '{"a": {"0": 9}}',
        }
    )
    assert options.starting.of("b", 3) == Since(5)
    assert options.ending is not None
    assert options.ending.of("a", 0) == Since(9)
    assert options.ending.of("a", 1) == Latest()


def test_a_stream_begins_at_the_end_and_never_ends_by_default() -> None:
    stream = parse(BASE, streaming=True)
    assert (stream.starting.of("a", 0), stream.ending) == (Latest(), None)
    assert parse({**BASE, "endingOffsets": "latest"}, streaming=True).ending is not None
    assert parse(BASE).starting.of("a", 0) == Earliest()


@pytest.mark.parametrize(
    ("position", "offset"),
    [
        (Earliest(), 10),
        (Latest(), 20),
        (FixedOffset(3), 3),
        (FixedOffset(30), 30),
        (Since(1500), 15),
        (Since(800), 10),
        (Since(2000), 20),
    ],
    ids=str,
)
def test_offset_of_a_position(position: FixedOffset, offset: int) -> None:
    """The planner judges positions outside the log later."""
    assert offset_of(position, EXTENT, found_at) == offset


def test_a_future_timestamp_is_an_error_on_request() -> None:
    with pytest.raises(NoSuchTime, match="2000 ms or later"):
        offset_of(Since(2000), EXTENT, found_at, strict=True)


@pytest.mark.parametrize(
    "value",
    ['{"0": 17}', '{"a": 3}', '{"a": {"0": "x"}}', '{"a": {"0": true}}', '{"a": {"0": -3}}', "[]"],
)
def test_bad_position_names_the_option(value: str) -> None:
    with pytest.raises(OptionError, match=r"startingOffsets"):
        parse({**BASE, "startingOffsets": value})
