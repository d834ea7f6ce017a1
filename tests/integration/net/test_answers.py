"""Memory of answers: they count until the client has received them, and a client that reads
none is served no more.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from tidemark.wire.receiver import Frame
from tidemark_broker.net import connections as connections_module
from tidemark_broker.net.config import ServerConfig
from tidemark_broker.net.connections import Connections
from tidemark_broker.net.server import KafkaServer
from tidemark_broker.response_memory import SMALL_BYTES, AnswerMemory

LIMIT = 16 * 1024 * 1024
WISHED = 50 * 1024 * 1024
FETCH = struct.pack(">ih6x", 8, 1)


async def as_much_as_it_may(frame: Frame, memory: AnswerMemory) -> Sequence[bytes]:
    size = memory.grant(WISHED)
    return [struct.pack(">i", size), bytes(size)]


@pytest.fixture
async def server() -> AsyncIterator[KafkaServer]:
    made = KafkaServer(
        lambda _: as_much_as_it_may, Connections(ServerConfig(answer_bytes_max=LIMIT)), "TEST"
    )
    await (await made.bind("127.0.0.1", 0)).listen()
    yield made
    await made.stop(0)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, server: KafkaServer, *, reads: bool = True) -> AsyncIterator["Client"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        if not reads:
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
async def those_who_read_nothing(
    server: KafkaServer, count: int, requests: int = 8
) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            client = await stack.enter_async_context(Client.of(server, reads=False))
            client.writer.write(FETCH * requests)
        await until(lambda: server.connections.answers.used_bytes > LIMIT // 2)
        yield


async def test_one_client_alone_is_given_half_of_it_and_gives_it_back(server: KafkaServer) -> None:
    async with Client.of(server) as client:
        for _ in range(3):
            assert await client.fetch() == LIMIT // 2
            await until(lambda: server.connections.answers.used_bytes == 0)


async def test_many_clients_that_read_nothing_hold_no_more_than_the_limit(
    server: KafkaServer,
) -> None:
    most = 0
    async with those_who_read_nothing(server, 40):
        for _ in range(50):
            await asyncio.sleep(0.01)
            most = max(most, server.connections.answers.used_bytes)
    assert most <= LIMIT + 40 * 2 * SMALL_BYTES  # one being sent, one that was begun before
    await until(lambda: server.connections.answers.used_bytes == 0)


async def test_a_client_that_reads_is_answered_meanwhile(server: KafkaServer) -> None:
    async with those_who_read_nothing(server, 40), Client.of(server) as client:
        for _ in range(5):
            assert await client.fetch() >= SMALL_BYTES


async def test_who_takes_nothing_has_to_go_while_memory_is_short(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "_TAKES_NOTHING_S", 0.2)
    async with Client.of(server) as client, those_who_read_nothing(server, 40, 1000):
        await until(lambda: len(server.connections._open) < 41)
        async with asyncio.timeout(10):
            while await client.fetch() <= SMALL_BYTES:
                pass  # repeats the request after each answer


async def test_who_takes_nothing_may_stay_while_there_is_enough(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "_TAKES_NOTHING_S", 0.05)
    async with Client.of(server, reads=False) as slow, Client.of(server) as client:
        slow.writer.write(FETCH)
        await until(lambda: server.connections.answers.used_bytes > 0)
        for _ in range(10):
            await asyncio.sleep(0.02)
            await client.fetch()
        assert len(server.connections._open) == 2
