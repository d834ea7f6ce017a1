"""Kafka connection between Tidemark's own processes: requests and answers in either direction.

Brokers use it for their control connections and their replica fetchers. An answer is matched to its
request by correlation id, so several requests may be in flight and be answered in any order. A
frame that arrives while no request is open is a request of the peer and waits for
:meth:`KafkaConnection.read_frame`: that is how the roles are reversed. The connection is an
``asyncio.BufferedProtocol``: a large answer is received into its own buffer, without a copy.
"""

import asyncio
import collections
import functools
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol, Self, TypeVar, cast

from tidemark.wire.control import FRAME_BYTES_MAX
from tidemark.wire.framing import FrameError, decode_response, encode_request
from tidemark.wire.receiver import Frame, FrameReceiver

logger = logging.getLogger(__name__)
R = TypeVar("R")
P = TypeVar("P", bound=asyncio.BaseProtocol)

#: Frames of the peer that may wait to be read before the socket is no longer read.
FRAMES_WAITING_MAX = 64
_SCRATCH_BYTES = 64 * 1024
_LINGER_S = 1.0


class ConnectionClosed(ConnectionError):
    """The connection has ended; the text names the side that ended it, and the cause."""


class ConnectionDialer(Protocol):
    """Factory of connections that also authenticates both ends."""

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        """Return a connected protocol. Raises ``OSError``. The caller limits the time."""


class KafkaConnection(asyncio.BufferedProtocol):
    """Connection that belongs to the loop it was created on; not thread-safe. See the module."""

    def __init__(self, *, client_id: str, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        """Create an unconnected protocol; :meth:`connect` or a listener connects it."""
        self.client_id = client_id
        #: Address of the peer, "?" before the connection is made.
        self.peer = "?"
        self._receiver = FrameReceiver(frame_bytes_max, bytearray(_SCRATCH_BYTES))
        self._transport: asyncio.Transport | None = None
        #: Own requests in flight: the future of each answer by correlation id.
        self._open: dict[int, asyncio.Future[Frame]] = {}
        self._correlation_id = 0
        #: Received requests of the peer, with an event that is set when there are any.
        self._frames: collections.deque[Frame] = collections.deque()
        self._arrived = asyncio.Event()
        #: Cleared while the transport's write buffer is full.
        self._writable = asyncio.Event()
        #: Done when the connection is lost.
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Cause of the end for error messages, "" before.
        self._reason = ""
        #: Error that ended the connection, None if it was ended in order.
        self.failure: Exception | None = None
        #: Whether either side has ended the connection.
        self.closed = False

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float = 10.0,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        dialer: ConnectionDialer | None = None,
    ) -> Self:
        """Connect to a peer; raises ``OSError`` or ``TimeoutError``.

        ``timeout_s`` includes the handshake of the ``dialer``, with which both ends prove their
        identities. Without a dialer the peer is a listener for clients, in clear.
        """
        made = functools.partial(cls, client_id=client_id, frame_bytes_max=frame_bytes_max)
        # The dialer authenticates both ends within the same time limit.
        async with asyncio.timeout(timeout_s):
            if dialer is not None:
                return await dialer.connect(made, host, port)
            _, connection = await asyncio.get_running_loop().create_connection(made, host, port)
        return connection

    # ------------------------------------------------------------ public calls

    async def request(self, entity: Any, response_type: type[R], timeout_s: float) -> R:
        """Send one request and await its answer.

        ``response_type``: class of the answer. ``timeout_s`` includes the time until the request
        can be written. Raises ``TimeoutError`` (the connection stays usable, a late answer is
        dropped), :class:`ConnectionClosed`, or ``FrameError`` for an answer that cannot be read.
        """
        # Correlation ids wrap within the positive numbers of int32.
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        correlation_id = self._correlation_id
        frame = encode_request(entity, correlation_id, self.client_id)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Frame] = loop.create_future()
        deadline_s = loop.time() + timeout_s
        if not self._writable.is_set():
            async with asyncio.timeout_at(deadline_s):
                await self.drain()
        # Registered before it is written, or a quick answer would find no request.
        self._open[correlation_id] = answer
        # A timer of the future costs less than asyncio.timeout, which counts for each fetch.
        timer = loop.call_at(deadline_s, _time_out, answer)
        try:
            self.write(frame)
            received = await answer
        finally:
            timer.cancel()
        return decode_response(response_type, received)[1]

    async def read_frame(self) -> Frame:
        """Return the next request of the peer, without its length; raises ConnectionClosed."""
        while not self._frames:
            if self.closed:
                raise ConnectionClosed(self._reason)
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._frames.popleft()
        # Resume reading at half of the limit, so that reading does not stop and start at every
        # frame.
        if len(self._frames) < FRAMES_WAITING_MAX // 2 and self._transport is not None:
            self._transport.resume_reading()
        return frame

    def write(self, frame: bytes) -> None:
        """Send a whole frame (length included) without waiting; raises ConnectionClosed."""
        if self.closed or self._transport is None:
            raise ConnectionClosed(self._reason or "not connected")
        self._transport.write(frame)

    async def drain(self) -> None:
        """Wait until the peer has accepted enough of what was written."""
        if self.closed:
            raise ConnectionClosed(self._reason)
        await self._writable.wait()

    async def close(self) -> None:
        """Send what is buffered (for at most a second), end the connection, and wait until it
        has ended.
        """
        self._end("closed by this side")
        # Not wait_for: before Python 3.12 it swallows a cancellation when both come at once.
        await asyncio.wait([self._lost], timeout=_LINGER_S)
        if not self._lost.done() and self._transport is not None:
            self._transport.abort()

    def abort(self) -> None:
        """End the connection at once: unsent data is lost."""
        self._end("given up by this side")
        # Python 3.11.2 of Debian raises AttributeError for a TLS connection that was lost.
        if self._transport is not None and not self._lost.done():
            self._transport.abort()

    # ------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._writable.set()
        self.peer = peer_name(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._receiver.received(nbytes):
                self._take(frame)
        except FrameError as error:
            logger.warning("connection to %s closed: %s", self.peer, error)
            self._end(str(error))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.failure = exc
        self._end(f"{self.peer} ended the connection" + (f": {exc}" if exc else ""))
        if not self._lost.done():
            self._lost.set_result(None)

    # ------------------------------------------------------------ inside

    def _take(self, frame: Frame) -> None:
        """Process a frame: an answer if requests are in flight, else a request of the peer."""
        if not self._open:
            self._frames.append(frame)
            self._arrived.set()
            # Stop reading from a peer that sends requests faster than they are answered.
            if len(self._frames) >= FRAMES_WAITING_MAX and self._transport is not None:
                self._transport.pause_reading()
            return
        correlation_id = int.from_bytes(frame[:4], "big")
        answer = self._open.pop(correlation_id, None)
        if answer is None:
            raise FrameError(f"an answer to request {correlation_id}, which was never sent")
        if not answer.done():
            answer.set_result(frame)

    def _end(self, reason: str) -> None:
        """Close the connection; waiting callers receive :class:`ConnectionClosed`."""
        if self.closed:
            return
        self.closed = True
        self._reason = reason
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(ConnectionClosed(reason))
                answer.exception()  # retrieved: the caller may have given up already
        self._open.clear()
        self._arrived.set()
        self._writable.set()
        if self._transport is not None:
            self._transport.close()


def _time_out(answer: "asyncio.Future[Frame]") -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return ``host:port`` of the peer, for log lines."""
    name = transport.get_extra_info("peername")
    raw = transport.get_extra_info("socket")
    if not name or (raw is not None and raw.family == socket.AF_UNIX):
        return "?"
    return f"{name[0]}:{name[1]}"
