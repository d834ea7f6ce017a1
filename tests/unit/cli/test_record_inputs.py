"""Sources of records: lines of an input that blocks, headers, keys, generated values, flights."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from itertools import islice

import pytest
from typer.testing import CliRunner

from tidemark_cli.main import app
from tidemark_cli.records import inputs
from tidemark_cli.records.flights import load
from tidemark_cli.records.inputs import (
    BadInput,
    RecordFields,
    flights,
    generated_values,
    lines,
    parse_headers,
    split_key,
)


def reading(pieces: Iterable[bytes]) -> Callable[[], bytes]:
    left = iter([*pieces, b""])
    return lambda: next(left)


async def all_lines(*pieces: bytes) -> list[bytes]:
    return [line async for line in lines(reading(pieces), asyncio.Event())]


async def test_lines_may_span_reads_and_the_last_may_lack_its_end() -> None:
    assert await all_lines(b"one\ntw", b"o\n", b"\nthr", b"ee") == [b"one", b"two", b"", b"three"]
    assert await all_lines(b"one\n") == [b"one"]
    assert await all_lines() == []


async def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LINE_BYTES_MAX", 1000)
    with pytest.raises(BadInput, match="longer than"):
        await all_lines(*[b"x" * 400] * 4)


async def test_a_fast_input_is_read_only_as_fast_as_its_lines_are_taken() -> None:
    reads = 0

    def read() -> bytes:
        nonlocal reads
        reads += 1
        return b"line\n"

    source = lines(read, asyncio.Event())
    await anext(source)
    await asyncio.sleep(0.1)
    assert reads < 10
    await source.aclose()


async def test_a_stop_ends_the_wait_for_a_line() -> None:
    stop, waiting, end = asyncio.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def read() -> bytes:
        loop.call_soon_threadsafe(waiting.set)
        end.wait(10)
        return b""

    source = lines(read, stop)
    taking = asyncio.ensure_future(anext(source, None))
    await waiting.wait()
    stop.set()
    assert await asyncio.wait_for(taking, 5) is None
    end.set()


def test_headers_are_pairs() -> None:
    assert parse_headers(["a=1", "b=x=y", "c="]) == (("a", b"1"), ("b", b"x=y"), ("c", b""))
    for text in ("a", "=1"):
        with pytest.raises(BadInput, match="write name=value"):
            parse_headers([text])


def test_a_line_is_split_at_the_first_separator() -> None:
    assert split_key(b"k:v:w", 1, b":") == (b"k", b"v:w")
    assert split_key(b"k:v", 1, b"") == (None, b"k:v")
    with pytest.raises(BadInput, match="line 3 has no key separator ':'"):
        split_key(b"value", 3, b":")


def test_an_empty_value_is_a_tombstone_only_on_request() -> None:
    assert RecordFields(key=b"k").record(b"", 5).value == b""
    tombstone = RecordFields(key=b"k", empty_is_null=True)
    assert tombstone.record(b"", 5).value is None
    assert tombstone.record(b"v", 5).value == b"v"
    record = RecordFields(key=b"k", timestamp_ms=9).record(b"v", 5, key=b"own")
    assert (record.key, record.timestamp_ms) == (b"own", 9)


def test_generated_values_have_their_size_and_differ() -> None:
    values = list(islice(generated_values(100), 50))
    assert {len(value) for value in values} == {100}
    assert len(set(values)) == 50
    assert values[1].startswith(b"record 2 ")
    assert len(next(generated_values(1_000_000))) == 1_000_000
    assert next(generated_values(3)) == b"rec"


def test_flights_are_the_oldest_ones() -> None:
    records = list(flights(100))
    assert [record.value for record in records] == [flight.value for flight in load(100)]
    stamps = [record.timestamp_ms for record in records]
    assert stamps == sorted(stamps)
    assert stamps[0] == 1_357_034_400_000


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("produce orders --value a --size 5", "two sources of records"),
        ("produce orders --value a --key-separator :", "lines of standard input"),
        ("produce orders --key a --key-separator :", "exclude each other"),
        ("produce orders --flights --key a", "keys and timestamps of its own"),
        ("produce orders --value a --header b", "write name=value"),
        ("produce orders --value a --timestamp soon", "ISO 8601"),
        ("consume orders --group a --partition 1", "exclude each other"),
        ("consume orders --offset first", "write start, end"),
        ("consume orders --format %q", "is no directive"),
        ("groups reset readers --to first", "write start, end"),
        ("produce orders --value a --dir /nothing", "or name brokers with --bootstrap"),
        ("topics list --bootstrap nowhere", "host:port"),
    ],
)
def test_contradictory_options_are_refused_before_any_connection(
    command: str, problem: str
) -> None:
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 1
    assert problem in " ".join(done.stderr.split())
