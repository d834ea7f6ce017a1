"""Memory of responses: they count until the client has received them. A client that reads nothing
is not served any more."""

import asyncio
import contextlib
import itertools
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from tidemark.wire.receiver import Frame
from tidemark_broker.admission.connection_limits import ConnectionLimits
from tidemark_broker.admission.response_memory import SMALL_BYTES, ResponseMemory
from tidemark_broker.net import connections as connections_module
from tidemark_broker.net.connections import Connections
from tidemark_broker.net.server import KafkaServer

LIMIT = 16 * 1024 * 1024
# Every fetch would like 50 MB, more than the limit of all clients.
WANTED_BYTES = 50 * 1024 * 1024
FETCH = struct.pack(">ih6x", 8, 1)


async def as_much_as_it_may(frame: Frame, memory: ResponseMemory) -> Sequence[bytes]:
    size = memory.grant(WANTED_BYTES)
    return [struct.pack(">i", size), bytes(size)]


@contextlib.asynccontextmanager
async def serving(limit_bytes: int) -> AsyncIterator[KafkaServer]:
    limits = ConnectionLimits(answer_bytes_max=limit_bytes)
    made = KafkaServer(lambda _: as_much_as_it_may, Connections(limits), "TEST")
    await (await made.bind("127.0.0.1", 0)).listen()
    yield made
    await made.stop(0)


@pytest.fixture
async def server() -> AsyncIterator[KafkaServer]:
    async with serving(LIMIT) as made:
        yield made


class AnswerClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, server: KafkaServer, *, reads: bool = True) -> AsyncIterator["AnswerClient"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        if not reads:
            # A client that never reads: its receive buffer fills, then the server's send buffer.
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    async def fetch(self) -> int:
        """Fetch; return the number of answered bytes."""
        self.writer.write(FETCH)
        async with asyncio.timeout(10):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            left = size
            while left:
                left -= len(await self._reader.read(left))
        return int(size)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def idle_readers(server: KafkaServer, count: int, requests: int = 8) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            client = await stack.enter_async_context(AnswerClient.of(server, reads=False))
            client.writer.write(FETCH * requests)
        # Wait until the memory is in use, so that the next client meets the shortage.
        await until(lambda: server.connections.budgets.responses.used_bytes > LIMIT // 2)
        yield


async def test_single_client_gets_half_of_the_memory(server: KafkaServer) -> None:
    async with AnswerClient.of(server) as client:
        for _ in range(3):
            # Half of what is free, so that a second client can be served as well.
            assert await client.fetch() == LIMIT // 2
            await until(lambda: server.connections.budgets.responses.used_bytes == 0)


async def test_response_that_the_socket_takes_at_once_uses_no_memory() -> None:
    async with serving(4 * SMALL_BYTES) as server, AnswerClient.of(server) as client:
        for _ in range(10):
            assert await client.fetch() == 2 * SMALL_BYTES
            # Others may use the memory at once, not only after the next look at the transport.
            assert server.connections.budgets.responses.used_bytes == 0


def test_memory_of_a_burst_of_responses_is_reused() -> None:
    """Otherwise the kernel fills each page with zeros again, which costs more than the reading."""
    program = """
import resource
from tidemark.freed_memory import keep_freed_memory

def burst():
    responses = [b"r" * (8 * 1024 * 1024) for _ in range(14)]

keep_freed_memory()
burst()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
burst()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    # The responses have 28,672 pages.
    assert int(done.stdout) < 1_000


def test_threads_reuse_the_memory_of_each_other() -> None:
    """Responses of the tier are read in threads, and any of them may make the next one."""
    program = """
import resource
from threading import Thread
from tidemark.freed_memory import keep_freed_memory

def burst():
    responses = [b"r" * (1024 * 1024) for _ in range(28)]

def in_thread():
    thread = Thread(target=burst)
    thread.start()
    thread.join()

keep_freed_memory()
burst()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    in_thread()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    # The responses of each thread have 7,168 pages.
    assert int(done.stdout) < 1_000


async def test_idle_readers_use_no_more_than_the_limit(
    server: KafkaServer,
) -> None:
    most = 0
    async with idle_readers(server, 40):
        for _ in range(50):
            await asyncio.sleep(0.01)
            most = max(most, server.connections.budgets.responses.used_bytes)
    assert most <= LIMIT + 40 * 2 * SMALL_BYTES  # one being sent, one that was begun before
    await until(lambda: server.connections.budgets.responses.used_bytes == 0)


async def test_reading_client_is_served_despite_idle_readers(server: KafkaServer) -> None:
    async with idle_readers(server, 40), AnswerClient.of(server) as client:
        for _ in range(5):
            assert await client.fetch() >= SMALL_BYTES


async def test_idle_reader_is_disconnected_while_memory_is_short(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 0.2 s instead of the default without progress.
    monkeypatch.setattr(connections_module, "_READS_NOTHING_S", 0.2)
    async with AnswerClient.of(server) as client, idle_readers(server, 40, 1000):
        # The idle clients are disconnected, and their memory is free.
        await until(lambda: len(server.connections._open) < 41)
        async with asyncio.timeout(10):
            # Grants grow again once memory is free.
            while await client.fetch() <= SMALL_BYTES:
                pass  # repeats the request after each answer


async def test_client_that_only_sends_is_disconnected_after_the_idle_time() -> None:
    sizes = itertools.chain([LIMIT], itertools.repeat(SMALL_BYTES))

    async def large_then_small(frame: Frame, memory: ResponseMemory) -> Sequence[bytes]:
        return [bytes(next(sizes))]

    # Memory suffices, so nothing but the idle time ends the connection.
    limits = ConnectionLimits(
        idle_ms_max=500, unsent_bytes_max=1 << 30, answer_bytes_max=16 * LIMIT
    )
    server = KafkaServer(lambda _: large_then_small, Connections(limits), "TEST")
    await (await server.bind("127.0.0.1", 0)).listen()
    async with AnswerClient.of(server, reads=False) as slow, asyncio.timeout(20):
        await until(lambda: len(server.connections._open) == 1)
        while server.connections._open:
            # Each request counts as activity, and none waits for the unread responses.
            slow.writer.write(FETCH)
            await asyncio.sleep(0.02)
    with contextlib.suppress(ConnectionError):
        await slow.writer.wait_closed()
    await server.stop(0)


async def test_idle_reader_stays_while_memory_suffices(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With enough memory a slow client is not disconnected.
    monkeypatch.setattr(connections_module, "_READS_NOTHING_S", 0.05)
    async with AnswerClient.of(server, reads=False) as slow, AnswerClient.of(server) as client:
        slow.writer.write(FETCH)
        await until(lambda: server.connections.budgets.responses.used_bytes > 0)
        for _ in range(10):
            await asyncio.sleep(0.02)
            await client.fetch()
        assert len(server.connections._open) == 2
