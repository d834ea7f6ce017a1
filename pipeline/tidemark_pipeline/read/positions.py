"""Start and end of a read: the options, and the resulting offsets of a partition.

The JSON is that of Spark's Kafka source: ``{"topic": {"0": 23, "1": -2}}``, where -2 is the
earliest offset and -1 the latest. By timestamp the numbers are milliseconds. Partitions that are
not named are read from their log start or to their end.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark.kafka_client.values import EARLIEST, LATEST

#: Stands for the topic in the short form ``{"0": 23}``, which is for a read of one topic.
ANY_TOPIC = ""


class PositionError(ValueError):
    """Text that is not a position; the message says what to write."""


class NoSuchTime(PositionError):
    """No record of a partition is as late as the time that a read is to start at."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """Start at the log start of the partition."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end at the moment of planning."""


@dataclass(frozen=True, slots=True)
class FixedOffset:
    """Start or end at a given offset, which may be outside the log."""

    offset: int


@dataclass(frozen=True, slots=True)
class Since:
    """The first offset of this time or later."""

    timestamp_ms: int


Position = Earliest | Latest | FixedOffset | Since


@dataclass(frozen=True, slots=True)
class Positions:
    """A position for every partition: ``each`` by topic and number, ``otherwise`` for the rest."""

    otherwise: Position
    each: Mapping[tuple[str, int], Position] = field(default_factory=dict)

    def of(self, topic: str, partition: int) -> Position:
        """Return the position of one partition."""
        short = self.each.get((ANY_TOPIC, partition), self.otherwise)
        return self.each.get((topic, partition), short)

    @property
    def topics(self) -> frozenset[str]:
        """Return the topics that positions name."""
        return frozenset(topic for topic, _ in self.each if topic != ANY_TOPIC)

    @property
    def is_short(self) -> bool:
        """Return whether partitions are named without their topic."""
        return any(topic == ANY_TOPIC for topic, _ in self.each)


@dataclass(frozen=True, slots=True)
class Extent:
    """Readable offsets of a partition: from ``log_start`` up to, not including, ``end``."""

    log_start: int
    end: int


def parse_offsets(text: str, otherwise: Position) -> Positions:
    """Parse ``earliest``, ``latest`` or JSON by partition. Raises :class:`PositionError`."""
    named_positions: dict[str, Position] = {"earliest": Earliest(), "latest": Latest()}
    position = named_positions.get(text.strip().lower())
    if position is not None:
        return Positions(position)
    return Positions(otherwise, _each(text, _offset))


def parse_timestamps(text: str, otherwise: Position) -> Positions:
    """Parse JSON of milliseconds by partition. Raises :class:`PositionError`."""
    return Positions(otherwise, _each(text, _since))


def parse_timestamp(text: str) -> Positions:
    """Parse one time (milliseconds) for every partition. Raises :class:`PositionError`."""
    if not text.strip().isdecimal():
        raise PositionError("write milliseconds since 1970, a whole number")
    return Positions(Since(int(text)))


def offset_of(
    position: Position, extent: Extent, find: Callable[[int], int | None], *, strict: bool = False
) -> int:
    """Return the offset of a position, which may be outside the partition's extent.

    ``find``: returns the first offset with a timestamp or a later one, None if there is none. In
    that case :class:`NoSuchTime` is raised if ``strict``, otherwise the end is returned. The caller
    handles offsets outside the extent.
    """
    match position:
        case Earliest():
            return extent.log_start
        case Latest():
            return extent.end
        case FixedOffset(offset):
            return offset
        case Since(timestamp_ms):
            offset_at_time = find(timestamp_ms)
            if offset_at_time is None and strict:
                raise NoSuchTime(f"no record is of {timestamp_ms} ms or later")
            # A segment in the tier may still have records below the log start.
            return extent.end if offset_at_time is None else max(offset_at_time, extent.log_start)


def _each(text: str, read: Callable[[int], Position]) -> dict[tuple[str, int], Position]:
    try:
        return {
            (topic, _integer(int(partition))): read(_integer(number))
            for topic, rows in _by_topic(json.loads(text))
            for partition, number in rows.items()
        }
    # RecursionError: JSON may be nested arbitrarily deep.
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise PositionError('write JSON by topic and partition, e.g. {"t": {"0": 17}}') from error


def _by_topic(parsed: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, value in parsed.items():
        # A number instead of an object is the short form without a topic.
        yield (name, value) if isinstance(value, dict) else (ANY_TOPIC, {name: value})


def _integer(number: object) -> int:
    # A bool is an int in Python, but not in JSON.
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{number!r} is no whole number")
    return number


def _offset(number: int) -> Position:
    if number == LATEST:
        return Latest()
    if number == EARLIEST:
        return Earliest()
    if number < 0:
        raise ValueError(f"{number} is no offset")
    return FixedOffset(number)


def _since(number: int) -> Position:
    if number < 0:
        raise ValueError(f"{number} is no time")
    return Since(number)
