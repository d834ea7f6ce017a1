"""Offsets of the command line: what is parsed, and how they are brought into a log."""

import pytest

from tidemark.kafka_client.values import EARLIEST, LATEST
from tidemark_cli.records.positions import (
    BadPosition,
    OffsetChoice,
    OffsetKind,
    parse_choice,
    parse_time_ms,
    resolve,
)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("start", OffsetChoice(OffsetKind.START)),
        ("earliest", OffsetChoice(OffsetKind.START)),
        ("END", OffsetChoice(OffsetKind.END)),
        ("17", OffsetChoice(OffsetKind.OFFSET, 17)),
        ("-5", OffsetChoice(OffsetKind.BEFORE_END, 5)),
        ("@1357035300000", OffsetChoice(OffsetKind.TIME_MS, 1_357_035_300_000)),
        ("@2013-01-01T10:15:00Z", OffsetChoice(OffsetKind.TIME_MS, 1_357_035_300_000)),
        ("@2013-01-01T11:15:00+01:00", OffsetChoice(OffsetKind.TIME_MS, 1_357_035_300_000)),
        ("@2013-01-01", OffsetChoice(OffsetKind.TIME_MS, 1_356_998_400_000)),
    ],
)
def test_offsets_are_parsed(text: str, choice: OffsetChoice) -> None:
    assert parse_choice(text) == choice


@pytest.mark.parametrize("text", ["", "first", "1.5", "--5", "@", "@yesterday", "9" * 30])
def test_other_offsets_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(BadPosition, match=r"write start, end|is ISO 8601"):
        parse_choice(text)


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_time_ms("2013-01-01T10:15:00") == parse_time_ms("2013-01-01T10:15:00Z")


class Logs:
    """Two partitions with offsets 10 to 20 and 0 to 4; times are ten times the offset."""

    def __init__(self) -> None:
        self.starts, self.ends = {0: 10, 1: 0}, {0: 20, 1: 4}

    async def offsets(
        self, timestamps: dict[int, int], *, committed: bool = False
    ) -> dict[int, int]:
        def at(partition: int, timestamp: int) -> int:
            if timestamp == EARLIEST:
                return self.starts[partition]
            if timestamp == LATEST:
                return self.ends[partition]
            offset = max(timestamp // 10, self.starts[partition])
            return offset if offset < self.ends[partition] else -1

        return {partition: at(partition, stamp) for partition, stamp in timestamps.items()}


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("start", {0: 10, 1: 0}),
        ("end", {0: 20, 1: 4}),
        ("15", {0: 15, 1: 4}),
        ("2", {0: 10, 1: 2}),
        ("-3", {0: 17, 1: 1}),
        ("-100", {0: 10, 1: 0}),
        ("-0", {0: 20, 1: 4}),
        ("@30", {0: 10, 1: 3}),
        ("@130", {0: 13, 1: 4}),
    ],
)
async def test_offsets_stay_within_each_log(text: str, offsets: dict[int, int]) -> None:
    assert await resolve(parse_choice(text), Logs(), [0, 1]) == offsets  # type: ignore[arg-type]
