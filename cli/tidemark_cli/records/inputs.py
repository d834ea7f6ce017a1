"""Records to send: lines of standard input, one value, generated values, or the demo's flights."""

import asyncio
import itertools
import os
import random
import string
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tidemark_cli.records.positions import TIME_FORMS, parse_time_ms

if TYPE_CHECKING:
    from tidemark.records.builder import Record

#: Longest line of the input; brokers accept 1 MiB by default.
LINE_BYTES_MAX = 16 * 1024 * 1024
_READ_BYTES = 64 * 1024
#: Pieces of the input that may wait for the producer.
_PIECES_MAX = 4
_POOL_BYTES = 256 * 1024


class BadInput(ValueError):
    """Input that is no record; the text says what to do."""


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Fields that all records of a run share.

    ``timestamp_ms`` None: the present time. ``empty_is_null``: an empty value is a tombstone.
    """

    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    empty_is_null: bool = False

    def record(self, value: bytes, now_ms: int, *, key: bytes | None = None) -> "Record":
        """Return a record with a value, and with its own key if it has one."""
        from tidemark.records.builder import Record

        stamp = now_ms if self.timestamp_ms is None else self.timestamp_ms
        null = self.empty_is_null and not value
        own = self.key if key is None else key
        return Record(own, None if null else value, self.headers, stamp)


#: Kafka's numbers of the codecs.
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ACKS = {"all": -1, "1": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """Options about the records to send, their partition and their rate."""

    value: Annotated[str | None, typer.Option("--value", "-v", help="Value of the records.")] = None
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of the records.")] = None
    key_separator: Annotated[
        str,
        typer.Option(
            "--key-separator", "-K", help="Text between key and value of a line, such as ':'."
        ),
    ] = ""
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of the records."),
    ] = None
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Partition. Default: by the key's hash."),
    ] = None
    timestamp: Annotated[
        str, typer.Option(metavar="TIME", help=f"Timestamp of the records; {TIME_FORMS}.")
    ] = ""
    tombstone: Annotated[
        bool, typer.Option("--tombstone", "-Z", help="Write null for an empty value.")
    ] = False
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-c",
            min=1,
            help="Number of records. Default: all lines or flights; with --value or --size one, "
            "or no limit with --rate.",
        ),
    ] = None
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Records per second. Default: no limit.")
    ] = None
    size: Annotated[
        int, typer.Option(min=0, max=2**30, help="Generate values of this many bytes.")
    ] = 0
    flights: Annotated[
        bool,
        typer.Option(
            "--flights",
            help="Write the demo's records, real flights of 2013 as JSON. A topic keeps them only "
            "with retention.ms=-1.",
        ),
    ] = False
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        typer.Option("--compression", "-z", help="Compression of batches."),
    ] = "none"
    acks: Annotated[
        Literal["all", "1"],
        typer.Option(
            help="Replicas that acknowledge a record: all in sync, with repetitions that write no "
            "duplicates, or the leader (1)."
        ),
    ] = "all"

    def sources(self) -> list[str]:
        """Return the options that name a source of records; without one it is standard input."""
        sources = {"--value": self.value is not None, "--size": self.size > 0}
        return [name for name, given in {**sources, "--flights": self.flights}.items() if given]

    def records_max(self) -> int | None:
        """Return the number of records, None if the source or a signal ends the run."""
        one = self.rate is None and bool(self.sources()) and not self.flights
        return 1 if self.count is None and one else self.count

    def fields(self) -> RecordFields:
        """Return the fields that all records share. Raises :class:`BadInput`, BadPosition."""
        return RecordFields(
            None if self.key is None else self.key.encode(),
            parse_headers(self.headers or ()),
            parse_time_ms(self.timestamp) if self.timestamp else None,
            self.tombstone,
        )


def parse_headers(texts: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
    """Parse ``name=value`` arguments. Raises :class:`BadInput`."""
    headers = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadInput(f"--header {text!r} is not a pair: write name=value")
        headers.append((name, value.encode()))
    return tuple(headers)


def split_key(line: bytes, number: int, separator: bytes) -> tuple[bytes | None, bytes]:
    """Return key and value of a line; without a separator the line has no key.

    ``number``: of the line, for messages. Raises :class:`BadInput`.
    """
    if not separator:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise BadInput(f"line {number} has no key separator {separator.decode()!r}")
    return key, value


def generated_values(size: int) -> Iterator[bytes]:
    """Yield values of ``size`` bytes without end: their number, and random letters."""
    pool = "".join(random.choices(string.ascii_letters, k=_POOL_BYTES)).encode()
    for number in itertools.count(1):
        text = b"record %d " % number
        while len(text) < size:
            at = random.randrange(_POOL_BYTES // 2)
            text += pool[at : at + size - len(text)]
        yield text[:size]


def flights(count: int | None) -> Iterable["Record"]:
    """Return the first flights of 2013 as records, each with the time of its departure.

    Raises :class:`BadInput` if their package is not installed.
    """
    from tidemark.records.builder import Record
    from tidemark_cli.records.flights import FLIGHTS_TOTAL, read

    try:
        found = read(FLIGHTS_TOTAL if count is None else count)
    except FileNotFoundError as error:
        raise BadInput(str(error)) from error
    return (Record(flight.key, flight.value, (), flight.timestamp_ms) for flight in found)


async def lines(read: Callable[[], bytes], stop: asyncio.Event) -> AsyncGenerator[bytes, None]:
    """Yield the lines of an input without their ends, until its end or ``stop``.

    ``read``: blocks, and returns the next bytes, b"" at the end. Raises :class:`BadInput` for a
    line above :data:`LINE_BYTES_MAX`.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    # A fast input waits for its lines to be taken, so it does not fill the memory.
    free = threading.Semaphore(_PIECES_MAX)

    # A thread of its own: a terminal blocks, and a regular file has no events.
    def pump() -> None:
        piece = b"?"
        while piece:
            free.acquire()
            piece = read()
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:  # the command has ended
                return

    threading.Thread(target=pump, daemon=True).start()
    stopping = asyncio.create_task(stop.wait())
    rest = b""
    try:
        while not stop.is_set():
            taking = asyncio.create_task(pieces.get())
            await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                taking.cancel()
                return
            free.release()
            piece = taking.result()
            if not piece:
                break
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise BadInput(f"a line is longer than {LINE_BYTES_MAX >> 20} MiB")
            for line in whole:
                yield line
        # The last line may lack its end.
        if rest and not stop.is_set():
            yield rest
    finally:
        stopping.cancel()


def read_standard_input() -> bytes:
    """Block for the next bytes of standard input.

    Not through ``sys.stdin``: a thread that waits there holds a lock that the interpreter needs at
    its end.
    """
    return os.read(0, _READ_BYTES)
