"""Command connection after the roles were reversed: requests go out, answers come back.

Answers are matched by correlation id and may overtake one another. The broker applies
``PartitionStates`` in order, and the protocol needs no other order. A channel that fails once is
closed: the broker attaches again and gets a full snapshot.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from tidemark.wire import control, framing
from tidemark.wire.streams import read_frame

logger = logging.getLogger(__name__)

R = TypeVar("R")
CLIENT_ID = "tidemark-controller"
IN_FLIGHT_MAX = 256


class ChannelClosed(ConnectionError):
    """The command connection has ended; a request may or may not have been executed."""


class Channel:
    """Command connection of one broker.

    Belongs to the intake's loop, except ``call`` and ``call_large``, which any loop may await.
    """

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        last_command: int = 0,
    ) -> None:
        """Take over a connection on which the operator sends requests from now on.

        ``last_command`` is the highest API key of a command that the broker knows.
        """
        self.broker_id = broker_id
        self.last_command = last_command
        self.broker_epoch = broker_epoch
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        #: Correlation ids. `next` on a counter is atomic, and other event loops call it.
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}  # Requests without an answer yet.
        self.closed = False  # Whether the connection has ended.

    async def call(self, request: Any, response_type: type[R], timeout_s: float) -> R:
        """Send a request from another loop and return the response.

        Raises :class:`ChannelClosed`, or ``TimeoutError`` (the connection stays open).
        """
        number = next(self._numbers)
        return await self._call(
            number,
            lambda: framing.encode_request(request, number, CLIENT_ID),
            response_type,
            timeout_s,
        )

    async def call_large(self, request: Any, response_type: type[R], timeout_s: float) -> R:
        """Send a request that takes long to encode; a thread encodes it, so that no heartbeat
        waits.
        """
        number = next(self._numbers)
        frame = await asyncio.to_thread(framing.encode_request, request, number, CLIENT_ID)
        return await self._call(number, lambda: frame, response_type, timeout_s)

    async def _call(
        self, number: int, encoded: Callable[[], bytes], response_type: type[R], timeout_s: float
    ) -> R:
        """Send a request from any event loop, and return the decoded response."""
        future = asyncio.run_coroutine_threadsafe(
            self._exchange(number, encoded, timeout_s), self._loop
        )
        frame = await asyncio.wrap_future(future)
        try:
            return framing.decode_response(response_type, frame)[1]
        except framing.FrameError as error:
            self.close_threadsafe()
            raise ChannelClosed(f"invalid response of broker {self.broker_id}: {error}") from error

    def close_threadsafe(self) -> None:
        """End the connection from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    # ------------------------------------------------------------ the intake's loop

    async def _exchange(self, number: int, encoded: Callable[[], bytes], timeout_s: float) -> bytes:
        """Send one request frame and wait for its response. Returns the response's bytes.

        ``number`` is the correlation id; ``encoded`` builds the frame. Raises ``TimeoutError``,
        after which the connection stays open, and :class:`ChannelClosed`.
        """
        # The bound keeps a broker that never answers from filling the memory.
        if self.closed or len(self._waiting) >= IN_FLIGHT_MAX:
            raise ChannelClosed(f"the command connection of broker {self.broker_id} is closed")
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(encoded())
                await self._writer.drain()
                return await answer
        except (ConnectionError, OSError) as error:
            # TimeoutError is an OSError, but the connection is still good.
            if not isinstance(error, TimeoutError):
                self.close()
            raise
        finally:
            self._waiting.pop(number, None)

    async def run(self) -> None:
        """Read responses until the connection ends."""
        try:
            while (frame := await self._next()) is not None:
                number = int.from_bytes(frame[:4], "big", signed=True)
                answer = self._waiting.get(number)
                # The caller of a late response has given up.
                if answer is not None and not answer.done():
                    answer.set_result(frame)
        finally:
            self.close()

    async def _next(self) -> bytes | None:
        try:
            return await read_frame(self._reader, control.FRAME_BYTES_MAX)
        except (framing.FrameError, ConnectionError, OSError) as error:
            logger.info("command connection of broker %d: %s", self.broker_id, error)
            return None

    def close(self) -> None:
        """End the connection; every pending call fails with :class:`ChannelClosed`."""
        if self.closed:
            return
        self.closed = True
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChannelClosed(f"broker {self.broker_id} disconnected"))
