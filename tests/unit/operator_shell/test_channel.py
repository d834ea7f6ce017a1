"""A command connection: answers find their requests, and large ones are written by a thread."""

import asyncio
import threading
from typing import Any

import pytest

from tests.user_states import user_states
from tidemark.wire import framing
from tidemark.wire.users import UserStatesResponse
from tidemark_operator.listener.channel import Channel, ChannelClosed

REQUEST = user_states(authorize=False)


class RecordingWire:
    """Far end that records the written frames; ``answer`` sends the response to one of them."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.frames: list[bytes] = []
        self.closed = False
        self._news = asyncio.Event()

    def write(self, frame: bytes) -> None:
        self.frames.append(frame)
        self._news.set()

    async def drain(self) -> None:
        return

    def close(self) -> None:
        self.closed = True

    def answer(self, index: int, broker_epoch: int) -> None:
        _, _, number = framing.peek_request(self.frames[index][4:])
        response = UserStatesResponse(error_code=0, broker_epoch=broker_epoch)
        self.reader.feed_data(framing.encode_response(response, number))

    async def written(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.frames) < count:
                self._news.clear()
                await self._news.wait()


async def test_an_answer_finds_its_request_and_the_encoding_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []
    encode = framing.encode_request

    def noted(*arguments: Any) -> bytes:
        threads.append(threading.current_thread())
        return encode(*arguments)

    monkeypatch.setattr(framing, "encode_request", noted)
    wire = RecordingWire()
    channel = Channel(1, 7, wire.reader, wire)  # type: ignore[arg-type]
    reading = asyncio.create_task(channel.run())
    small = asyncio.create_task(channel.call(REQUEST, UserStatesResponse, 5.0))
    # Two requests are in flight, and their responses arrive in the other order.
    await wire.written(1)
    large = asyncio.create_task(channel.call_large(REQUEST, UserStatesResponse, 5.0))
    await wire.written(2)
    wire.answer(1, broker_epoch=12)
    wire.answer(0, broker_epoch=11)
    assert (await small).broker_epoch == 11
    assert (await large).broker_epoch == 12
    # Encoding the large request in a thread keeps the event loop responsive.
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
    channel.close()
    with pytest.raises(ChannelClosed):
        await channel.call_large(REQUEST, UserStatesResponse, 5.0)
    wire.reader.feed_eof()
    await reading
