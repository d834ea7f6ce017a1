"""Requests that begin and do not end: the memory that they use, and which clients wait."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.integration.net.test_server import _client, _framed, _read, _serving
from tidemark.wire.receiver import Frame
from tidemark_broker.admission import request_memory
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.net.server import KafkaServer

LARGE = 1_000_000
LIMIT = 2_000_000


async def length(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
    return [_framed(struct.pack(">i", len(frame)))]


@pytest.fixture
async def server() -> AsyncIterator[KafkaServer]:
    """Unfinished requests may take two megabytes together."""
    # A quarter of the request memory may be taken by unfinished requests.
    async with _serving(length, queued_request_bytes_max=4 * LIMIT) as made:
        yield made


@contextlib.asynccontextmanager
async def flooded(
    server: KafkaServer, count: int
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Open clients that have sent all but the last byte of a large request, or try to."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(_client(server)) for _ in range(count)]
        for _, writer in clients:
            # All but the last byte: the server cannot begin any of them.
            writer.write(_framed(bytes(LARGE))[:-1])
        async with asyncio.timeout(10):
            while server.connections.budgets.partial_requests.used_bytes < LIMIT:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
        yield clients


async def test_unfinished_requests_use_no_more_than_their_limit(server: KafkaServer) -> None:
    """A hundred requests would take 100 MB."""
    async with flooded(server, 100):
        await asyncio.sleep(0.3)
        # One is over the limit when it is noticed, and one has its turn; small pieces of the rest.
        assert (
            server.connections.budgets.partial_requests.used_bytes
            <= LIMIT + 3 * LARGE + 100 * request_memory.SMALL_BYTES
        )


async def test_small_requests_are_served_despite_unfinished_ones(server: KafkaServer) -> None:
    async with flooded(server, 20), _client(server) as (reader, writer):
        for _ in range(5):
            # Below SMALL_BYTES a request needs no turn.
            writer.write(_framed(bytes(5000)))
            async with asyncio.timeout(1):
                assert await _read(reader) == struct.pack(">i", 5000)


async def test_large_requests_complete_one_after_another(server: KafkaServer) -> None:
    """The server resumes reading a waiting client, whatever the others do."""
    async with flooded(server, 20) as clients:
        for _, writer in clients:
            # The missing byte of each request.
            writer.write(b"\0")
        async with asyncio.timeout(20):
            for reader, _ in clients:
                assert await _read(reader) == struct.pack(">i", LARGE)
        assert server.connections.budgets.partial_requests.used_bytes == 0


async def test_client_that_does_not_continue_loses_its_place(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client that does not continue for 0.1 s loses its turn.
    monkeypatch.setattr(request_memory, "READ_S", 0.1)
    async with flooded(server, 8), _client(server) as (reader, writer):
        writer.write(_framed(bytes(LARGE)))
        async with asyncio.timeout(20):
            assert await _read(reader) == struct.pack(">i", LARGE)


async def test_ordinary_requests_do_not_wait_for_huge_unfinished_ones(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty that had begun 90 MB each kept every other above 64 KiB out for a minute."""
    monkeypatch.setattr(request_memory, "READ_S", 60)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(12):
            _, writer = await stack.enter_async_context(_client(server))
            # Requests of 20 MB of which 250 kB have arrived.
            writer.write(_framed(bytes(20 * LARGE))[:250_000])
        async with asyncio.timeout(10):
            while not server.connections.budgets.partial_requests.is_exhausted:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
        # Requests that miss little are preferred to those that miss much.
        async with asyncio.timeout(5):
            for _ in range(3):
                async with _client(server) as (reader, writer):
                    writer.write(_framed(bytes(LARGE)))
                    assert await _read(reader) == struct.pack(">i", LARGE)


async def test_slow_request_completes_if_no_other_waits(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_memory, "READ_S", 0.05)
    async with _client(server) as (reader, writer):
        data = _framed(bytes(LARGE))
        # In steps that are slower than the turn, but with no client waiting.
        for start in range(0, len(data), 250_000):
            writer.write(data[start : start + 250_000])
            await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            assert await _read(reader) == struct.pack(">i", LARGE)


async def test_lost_connection_releases_its_unfinished_request(server: KafkaServer) -> None:
    async with flooded(server, 20) as clients:
        for _, writer in clients:
            writer.transport.abort()
        async with asyncio.timeout(5):
            while server.connections.budgets.partial_requests.used_bytes:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
    async with _client(server) as (reader, writer):
        writer.write(_framed(bytes(LARGE)))
        assert await asyncio.wait_for(_read(reader), 5) == struct.pack(">i", LARGE)
