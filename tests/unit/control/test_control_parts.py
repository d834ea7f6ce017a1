"""Parts of the control client that need no broker around them."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection, KafkaListener
from tidemark.wire.framing import decode_request, encode_response, peek_request
from tidemark.wire.receiver import Frame
from tidemark_broker.control.client import first_of
from tidemark_broker.control.commands import AT_ONCE, WAITING_MAX, Turns
from tidemark_broker.control.epoch_file import ControllerEpoch
from tidemark_broker.control.errors import NotController, Refused, SessionEnded, check
from tidemark_broker.control.heartbeat import HeartbeatThread, LoopClock, Target
from tidemark_broker.log import StorageError


async def test_the_controller_epoch_is_durable_and_never_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "epoch.json"
    epoch = ControllerEpoch(path)
    assert epoch.highest == -1
    assert await epoch.accept(4)
    assert not await epoch.accept(3)
    again = ControllerEpoch(path)
    assert again.highest == 4
    assert again.is_stale(3)
    assert await again.accept(4)
    path.write_text("{}")
    with pytest.raises(StorageError):
        ControllerEpoch(path)


@pytest.mark.parametrize(
    ("code", "kind"), [(41, NotController), (77, SessionEnded), (11, SessionEnded), (102, Refused)]
)
def test_error_codes_end_the_session(code: int, kind: type[SessionEnded]) -> None:
    with pytest.raises(kind):
        check(code, "x")
    check(0, "x")


async def test_the_first_failure_ends_all() -> None:
    cancelled = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def fails() -> None:
        await asyncio.sleep(0)
        raise SessionEnded("over")

    with pytest.raises(SessionEnded, match="over"):
        await first_of(waits(), fails(), waits())
    assert cancelled == [True, True]


async def test_heartbeats_go_on_and_tell_while_the_loop_stands_still() -> None:
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

    async def controller() -> None:
        listener = await KafkaListener(serve).start("127.0.0.1", 0)
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
            Target(
                host="127.0.0.1", port=port[0], broker_id=1, broker_epoch=7, session_timeout_s=0.4
            ),
            clock,
            answered=answered.append,
            lost=lambda _: stop.set(),
        )
        thread.start()
        async with asyncio.timeout(5):
            while not answered:  # noqa: ASYNC110  set from a thread's callback
                await asyncio.sleep(0.01)
        time.sleep(0.6)  # noqa: ASYNC251  the loop stands still: that is the test
        assert max(beat.loop_age_ms for beat in beats) > 300
        thread.stop()
        ticking.cancel()
        assert not stop.is_set()
    finally:
        done.set()
        await asyncio.to_thread(other.join)


async def test_commands_beyond_the_limit_wait_and_beyond_that_are_dropped() -> None:
    done, gate = [], asyncio.Event()

    async def work(frame: Frame) -> None:
        await gate.wait()
        done.append(bytes(frame))

    turns = Turns(work)
    frames = [b"%d" % number for number in range(AT_ONCE + WAITING_MAX)]
    assert all(turns.take(frame) for frame in frames)
    assert not turns.take(b"one more")
    assert turns.take(b"urgent", urgent=True)
    gate.set()
    async with asyncio.timeout(5):
        while len(done) <= len(frames):  # noqa: ASYNC110  they need a few turns of the loop
            await asyncio.sleep(0)
    assert done == [*frames[:AT_ONCE], b"urgent", *frames[AT_ONCE:]]
    assert turns.take(b"again")
    await turns.close()


async def test_heartbeats_go_on_at_once_when_their_connection_breaks() -> None:
    """Not with the next one that is due (here in an hour): the controller asks sooner than that."""
    connections: asyncio.Queue[KafkaConnection] = asyncio.Queue()

    async def serve(connection: KafkaConnection) -> None:
        frame = await connection.read_frame()
        answer = control.BrokerHeartbeatResponse(
            error_code=0, is_fenced=False, should_shut_down=False, controller_epoch=1
        )
        connection.write(encode_response(answer, peek_request(frame)[2]))
        connections.put_nowait(connection)
        await connection.read_frame()

    listener = await KafkaListener(serve).start("127.0.0.1", 0)
    lost: list[str] = []
    thread = HeartbeatThread(
        Target(
            host="127.0.0.1",
            port=listener.port,
            broker_id=1,
            broker_epoch=7,
            session_timeout_s=4 * 3600,
        ),
        LoopClock(),
        answered=lambda _: None,
        lost=lost.append,
    )
    thread.start()
    async with asyncio.timeout(10):
        await (await connections.get()).close()
        second = await connections.get()
        assert not second.closed
        thread.kick()
        thread.stop()
        await asyncio.to_thread(thread.join)
    assert lost == []
    thread.kick()  # nobody is there any more, and nobody minds
    await listener.close()
