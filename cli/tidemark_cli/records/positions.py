"""Choice of an offset in each partition: the start, the end, a number, a distance, or a time."""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from tidemark.kafka_client.topic_leaders import TopicLeaders

FORMS = "start, end, N, -N (the last N records of each partition) or @TIME"
TIME_FORMS = "a time is ISO 8601 such as 2026-01-31T12:00:00Z, or milliseconds since 1970"
_START = frozenset({"start", "beginning", "earliest"})
_END = frozenset({"end", "latest"})
_NUMBER = re.compile(r"-?\d{1,18}")


class BadPosition(ValueError):
    """Text that is no offset or time; the message says what to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Options about the records to read."""

    offset: Annotated[
        str,
        typer.Option("--offset", "-o", help=f"First offset: {FORMS}; {TIME_FORMS}."),
    ] = "start"
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Partition. Default: all."),
    ] = None
    group: Annotated[
        str,
        typer.Option(
            "--group",
            "-g",
            help="Consumer group: read the partitions that it assigns from its committed offsets "
            "on, and commit. --offset is for partitions without one.",
        ),
    ] = ""
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="End after this many records.")
    ] = None
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--exit", "-f/-e", help="Wait for new records, or exit at the present end."
        ),
    ] = False
    read_uncommitted: Annotated[
        bool,
        typer.Option(
            "--read-uncommitted", help="Read records of open and aborted transactions too."
        ),
    ] = False


class OffsetKind(enum.Enum):
    """Meaning of a choice's number."""

    OFFSET = enum.auto()
    BEFORE_END = enum.auto()
    TIME_MS = enum.auto()
    START = enum.auto()
    END = enum.auto()


class OffsetChoice(NamedTuple):
    """Chosen offset; ``number`` is an offset, a distance to the end, or milliseconds."""

    kind: OffsetKind
    number: int = 0


def parse_choice(text: str) -> OffsetChoice:
    """Parse an offset of the command line. Raises :class:`BadPosition`."""
    word = text.strip().lower()
    if word in _START:
        return OffsetChoice(OffsetKind.START)
    if word in _END:
        return OffsetChoice(OffsetKind.END)
    if word.startswith("@"):
        return OffsetChoice(OffsetKind.TIME_MS, parse_time_ms(text.strip()[1:]))
    if not _NUMBER.fullmatch(word):
        raise BadPosition(f"{text!r} is no offset: write {FORMS}")
    # -0 means the end: no record is behind it.
    if word.startswith("-"):
        return OffsetChoice(OffsetKind.BEFORE_END, -int(word))
    return OffsetChoice(OffsetKind.OFFSET, int(word))


def parse_time_ms(text: str) -> int:
    """Parse a time into milliseconds since 1970. Raises :class:`BadPosition`."""
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadPosition(f"{text!r} is no time: {TIME_FORMS}") from error
    # Without a zone the time is UTC, as brokers store it.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


async def resolve(
    choice: OffsetChoice,
    leaders: "TopicLeaders",
    partitions: Sequence[int],
    *,
    committed: bool = False,
) -> dict[int, int]:
    """Return the chosen offset of each partition, within its log. Raises ``KafkaError``.

    ``committed``: the end is the last stable offset.
    """
    from tidemark.kafka_client.values import EARLIEST, LATEST

    starts = await leaders.offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await leaders.offsets(dict.fromkeys(partitions, LATEST), committed=committed)
    match choice.kind:
        case OffsetKind.START:
            return starts
        case OffsetKind.END:
            return ends
        case OffsetKind.OFFSET:
            chosen = dict.fromkeys(partitions, choice.number)
        case OffsetKind.BEFORE_END:
            chosen = {partition: end - choice.number for partition, end in ends.items()}
        case OffsetKind.TIME_MS:
            found = await leaders.offsets(dict.fromkeys(partitions, choice.number))
            # -1: no record is as late as the time.
            chosen = {p: ends[p] if offset < 0 else offset for p, offset in found.items()}
    return {p: min(max(offset, starts[p]), ends[p]) for p, offset in chosen.items()}
