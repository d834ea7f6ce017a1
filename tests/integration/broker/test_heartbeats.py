"""A broker's heartbeats, which are sent by a thread of their own over a connection of their own."""

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.certificates import dialer, files_of
from tests.kafka_listener import KafkaListener
from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark.wire.framing import decode_request, encode_response, peek_request
from tidemark_broker.control import heartbeat
from tidemark_broker.control.heartbeat import HeartbeatTarget, HeartbeatThread, LoopClock

CLUSTER = "c"


def controller_files(folder: Path) -> TlsFiles:
    return files_of(TlsIdentity(CLUSTER), folder / "controller")


def target(port: int, session_timeout_s: float, folder: Path) -> HeartbeatTarget:
    """A session of broker 1 with the controller at that port."""
    return HeartbeatTarget(
        host="127.0.0.1",
        port=port,
        broker_id=1,
        broker_epoch=7,
        session_token=b"secret",
        session_timeout_s=session_timeout_s,
        dialer=dialer(TlsIdentity(CLUSTER, 1), TlsIdentity(CLUSTER), folder / "broker"),
    )


async def test_heartbeats_continue_and_report_a_blocked_loop(tmp_path: Path) -> None:
    beats: list[control.BrokerHeartbeatRequest] = []

    async def serve(connection: KafkaConnection) -> None:
        while True:
            frame = await connection.read_frame()
            beats.append(decode_request(control.BrokerHeartbeatRequest, frame))
            answer = control.BrokerHeartbeatResponse(
                error_code=0, is_fenced=False, should_shut_down=False, controller_epoch=1
            )
            connection.write(encode_response(answer, peek_request(frame)[2]))

    stop = asyncio.Event()
    port: list[int] = []

    # The controller needs its own loop, because the test blocks the other one.
    async def controller() -> None:
        listener = await KafkaListener(serve).start("127.0.0.1", 0, tls=controller_files(tmp_path))
        port.append(listener.port)
        await asyncio.to_thread(done.wait)
        await listener.close()

    done = threading.Event()
    other = threading.Thread(target=lambda: asyncio.run(controller()))
    other.start()
    try:
        async with asyncio.timeout(5):
            while not port:  # noqa: ASYNC110  the other loop is in another thread
                await asyncio.sleep(0.01)
        clock = LoopClock()
        ticking = asyncio.create_task(clock.run())
        answered: list[control.BrokerHeartbeatResponse] = []
        thread = HeartbeatThread(
            # A session of 0.4 s, so heartbeats are due every 0.1 s.
            target(port[0], 0.4, tmp_path),
            clock,
            answered=answered.append,
            lost=lambda _: stop.set(),
        )
        thread.unresponsive = (2,)
        thread.start()
        async with asyncio.timeout(5):
            while not answered:  # noqa: ASYNC110  set from a thread's callback
                await asyncio.sleep(0.01)
        time.sleep(0.8)  # noqa: ASYNC251  the loop is blocked: that is the test
        # Heartbeats continued, and report how long the loop has not turned.
        assert max(beat.loop_age_ms for beat in beats) > 600
        # The loop cannot withdraw what it has reported, so this ends.
        assert beats[0].unresponsive == (2,)
        assert not any(beat.unresponsive for beat in beats if beat.loop_age_ms > 600)
        thread.stop()
        ticking.cancel()
        # A blocked loop alone does not end the session.
        assert not stop.is_set()
    finally:
        done.set()
        await asyncio.to_thread(other.join)


async def test_heartbeats_resume_at_once_when_their_connection_breaks(tmp_path: Path) -> None:
    """The thread does not wait for the next due heartbeat (here in an hour), because the
    controller expects one sooner.
    """
    connections: asyncio.Queue[KafkaConnection] = asyncio.Queue()

    async def serve(connection: KafkaConnection) -> None:
        frame = await connection.read_frame()
        answer = control.BrokerHeartbeatResponse(
            error_code=0, is_fenced=False, should_shut_down=False, controller_epoch=1
        )
        connection.write(encode_response(answer, peek_request(frame)[2]))
        connections.put_nowait(connection)
        await connection.read_frame()

    listener = await KafkaListener(serve).start("127.0.0.1", 0, tls=controller_files(tmp_path))
    lost: list[str] = []
    thread = HeartbeatThread(
        # Heartbeats every hour: only the broken connection can cause an early one.
        target(listener.port, 4 * 3600, tmp_path),
        LoopClock(),
        answered=lambda _: None,
        lost=lost.append,
    )
    thread.start()
    async with asyncio.timeout(10):
        # The controller closes the connection after the first heartbeat.
        await (await connections.get()).close()
        second = await connections.get()
        assert not second.closed
        thread.kick()
        thread.stop()
        await asyncio.to_thread(thread.join)
    # The session was not given up.
    assert lost == []
    thread.kick()  # the thread has ended, and this has no effect
    await listener.close()


async def test_fenced_broker_retries_soon(tmp_path: Path) -> None:
    """A fenced broker does not wait for its next due heartbeat."""
    beats = 0

    async def serve(connection: KafkaConnection) -> None:
        nonlocal beats
        while True:
            frame = await connection.read_frame()
            beats += 1
            answer = control.BrokerHeartbeatResponse(
                # Two answers are fenced, the third is not.
                error_code=0,
                is_fenced=beats < 3,
                should_shut_down=False,
                controller_epoch=1,
            )
            connection.write(encode_response(answer, peek_request(frame)[2]))

    listener = await KafkaListener(serve).start("127.0.0.1", 0, tls=controller_files(tmp_path))
    unfenced = asyncio.Event()
    thread = HeartbeatThread(
        target(listener.port, 4 * 3600, tmp_path),
        LoopClock(),
        answered=lambda answer: None if answer.is_fenced else unfenced.set(),
        lost=lambda _: None,
    )
    # A snapshot was applied, so the broker may be unfenced at any time.
    thread.snapshot_controller_epoch = 1
    thread.start()
    async with asyncio.timeout(10):
        await unfenced.wait()
    assert beats == 3
    assert thread._pause_s() == 3600, "afterwards there is time"
    thread.stop()
    await asyncio.to_thread(thread.join)
    await listener.close()


async def test_a_slow_response_does_not_delay_the_next_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller counts from the heartbeat that it has received, not from its response."""
    late_s = 0.0
    second = asyncio.Event()

    async def serve(connection: KafkaConnection) -> None:
        nonlocal late_s
        while True:
            frame = await connection.read_frame()
            if late_s:
                second.set()
            # Heartbeats are due every hour, and this response takes one.
            late_s = 3600.0
            answer = control.BrokerHeartbeatResponse(
                error_code=0, is_fenced=False, should_shut_down=False, controller_epoch=1
            )
            connection.write(encode_response(answer, peek_request(frame)[2]))

    shifted = SimpleNamespace(monotonic=lambda: time.monotonic() + late_s)
    monkeypatch.setattr(heartbeat, "time", shifted)
    listener = await KafkaListener(serve).start("127.0.0.1", 0, tls=controller_files(tmp_path))
    thread = HeartbeatThread(
        target(listener.port, 4 * 3600, tmp_path),
        LoopClock(),
        answered=lambda _: None,
        lost=lambda _: None,
    )
    thread.start()
    async with asyncio.timeout(10):
        await second.wait()
    thread.stop()
    await asyncio.to_thread(thread.join)
    await listener.close()
