"""Records to send: lines of standard input, one value, generated values, or the demo's flights."""

import asyncio
import itertools
import os
import random
import string
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
