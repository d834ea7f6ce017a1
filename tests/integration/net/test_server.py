"""The listener with real sockets: order, back-pressure, limits, and the cost of a bad client."""

import asyncio
import contextlib
import functools
import gc
import logging
import socket
import ssl
import struct
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import folder_of
from tidemark.tls.files import ListenerFiles, NoCertificates
from tidemark.tls.identity import TlsIdentity
from tidemark.wire.framing import FrameError
from tidemark.wire.receiver import SCRATCH_BYTES, Frame
from tidemark_broker.admission.connection_limits import ConnectionLimits
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.net import connection as connection_module
from tidemark_broker.net import connections as connections_module
from tidemark_broker.net.connection import CloseConnection, Serve, ServerConnection
from tidemark_broker.net.connections import Connections
from tidemark_broker.net.server import KafkaServer
from tidemark_broker.tasks import Deferred

# The first two bytes are the Api key, which decides whether a request may run beside others.
PRODUCE, FETCH = bytes(8), b"\0\1" + bytes(6)


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def _echo(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes] | None:
    return [struct.pack(">i", len(frame)), bytes(frame)]


def _server(serve: Callable[..., Any], **limits: int) -> KafkaServer:
    return KafkaServer(
        lambda connection: functools.partial(serve, peer=connection.peer),
        Connections(ConnectionLimits(**limits)),
        "TEST",
    )


@contextlib.asynccontextmanager
async def _serving(
    serve: Callable[..., object] = _echo, **limits: int
) -> AsyncIterator[KafkaServer]:
    server = await _server(serve, **limits).bind("127.0.0.1", 0)
    await server.listen()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _client(
    server: KafkaServer,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 26)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


async def _closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), 5) == b""
    return True


def _value(server: KafkaServer, name: str, **labels: str) -> float:
    registry_value = [
        sample.value
        for metric in (server.connections.metrics._closed.collect())
        for sample in metric.samples
        if sample.name == name and sample.labels == labels
    ]
    return registry_value[0] if registry_value else 0.0


async def test_frames_of_all_sizes_are_echoed() -> None:
    async with _serving() as server, _client(server) as (reader, writer):
        # Below, at and far above the size of the receive buffer.
        for size in (8, 9, 5000, 300_000, 5_000_000):
            body = bytes([size % 251]) * size
            writer.write(_framed(body))
            assert await asyncio.wait_for(_read(reader), 10) == body


async def test_accepted_sockets_have_the_configured_send_buffer() -> None:
    configured = 64 * 1024
    async with (
        _serving(send_buffer_bytes=configured) as server,
        _client(server) as (reader, writer),
    ):
        writer.write(_framed(PRODUCE))
        await _read(reader)
        (connection,) = server.connections._open
        assert connection._transport is not None
        accepted = connection._transport.get_extra_info("socket")
        # Linux doubles the size, for its own structures (socket(7)).
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * configured


async def test_answers_keep_the_order_of_the_requests() -> None:
    gates = {number: asyncio.Event() for number in range(5)}
    begun: list[int] = []

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        begun.append(frame[8])
        await gates[frame[8]].wait()
        return [_framed(bytes(frame))]

    async with _serving(serve) as server, _client(server) as (reader, writer):
        writer.write(b"".join(_framed(PRODUCE + bytes([number])) for number in range(5)))
        # Handlers end in the reverse order; responses must not.
        for number in reversed(range(5)):
            gates[number].set()
        got = [await asyncio.wait_for(_read(reader), 5) for _ in range(5)]
        assert got == [PRODUCE + bytes([number]) for number in range(5)]
        assert begun == [0, 1, 2, 3, 4]


async def test_request_that_is_answered_at_once_does_not_start_before_earlier_ones() -> None:
    begun: list[bytes] = []

    async def wait(frame: Frame) -> Sequence[bytes]:
        begun.append(bytes(frame[8:]))
        await asyncio.sleep(0)
        return [_framed(bytes(frame))]

    def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Any:
        if frame[:2] == FETCH[:2]:
            return wait(frame)
        begun.append(bytes(frame[8:]))
        return [_framed(bytes(frame))]

    async with _serving(serve) as server, _client(server) as (reader, writer):
        keys = [FETCH, PRODUCE, PRODUCE, FETCH, FETCH, PRODUCE]
        requests = [key + bytes([number]) for number, key in enumerate(keys)]
        # They arrive together, and only the answers to some are waited for.
        writer.write(b"".join(map(_framed, requests)))
        assert [await asyncio.wait_for(_read(reader), 5) for _ in requests] == requests
        assert begun == [request[8:] for request in requests]


async def test_many_requests_that_are_answered_at_once_do_not_delay_other_connections() -> None:
    served: list[bytes] = []
    async with contextlib.AsyncExitStack() as opened:

        def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
            # The other client's request arrives while the first of many is served.
            if not served:
                writers[1].write(_framed(PRODUCE + b"other"))
            served.append(bytes(frame[8:]))
            time.sleep(0.0005)  # as long as a slice
            return [_framed(bytes(frame))]

        server = await opened.enter_async_context(_serving(serve))
        clients = [await opened.enter_async_context(_client(server)) for _ in range(2)]
        readers, writers = zip(*clients, strict=True)
        writers[0].write(_framed(PRODUCE + b"one of many") * 200)
        for _ in range(200):
            assert await asyncio.wait_for(_read(readers[0]), 10) == PRODUCE + b"one of many"
        assert await asyncio.wait_for(_read(readers[1]), 10) == PRODUCE + b"other"
        # One or two slices pass, each with one request, before it is read.
        assert served.index(b"other") < 6


async def test_responses_of_a_busy_client_are_written_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than the whole test, so that no pause ends by itself.
    monkeypatch.setattr(connection_module, "_WRITE_PAUSE_S", 60.0)
    writes: list[int] = []

    class CountingTransport:
        """The transport of the connection, whose writes are counted."""

        def __init__(self, transport: Any) -> None:
            self._transport = transport

        def writelines(self, pieces: Sequence[bytes]) -> None:
            writes.append(len(pieces))
            self._transport.writelines(pieces)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        (opened,) = server.connections._open
        if not isinstance(opened._transport, CountingTransport):
            opened._transport = CountingTransport(opened._transport)
        time.sleep(0.0005)  # as long as a slice
        return [_framed(bytes(frame))]

    async with _serving(serve) as server, _client(server) as (reader, writer):
        writer.write(_framed(PRODUCE + b"one of many") * 200)
        for _ in range(200):
            assert await asyncio.wait_for(_read(reader), 10) == PRODUCE + b"one of many"
    # The first one, those of full rounds of requests in flight, and the last ones.
    assert sum(writes) == 200
    assert len(writes) < 20


async def test_request_that_fails_at_once_closes_its_connection_after_earlier_answers() -> None:
    def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        if frame[8:] == b"bad":
            raise FrameError("unreadable")
        return [_framed(bytes(frame))]

    async with _serving(serve) as server, _client(server) as (reader, writer):
        writer.write(_framed(PRODUCE + b"good") + _framed(PRODUCE + b"bad"))
        assert await asyncio.wait_for(_read(reader), 5) == PRODUCE + b"good"
        assert await _closed(reader)
        await _until(lambda: not server.connections._open)
        budgets = server.connections.budgets
        assert (budgets.requests.used_bytes, budgets.responses.used_bytes) == (0, 0)


async def test_no_request_starts_behind_one_that_ordered_the_close() -> None:
    served: list[bytes] = []

    def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Any:
        served.append(bytes(frame[8:]))
        return refuse(bytes(frame)) if frame[8:] == b"last" else [_framed(bytes(frame))]

    async def refuse(frame: bytes) -> Sequence[bytes]:
        raise CloseConnection("refused", answer=[_framed(frame)])

    # As before authentication, one request at a time.
    async with _serving(serve, requests_in_flight_max=1) as server, _client(server) as pair:
        reader, writer = pair
        writer.write(_framed(PRODUCE + b"last") + _framed(PRODUCE + b"next"))
        assert await asyncio.wait_for(_read(reader), 5) == PRODUCE + b"last"
        assert await _closed(reader)
        assert served == [b"last"]
        await _until(lambda: not server.connections._open)
        assert server.connections.budgets.requests.used_bytes == 0


async def test_no_more_than_the_limit_are_in_flight() -> None:
    running = most = 0
    gate = asyncio.Event()
    full = asyncio.Event()

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await gate.wait()
        running -= 1
        return [_framed(bytes(frame))]

    async with (
        _serving(serve, requests_in_flight_max=3) as server,
        _client(server) as (reader, writer),
    ):
        writer.write(b"".join(_framed(PRODUCE + b"%d" % number) for number in range(20)))
        # Three handlers run before any may end.
        await asyncio.wait_for(full.wait(), 5)
        gate.set()
        got = [await asyncio.wait_for(_read(reader), 5) for _ in range(20)]
        assert got == [PRODUCE + b"%d" % number for number in range(20)]
        assert most == 3


async def test_fetches_of_one_connection_run_one_at_a_time() -> None:
    """Several Fetches of one connection would each hold their answer until those before it are
    taken."""
    running: list[bytes] = []
    together: list[set[bytes]] = []

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        running.append(bytes(frame))
        together.append({item[:8] for item in running} if len(running) > 1 else set())
        # Never two Fetches of one connection at the same time.
        assert sum(item.startswith(FETCH) for item in running) <= 1
        await asyncio.sleep(0)
        running.remove(bytes(frame))
        return [_framed(bytes(frame))]

    frames = [kind + b"%d" % n for n, kind in enumerate((PRODUCE, FETCH, PRODUCE, FETCH) * 5)]
    async with _serving(serve) as server, _client(server) as (reader, writer):
        writer.write(b"".join(map(_framed, frames)))
        assert [await asyncio.wait_for(_read(reader), 5) for _ in frames] == frames
    # A waiting Fetch delays no Produce.
    assert {PRODUCE, FETCH} in together  # a Fetch that waits holds up no Produce


async def test_request_without_a_response_does_not_delay_others() -> None:
    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes] | None:
        # None stands for acks=0, which has no response.
        return None if frame[:1] == b"-" else [_framed(bytes(frame))]

    async with _serving(serve) as server, _client(server) as (reader, writer):
        for request in (b"-1 request", b"a request", b"-2 request", b"b request"):
            writer.write(_framed(request))
        assert await _read(reader) == b"a request"
        assert await _read(reader) == b"b request"


async def test_too_short_frame_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """65,000 empty frames were accepted at once, which took 190 ms."""
    served = 0

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        nonlocal served
        served += 1
        return [_framed(bytes(frame))]

    async with _serving(serve) as server, _client(server) as (reader, writer):
        writer.write(_framed(b"") * 65_000)
        assert await _closed(reader)
    assert "0 bytes, which is less than any request has" in caplog.text
    assert served == 0


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\x16\x03\x01\x02\x00\x01"]
)
async def test_malformed_frame_ends_the_connection_with_one_log_line(
    junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidemark_broker.net.connection")
    async with _serving(request_bytes_max=100_000) as server, _client(server) as (other, speaks):
        async with _client(server) as (reader, writer):
            writer.write(junk)
            assert await _closed(reader)
        # One log line for a client that speaks another protocol.
        assert len([r for r in caplog.records if r.name.endswith("connection")]) == 1
        assert "at most 100000" in caplog.text
        assert (
            _value(server, "tidemark_broker_connections_closed_by_broker_total", reason="malformed")
            == 1
        )
        speaks.write(_framed(b"still here"))
        assert await _read(other) == b"still here"


async def test_unreadable_request_ends_the_connection_with_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        raise FrameError("it makes no sense")

    async with _serving(serve) as server, _client(server) as (reader, writer):
        # Six faulty requests in one piece: the first one ends the connection.
        writer.write(_framed(b"x request") * 6)
        assert await _closed(reader)
    lines = [record.getMessage() for record in caplog.records if "closed" in record.getMessage()]
    assert len(lines) == 1
    assert "it makes no sense" in lines[0]


async def test_failing_handler_ends_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        if frame == b"bad request":
            raise RuntimeError("boom")
        return [_framed(bytes(frame))]

    async with _serving(serve) as server, _client(server) as (reader, writer):
        writer.write(_framed(b"bad request"))
        assert await _closed(reader)
        assert "boom" in caplog.text
        async with _client(server) as (again, writes):
            writes.write(_framed(b"fine request"))
            assert await _read(again) == b"fine request"


async def test_handler_can_close_after_earlier_responses() -> None:
    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        if frame == b"end request":
            raise CloseConnection("acks=0 and no leader")
        return [_framed(bytes(frame))]

    async with _serving(serve) as server, _client(server) as (reader, writer):
        writer.write(_framed(b"a request") + _framed(b"end request"))
        assert await _read(reader) == b"a request"
        assert await _closed(reader)


async def test_silent_connections_are_closed_and_busy_ones_are_not() -> None:
    gate = asyncio.Event()

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        await gate.wait()
        return [_framed(bytes(frame))]

    async with (
        _serving(serve, idle_ms_max=100) as server,
        _client(server) as (busy, asks),
        _client(server) as (silent, _),
    ):
        # The busy connection waits for its handler for longer than the idle limit.
        asks.write(_framed(b"wait request"))
        assert await _closed(silent)
        gate.set()
        assert await _read(busy) == b"wait request"


async def test_client_that_does_not_read_is_not_served() -> None:
    # CPython gh-127655: asyncio's own loop, which brokers do not run, ignores the limit.
    lacks_limit = (3, 12) <= sys.version_info < (3, 12, 9) or (
        (3, 13) <= sys.version_info < (3, 13, 2)
    )
    if lacks_limit and isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):
        pytest.skip("asyncio of this Python has no limit of unsent bytes")
    served = 0
    answer = _framed(bytes(1_000_000))

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        nonlocal served
        served += 1
        return [answer]

    async with (
        _serving(serve, unsent_bytes_max=100_000) as server,
        _client(server) as (reader, writer),
    ):
        # The client reads nothing, so the server has to stop serving it.
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(_framed(b"x request") * 200)
        # Wait until the number of served requests no longer changes.
        settled = -1
        while served != settled:
            settled = served
            await asyncio.sleep(0.05)
        assert 0 < served < 60  # what sockets and one buffer hold, not all 200
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            assert len(await asyncio.wait_for(_read(reader), 10)) == 1_000_000


async def test_all_connections_together_respect_the_budget() -> None:
    held_bytes = most = 0
    gate = asyncio.Event()

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        nonlocal held_bytes, most
        held_bytes += len(frame)
        most = max(most, held_bytes)
        await gate.wait()
        held_bytes -= len(frame)
        return [_framed(b"ok")]

    body = bytes(400_000)
    async with (
        _serving(serve, queued_request_bytes_max=1_000_000) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        # Four clients with two megabytes each, twice the budget together.
        clients = [await stack.enter_async_context(_client(server)) for _ in range(4)]
        for _, writer in clients:
            writer.write(_framed(body) * 5)
        while server.connections.budgets.requests.used_bytes < 1_000_000:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        gate.set()
        for reader, _ in clients:
            for _ in range(5):
                assert await asyncio.wait_for(_read(reader), 10) == b"ok"
        # each connection may finish the frame that it had begun
        assert most <= 1_000_000 + 4 * 400_000
        assert server.connections.budgets.requests.used_bytes == 0


@contextlib.asynccontextmanager
async def _waiting_server(**limits: int) -> AsyncIterator[tuple[KafkaServer, asyncio.Event]]:
    """Start a server that answers nothing before the event is set."""
    gate = asyncio.Event()

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        await gate.wait()
        return [_framed(b"%d" % len(frame))]

    async with _serving(serve, **limits) as server:
        yield server, gate


async def test_large_request_is_not_read_behind_a_waiting_one() -> None:
    """Waiting Fetches with a request of 95 MB behind each of them used 634 MiB."""
    async with _waiting_server() as (server, gate), _client(server) as (reader, writer):
        writer.write(_framed(FETCH) + _framed(bytes(40_000)) + _framed(bytes(1_000_000)))
        await asyncio.sleep(0.2)
        held_bytes = (
            server.connections.budgets.requests.used_bytes
            + server.connections.budgets.partial_requests.used_bytes
        )
        assert held_bytes <= 2 * SCRATCH_BYTES
        gate.set()
        answers = [await asyncio.wait_for(_read(reader), 5) for _ in range(3)]
        assert answers == [b"8", b"40000", b"1000000"]


async def test_started_large_request_is_not_read_further_without_room() -> None:
    async with (
        _waiting_server(queued_request_bytes_max=12_000_000) as (server, gate),
        _client(server) as (first, asks),
        _client(server) as (late, begins),
    ):
        # Only a part of the second client's request arrives before the memory is used up.
        begun, rest = _framed(bytes(3_000_000))[:200_000], bytes(3_000_004 - 200_000)
        begins.write(begun)
        await _until(lambda: server.connections.budgets.partial_requests.used_bytes >= 200_000)
        # The first client fills the request memory.
        asks.write(_framed(bytes(12_000_000)))
        await _until(lambda: server.connections.budgets.requests.used_bytes >= 12_000_000)
        begins.write(rest)
        # The rest of the second request is not read meanwhile.
        await asyncio.sleep(0.2)
        assert server.connections.budgets.partial_requests.used_bytes < 3_000_000
        assert server.connections.budgets.requests.used_bytes >= 12_000_000
        gate.set()
        assert await asyncio.wait_for(_read(first), 5) == b"12000000"
        assert await asyncio.wait_for(_read(late), 5) == b"3000000"


async def test_ended_connection_releases_its_memory_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not when it is lost: a peer that does not take its last answer may put that off for ever, and
    three of them kept all room for requests."""
    gate = asyncio.Event()

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        if len(frame) == len(FETCH):
            return [_framed(bytes(900_000))] * 20
        await gate.wait()
        return []

    # A closed connection may wait this long for its last bytes to be taken.
    monkeypatch.setattr(connection_module, "_CLOSING_S", 1.0)
    async with (
        _serving(serve, unsent_bytes_max=100_000_000) as server,
        _client(server) as (reader, writer),
    ):
        # The client never reads the first response of 18 MB.
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(_framed(FETCH))
        await _until(lambda: len(server.connections._open) == 1)
        (served,) = server.connections._open
        await _until(lambda: served.unsent.unsent_bytes > 0)
        writer.write(_framed(bytes(3_000_000)))
        await _until(lambda: server.connections.budgets.requests.used_bytes > 3_000_000)
        # A frame of one byte is malformed and ends the connection.
        writer.write(struct.pack(">i", 1))
        await _until(lambda: served.ended)
        # Its memory is free although the socket is still open.
        assert server.connections.budgets.requests.used_bytes == 0
        assert served in server.connections._open
        await _until(lambda: served not in server.connections._open)


async def test_connection_with_parked_requests_is_closed_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The requests wait behind a Fetch that does not end, or behind a throttle time."""
    gate = asyncio.Event()

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        if bytes(frame) == FETCH:
            await gate.wait()
        return [_framed(bytes(frame))]

    monkeypatch.setattr(connections_module, "_PARKED_CHECK_S", 0.05)
    async with (
        _serving(serve, queued_request_bytes_max=400_000) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        greedy = []
        for _ in range(40):
            reader, writer = await stack.enter_async_context(_client(server))
            # A waiting Fetch with 500 requests behind it, from each of 40 clients.
            writer.write(_framed(FETCH) + _framed(FETCH + bytes(2)) * 500)
            greedy.append(reader)
        # Some may have disconnected before the check.
        await _until(
            lambda: server.connections.budgets.requests.is_exhausted or any(map(_has_ended, greedy))
        )
        # A new client is served: greedy ones were disconnected.
        reader, writer = await stack.enter_async_context(_client(server))
        writer.write(_framed(b"good request"))
        assert await asyncio.wait_for(_read(reader), 5) == b"good request"
        gate.set()


async def test_client_that_disconnects_while_muted_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client has sent the same request on another connection since."""
    served: list[bytes] = []

    async def serve(frame: Frame, memory: ResponseMemory) -> Sequence[bytes]:
        served.append(bytes(frame))
        return [_framed(bytes(frame))]

    def open_session(connection: ServerConnection) -> Serve:
        # Muted for 0.2 s before its first request, as a client that exceeded a quota elsewhere.
        connection.mute_before_first(lambda _: 0.2)
        return serve

    server = KafkaServer(open_session, Connections(ConnectionLimits()), "TEST")
    await (await server.bind("127.0.0.1", 0)).listen()
    async with _client(server) as (_, writer):
        writer.write(_framed(b"gone request"))
        await _until(lambda: server.connections.budgets.requests.used_bytes > 0)
    # The client has disconnected before that.
    await _until(lambda: not server.connections._open)
    assert (served, server.connections.budgets.requests.used_bytes) == ([], 0)
    await server.stop()


def _has_ended(reader: asyncio.StreamReader) -> bool:
    return reader.at_eof() or reader.exception() is not None


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_lost_connection_releases_its_memory() -> None:
    begun = asyncio.Event()

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        begun.set()
        await asyncio.Event().wait()
        return []

    async with _serving(serve) as server:
        async with _client(server) as (_, writer):
            writer.write(_framed(bytes(1000)) * 3)
            # Three requests are in memory when the client disconnects.
            await asyncio.wait_for(begun.wait(), 5)
            assert server.connections.budgets.requests.used_bytes > 0
        while server.connections.budgets.requests.used_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_connections_over_the_limit_are_refused_until_one_ends() -> None:
    async with _serving(connections_max=1) as server:
        await _one_at_a_time(server)


async def test_connections_of_an_address_are_limited_and_counted_when_they_end() -> None:
    """A connection above the limit is closed before a byte of it is read."""
    async with _serving(connections_per_address_max=1) as server:
        await _one_at_a_time(server)
        assert server.connections.metrics.opened._value.get() == 2


async def _one_at_a_time(server: KafkaServer) -> None:
    """Verify that the second connection is refused and a later one is served."""
    async with _client(server) as (first, writer):
        writer.write(_framed(b"1 request"))
        assert await _read(first) == b"1 request"
        async with _client(server) as (second, _):
            assert await _closed(second)
    await _until(lambda: not server.connections._open)
    async with _client(server) as (third, writer):
        writer.write(_framed(b"3 request"))
        assert await _read(third) == b"3 request"


async def test_connections_above_the_rate_limit_are_closed() -> None:
    async with _serving(connection_rate_per_address_max=1) as server:
        taken = 0
        for number in range(15):
            async with _client(server) as (reader, writer):
                with contextlib.suppress(ConnectionError):
                    writer.write(_framed(b"request %d" % number))
                    taken += await _answers(reader)
        # Ten connections are accepted in a burst, then one per second.
        assert taken in (10, 11)  # of one a second, in ten seconds and the moments since


async def _answers(reader: asyncio.StreamReader) -> bool:
    try:
        return bool(await _read(reader))
    except asyncio.IncompleteReadError:
        return False


async def test_muted_client_is_not_read_and_continues_afterwards() -> None:
    """KIP-219: the answer is there at once, the next request waits."""
    connections: list[ServerConnection] = []

    async def serve(frame: Frame, memory: ResponseMemory) -> Sequence[bytes]:
        if bytes(frame) == b"much request":
            # Half a second of throttling, as a quota would ask for.
            connections[0].mute(0.5)
        return [_framed(bytes(frame))]

    def open_session(connection: ServerConnection) -> Serve:
        connections.append(connection)
        return serve

    server = KafkaServer(open_session, Connections(ConnectionLimits()), "TEST")
    await (await server.bind("127.0.0.1", 0)).listen()
    now = asyncio.get_running_loop().time
    async with _client(server) as (reader, writer):
        began_s = now()
        # Both requests arrive in one piece.
        writer.write(_framed(b"much request") + _framed(b"next request"))
        assert await _read(reader) == b"much request"
        assert now() - began_s < 0.4
        assert await _read(reader) == b"next request"
        assert now() - began_s >= 0.49
    await server.stop()


async def test_request_that_is_sent_during_a_mute_is_not_read() -> None:
    """Muted clients that send on would occupy memory for as long as their mutes."""
    connections: list[ServerConnection] = []

    async def serve(frame: Frame, memory: ResponseMemory) -> Sequence[bytes]:
        if bytes(frame) == b"much request":
            connections[0].mute(0.5)
        return [_framed(bytes(frame))]

    def open_session(connection: ServerConnection) -> Serve:
        connections.append(connection)
        return serve

    server = KafkaServer(open_session, Connections(ConnectionLimits()), "TEST")
    await (await server.bind("127.0.0.1", 0)).listen()
    budgets = server.connections.budgets
    async with _client(server) as (reader, writer):
        writer.write(_framed(b"much request"))
        assert await _read(reader) == b"much request"
        # The client ignores its throttle time.
        large = bytes(1_000_000)
        writer.write(_framed(large))
        await asyncio.sleep(0.2)
        assert (budgets.requests.used_bytes, budgets.partial_requests.used_bytes) == (0, 0)
        assert await asyncio.wait_for(_read(reader), 5) == large
    await server.stop()


async def test_no_request_is_read_on_after_a_response_while_memory_is_exhausted() -> None:
    answers = {9: asyncio.Event(), 5000: asyncio.Event()}

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        if len(frame) in answers:
            await answers[len(frame)].wait()
        return [_framed(b"answered")]

    async with _serving(serve, queued_request_bytes_max=4000) as server:
        budgets = server.connections.budgets
        async with _client(server) as (reader, writer), _client(server) as (_, other):
            writer.write(_framed(bytes(9)))
            await _until(lambda: budgets.requests.used_bytes > 0)
            # The request of another client exhausts the memory before the first one is answered.
            other.write(_framed(bytes(5000)))
            await _until(lambda: budgets.requests.is_exhausted)
            answers[9].set()
            assert await _read(reader) == b"answered"
            writer.write(_framed(bytes(1_000_000)))
            await asyncio.sleep(0.2)
            assert budgets.partial_requests.used_bytes == 0
            answers[5000].set()
            assert await asyncio.wait_for(_read(reader), 5) == b"answered"


async def test_throttle_time_below_the_clock_resolution() -> None:
    """uvloop then calls at once, with a handle that has no time."""
    server = KafkaServer(
        lambda _: functools.partial(_echo, peer=""), Connections(ConnectionLimits()), "TEST"
    )
    await (await server.bind("127.0.0.1", 0)).listen()
    async with _client(server) as (reader, writer):
        await _until(lambda: len(server.connections._open) == 1)
        (connection,) = server.connections._open
        # Rests below a timer's resolution.
        for for_s in (0.0002, 0.0001, 0.0004, 0.01):
            connection.mute(for_s)
        writer.write(_framed(b"a request"))
        assert await asyncio.wait_for(_read(reader), 5) == b"a request"
    await server.stop()


async def test_every_throttle_time_ends() -> None:
    """A timer may fire a fraction of a millisecond early."""
    connections: list[ServerConnection] = []

    async def serve(frame: Frame, memory: ResponseMemory) -> Sequence[bytes]:
        # Different fractions of a millisecond, because timers may fire early.
        connections[0].mute(0.0013 + 0.00017 * frame[8])
        return [_framed(bytes(frame))]

    def open_session(connection: ServerConnection) -> Serve:
        connections.append(connection)
        return serve

    server = KafkaServer(open_session, Connections(ConnectionLimits()), "TEST")
    await (await server.bind("127.0.0.1", 0)).listen()
    async with _client(server) as (reader, writer):
        for number in range(100):
            request = PRODUCE + bytes([number])
            writer.write(_framed(request))
            assert await asyncio.wait_for(_read(reader), 5) == request
    await server.stop()


async def test_connection_can_be_muted_before_its_first_request() -> None:
    """As one whose client has used up its quota on another; of a large request only the beginning
    is read meanwhile."""

    def first(_: Frame) -> float:
        return 0.3

    def open_session(connection: ServerConnection) -> Serve:
        connection.mute_before_first(first)
        return functools.partial(_echo, peer="")

    server = KafkaServer(open_session, Connections(ConnectionLimits()), "TEST")
    await (await server.bind("127.0.0.1", 0)).listen()
    now = asyncio.get_running_loop().time
    for size in (100, 10_000_000):
        async with _client(server) as (reader, writer):
            began_s = now()
            writer.write(_framed(bytes(size)) + _framed(bytes(9)))
            # While the client is muted only the beginning of its request is read.
            await asyncio.sleep(0.1)
            held_bytes = (
                server.connections.budgets.requests.used_bytes
                + server.connections.budgets.partial_requests.used_bytes
            )
            assert held_bytes <= 32 * SCRATCH_BYTES
            assert len(await asyncio.wait_for(_read(reader), 5)) == size
            assert len(await asyncio.wait_for(_read(reader), 5)) == 9
            assert now() - began_s >= 0.29
    await server.stop()


async def test_stop_lets_what_is_under_way_finish() -> None:
    begun = asyncio.Event()

    async def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Sequence[bytes]:
        begun.set()
        await asyncio.sleep(0.02)
        return [_framed(bytes(frame))]

    async with _serving(serve) as server, _client(server) as (reader, writer):
        writer.write(_framed(b"last request"))
        await asyncio.wait_for(begun.wait(), 5)
        await server.stop(grace_s=5)
        assert await _read(reader) == b"last request"
        assert await _closed(reader)


async def test_stop_lets_a_request_without_a_task_finish() -> None:
    begun: asyncio.Future[Deferred[Sequence[bytes]]] = asyncio.get_running_loop().create_future()

    def serve(frame: Frame, memory: ResponseMemory, peer: str) -> Deferred[Sequence[bytes]]:
        later: Deferred[Sequence[bytes]] = Deferred()
        begun.set_result(later)
        return later

    async with _serving(serve) as server, _client(server) as (reader, writer):
        writer.write(_framed(PRODUCE))
        later = await asyncio.wait_for(begun, 5)
        asyncio.get_running_loop().call_later(0.02, later.deliver, [_framed(b"committed")])
        await server.stop(grace_s=5)
        assert await _read(reader) == b"committed"
        assert await _closed(reader)


def test_limits_are_read_from_kafkas_keys() -> None:
    config = ConnectionLimits.of({"socket.request.max.bytes": "1000", "max.connections": "5"})
    assert (config.request_bytes_max, config.connections_max) == (1000, 5)
    # Kafka's default of connections.max.idle.ms is ten minutes.
    assert config.idle_ms_max == 600_000
    with pytest.raises(ValueError, match=r"max\.connections"):
        ConnectionLimits.of({"max.connections": "many"})
    with pytest.raises(ValueError, match=r"at least 1"):
        ConnectionLimits.of({"socket.request.max.bytes": "0"})


async def test_listener_without_its_certificate_does_not_start(tmp_path: Path) -> None:
    """Such a broker would be Ready and reject every client."""
    files = ListenerFiles(tmp_path, ssl.CERT_NONE)
    server = KafkaServer(
        lambda _: functools.partial(_echo, peer=""),
        Connections(ConnectionLimits()),
        "OUTSIDE",
        files.context,
    )
    with pytest.raises(NoCertificates, match=f"listener OUTSIDE: {tmp_path}: no usable"):
        await server.bind("127.0.0.1", 0)


async def test_bound_address_is_reserved_before_listening() -> None:
    held_bytes, late = _server(_echo), _server(_echo)
    await held_bytes.bind("127.0.0.1", 0)
    await late.bind("127.0.0.1", held_bytes.port)
    # Bound, but not listening: a connection is refused.
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", held_bytes.port)
    await held_bytes.listen()
    _, writer = await asyncio.open_connection("127.0.0.1", held_bytes.port)
    writer.close()
    # The second server finds the address in use when it begins to listen.
    with pytest.raises(OSError, match="in use"):
        await late.listen()
    await late.stop()
    await held_bytes.stop()


async def test_lost_tls_connection_frees_its_tls_memory_without_the_collector(
    tmp_path: Path,
) -> None:
    """A full collection is rare, and OpenSSL's memory does not make it more frequent."""
    listener = ListenerFiles(folder_of(TlsIdentity("cluster", 1), tmp_path), ssl.CERT_NONE)
    tls: list[weakref.ref[object]] = []

    def open_session(connection: ServerConnection) -> Serve:
        transport = connection.unsent.transport
        assert transport is not None
        tls.append(weakref.ref(transport.get_extra_info("ssl_object")))
        return functools.partial(_echo, peer="")

    connections = Connections(ConnectionLimits())
    server = KafkaServer(open_session, connections, "OUTSIDE", listener.context)
    await (await server.bind("127.0.0.1", 0)).listen()
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    # Only reference counts may free the TLS state of the connection.
    gc.disable()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting)
        writer.write(_framed(PRODUCE))
        assert await asyncio.wait_for(_read(reader), 5) == PRODUCE
        assert [freed() is None for freed in tls] == [False]
        writer.close()
        async with asyncio.timeout(5):
            while tls[0]() is not None:  # noqa: ASYNC110 - released after the loss
                await asyncio.sleep(0.001)
    finally:
        gc.enable()
        await server.stop()
