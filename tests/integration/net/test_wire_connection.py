"""Connections between the project's processes: correlation ids, and roles that reverse."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.kafka_listener import KafkaListener
from tidemark.wire import control
from tidemark.wire.connection import ConnectionClosed, KafkaConnection
from tidemark.wire.framing import (
    FrameError,
    decode_request,
    encode_request,
    encode_response,
    peek_request,
)

Serve = Callable[[KafkaConnection], Awaitable[None]]


@contextlib.asynccontextmanager
async def _pair(serve: Serve) -> AsyncIterator[KafkaConnection]:
    listener = await KafkaListener(serve).start("127.0.0.1", 0)
    connection = await KafkaConnection.connect("127.0.0.1", listener.port, client_id="broker-1")
    try:
        yield connection
    finally:
        await connection.close()
        await listener.close()


def _attach() -> control.AttachRequest:
    return control.AttachRequest(broker_id=1, broker_epoch=7)


def _status(epoch: int) -> control.BrokerHeartbeatRequest:
    return control.BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=epoch,
        snapshot_controller_epoch=-1,
        loop_age_ms=0,
        want_shut_down=False,
    )


def _heartbeat_of(frame: bytes | memoryview) -> tuple[int, control.BrokerHeartbeatRequest]:
    _, _, correlation_id = peek_request(frame)
    return correlation_id, decode_request(control.BrokerHeartbeatRequest, frame)


def _answer(epoch: int) -> control.BrokerHeartbeatResponse:
    return control.BrokerHeartbeatResponse(
        error_code=0, is_fenced=False, should_shut_down=False, controller_epoch=epoch
    )


async def test_answers_find_their_requests_in_any_order() -> None:
    async def serve(connection: KafkaConnection) -> None:
        frames = [await connection.read_frame() for _ in range(5)]
        # Answered in reverse order.
        for frame in reversed(frames):
            correlation_id, request = _heartbeat_of(frame)
            connection.write(encode_response(_answer(request.broker_epoch), correlation_id))
        await connection.read_frame()

    async with _pair(serve) as connection:
        answers = await asyncio.gather(
            *(connection.request(_status(n), control.BrokerHeartbeatResponse, 5) for n in range(5))
        )
        assert [answer.controller_epoch for answer in answers] == [0, 1, 2, 3, 4]


async def test_roles_reverse_after_the_answer_without_losing_a_frame() -> None:
    """The answer to Attach and the first command arrive in one piece."""
    done = asyncio.Event()

    async def controller(connection: KafkaConnection) -> None:
        _, _, correlation_id = peek_request(await connection.read_frame())
        answer = control.AttachResponse(error_code=0, controller_epoch=3)
        first = encode_request(_status(99), 1000, "controller")
        # One write, so that both arrive in the same segment.
        connection.write(encode_response(answer, correlation_id) + first)
        assert bytes((await connection.read_frame())[:4]) == struct.pack(">i", 1000)
        got = await connection.request(_status(100), control.BrokerHeartbeatResponse, 5)
        assert got.controller_epoch == 100
        done.set()

    async with _pair(controller) as connection:
        attached = await connection.request(_attach(), control.AttachResponse, 5)
        assert attached.controller_epoch == 3
        for _ in range(2):
            correlation_id, request = _heartbeat_of(await connection.read_frame())
            connection.write(encode_response(_answer(request.broker_epoch), correlation_id))
        await asyncio.wait_for(done.wait(), 5)


async def test_timeout_leaves_the_connection_usable() -> None:
    late = asyncio.Event()

    async def serve(connection: KafkaConnection) -> None:
        first, _ = _heartbeat_of(await connection.read_frame())
        await late.wait()
        # The late response to the first request is dropped.
        connection.write(encode_response(_answer(1), first))
        second, _ = _heartbeat_of(await connection.read_frame())
        connection.write(encode_response(_answer(2), second))
        await connection.read_frame()

    async with _pair(serve) as connection:
        with pytest.raises(TimeoutError):
            await connection.request(_status(1), control.BrokerHeartbeatResponse, 0.02)
        late.set()
        answer = await connection.request(_status(2), control.BrokerHeartbeatResponse, 5)
        assert answer.controller_epoch == 2


async def test_waiting_request_fails_when_the_peer_disconnects() -> None:
    async def serve(connection: KafkaConnection) -> None:
        await connection.read_frame()

    async with _pair(serve) as connection:
        with pytest.raises(ConnectionClosed, match="ended the connection"):
            await connection.request(_status(1), control.BrokerHeartbeatResponse, 5)
        assert connection.closed
        with pytest.raises(ConnectionClosed):
            connection.write(b"")
        with pytest.raises(ConnectionClosed):
            await connection.read_frame()


async def test_unsolicited_answer_ends_the_connection() -> None:
    async def serve(connection: KafkaConnection) -> None:
        await connection.read_frame()
        connection.write(encode_response(_answer(1), 4711))
        await connection.read_frame()

    async with _pair(serve) as connection:
        with pytest.raises(ConnectionClosed, match="4711"):
            await connection.request(_status(1), control.BrokerHeartbeatResponse, 5)


async def test_unreadable_response_is_an_error_of_the_caller() -> None:
    async def serve(connection: KafkaConnection) -> None:
        correlation_id, _ = _heartbeat_of(await connection.read_frame())
        # The correlation id of the request, and a body that is too short.
        connection.write(struct.pack(">iib", 5, correlation_id, 0))
        await connection.read_frame()

    async with _pair(serve) as connection:
        with pytest.raises(FrameError, match="BrokerHeartbeatResponse"):
            await connection.request(_status(1), control.BrokerHeartbeatResponse, 5)


async def test_unread_frames_stop_the_sender() -> None:
    """Thousands of commands do not pile up in the memory of a busy broker."""
    sent = 0

    async def serve(connection: KafkaConnection) -> None:
        nonlocal sent
        frame = encode_request(_status(1), 1, "c" * 30_000)
        while sent < 2_000:
            # drain stops the sender once the peer does not read.
            await connection.drain()
            connection.write(frame)
            sent += 1
        await connection.read_frame()

    async with _pair(serve) as connection:
        await connection.read_frame()
        settled = -1
        # Wait until the sender no longer makes progress.
        while sent != settled:
            settled = sent
            await asyncio.sleep(0.05)
        assert sent < 1_000
        for _ in range(1_999):
            await asyncio.wait_for(connection.read_frame(), 5)


async def test_closing_the_listener_ends_its_connections() -> None:
    async def serve(connection: KafkaConnection) -> None:
        await connection.read_frame()

    listener = await KafkaListener(serve).start("127.0.0.1", 0)
    connection = await KafkaConnection.connect("127.0.0.1", listener.port, client_id="b")
    while not listener.connections:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await listener.close()
    with pytest.raises(ConnectionClosed):
        await connection.read_frame()
    await connection.close()


async def test_connecting_to_a_closed_port_fails() -> None:
    listener = await KafkaListener(lambda _: asyncio.sleep(0)).start("127.0.0.1", 0)
    await listener.close()
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await KafkaConnection.connect("127.0.0.1", listener.port, client_id="b")


async def test_cancellation_during_close_is_not_swallowed() -> None:
    """A fetcher that swallowed the cancellation would run forever, and its waiting owner, too."""

    async def serve(connection: KafkaConnection) -> None:
        await connection.read_frame()

    async with _pair(serve) as connection:
        await connection.close()

        async def session() -> None:
            await connection.close()
            await asyncio.Event().wait()

        task = asyncio.create_task(session())
        await asyncio.sleep(0)
        # Cancelled in the middle of close.
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()
