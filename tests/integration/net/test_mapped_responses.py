"""Records that the kernel sends from mapped log files, as a broker sends them to plaintext clients.

The server is a process of its own, since a wrong access to a mapping would kill it.
"""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Self

import pytest

from tests.effort import examples
from tests.integration.net.mapped_server import Order
from tidemark.records.batch import iter_headers
from tidemark_broker.log.segment import MAPPED_BYTES_MIN

TIMEOUT_S = 30
#: Segments of one response, which is larger than the buffers of both sockets.
LARGE_BYTES = 12_000_000


class LogClient:
    """Blocking client of the server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        # A small buffer, so that most of a response waits in the server.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(("127.0.0.1", port))
        self._file = self._socket.makefile("rb")

    def send(self, *orders: Order) -> None:
        self._socket.sendall(b"".join(order.frame() for order in orders))

    def response(self) -> bytes:
        """Return the records of the next response, fewer if the server closed the connection."""
        return self.part(self.length())

    def length(self) -> int:
        return int.from_bytes(self.part(4), "big")

    def part(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except ConnectionResetError:
            return b""

    def do(self, *orders: Order) -> list[bytes]:
        self.send(*orders)
        return [self.response() for _ in orders]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()


@contextlib.contextmanager
def serving(directory: Path, segment_bytes: int) -> Iterator[int]:
    """Start the server, which must be alive in the end; yield its port."""
    program = "tests.integration.net.mapped_server"
    command = [sys.executable, "-m", program, str(directory), str(segment_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
            assert server.poll() is None
        finally:
            server.kill()


def appended(client: LogClient, sizes: Sequence[int], *, seed: int) -> dict[int, bytes]:
    """Append a batch of one record for each size; return all batches by offset."""
    client.do(*(Order(do="append", size=size, seed=seed) for size in sizes))
    log = b""
    batches: dict[int, bytes] = {}
    # Small reads are copied by the server.
    while data := client.do(Order(do="read", offset=len(batches), size=1))[0]:
        log += data
        batches[len(batches)] = data
    return batches


def joined_from(batches: dict[int, bytes], offset: int) -> bytes:
    return b"".join(batches[number] for number in range(offset, len(batches)))


@pytest.mark.parametrize("seed", range(examples(20)))
def test_slow_pipelining_readers_get_the_bytes_of_the_log(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with serving(tmp_path / "t-0", 2_000_000) as port, contextlib.ExitStack() as stack:
        writer, *readers = (stack.enter_context(LogClient(port)) for _ in range(4))
        sizes = [random.choice([1_000, 100_000, MAPPED_BYTES_MIN - 100]) for _ in range(40)]
        batches = appended(writer, sizes, seed=seed)
        # Each reader pipelines requests, and reads only the beginning of the first response.
        requested = []
        for reader in readers:
            offsets = [random.randrange(len(batches)) for _ in range(random.randint(1, 5))]
            reader.send(*(Order(do="read", offset=offset, size=3_000_000) for offset in offsets))
            requested.append((reader, reader.length(), offsets))
        # Meanwhile the log grows, and loses its oldest segments.
        writer.do(Order(do="append", size=500_000), Order(do="delete", size=3_000_000))
        for reader, first_size, offsets in requested:
            for number, offset in enumerate(offsets):
                size = reader.length() if number else first_size
                data = reader.part(size)
                assert len(data) == size
                # Later requests may find the records deleted.
                assert data or number > 0
                # Whole batches from the requested one.
                assert sum(header.size_bytes for _, header in iter_headers(data)) == size
                former = joined_from(batches, offset)
                assert former.startswith(data[: len(former)])


def test_connection_ends_if_the_log_is_cut_during_a_response(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "t-0", LARGE_BYTES) as port,
        LogClient(port) as writer,
        LogClient(port) as reader,
    ):
        batches = appended(writer, [100_000] * 100, seed=1)
        reader.send(Order(do="read", offset=0, size=LARGE_BYTES))
        size = reader.length()
        assert size > 10_000_000
        writer.do(Order(do="truncate", offset=1))
        # The response ends early. It begins with the bytes that are left.
        got = reader.part(size)
        assert len(got) < size
        assert got.startswith(batches[0])
        # The server serves others.
        assert writer.do(Order(do="read", offset=0, size=LARGE_BYTES)) == [batches[0]]
