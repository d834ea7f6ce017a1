"""Kafka connection over a blocking socket, for threads and processes without an event loop.

The heartbeat thread and Spark's executors use it.
"""

import selectors
import socket
import time
from typing import Any, Protocol, Self, TypeVar

from tidemark.wire.control import FRAME_BYTES_MAX
from tidemark.wire.framing import FrameError, decode_response, encode_request
from tidemark.wire.receiver import Frame, FrameReceiver

R = TypeVar("R")
_SCRATCH_BYTES = 64 * 1024
_KICKS_MAX = 4096


class BlockingDialer(Protocol):
    """Factory of connections that also authenticates both ends."""

    def connect_blocking(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """Return a connected socket. Raises ``OSError``."""


class BlockingConnection:
    """Connection for one request at a time; any error makes it unusable."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        dialer: BlockingDialer | None = None,
    ) -> None:
        """Connect to a broker. Raises ``OSError``.

        ``timeout_s``: for the connection attempt. ``dialer`` None: without TLS.
        """
        self._client_id = client_id
        # Small answers are copied out of the scratch buffer, large ones get their own.
        self._receiver = FrameReceiver(frame_bytes_max, bytearray(_SCRATCH_BYTES))
        self._correlation_id = 0
        if dialer is None:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        else:
            self._socket = dialer.connect_blocking(host, port, timeout_s)
        # Requests are written at once, so waiting for more data only adds delay.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; pending answers are lost."""
        self._socket.close()

    def request(self, entity: Any, response_type: type[R], timeout_s: float) -> R:
        """Send the request and return its answer.

        Raises ``OSError`` (time-outs are ``TimeoutError``) or ``FrameError``.
        """
        deadline_s = time.monotonic() + timeout_s
        # The time limit covers request and answer together.
        self._correlation_id += 1
        self._socket.settimeout(timeout_s)
        self._socket.sendall(encode_request(entity, self._correlation_id, self._client_id))
        correlation_id, answer = decode_response(response_type, self._receive(deadline_s))
        if correlation_id != self._correlation_id:
            raise FrameError(f"an answer to request {correlation_id}, not {self._correlation_id}")
        return answer

    def wait(self, kicks: socket.socket, timeout_s: float) -> None:
        """Wait until the time is over or ``kicks`` has bytes, which are consumed.

        ``kicks``: socket by which another thread ends the wait. Raises ``OSError`` as soon as the
        peer has ended the connection, ``FrameError`` if it sends anything without a request.
        """
        with selectors.PollSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(kicks, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(timeout_s)]
        # No request is open, so a readable connection means its end, or a broken peer.
        if self._socket in ready:
            if not self._socket.recv(1):
                raise ConnectionResetError("the other side ended the connection")
            raise FrameError("an answer to no request")
        if kicks in ready:
            kicks.recv(_KICKS_MAX)

    def _receive(self, deadline_s: float) -> Frame:
        """Return the next frame. Raises TimeoutError at the deadline, OSError, FrameError."""
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no answer in time")
            self._socket.settimeout(left_s)
            count = self._socket.recv_into(self._receiver.get_buffer())
            if not count:
                raise ConnectionResetError("the other side ended the connection")
            frames = self._receiver.received(count)
            if len(frames) > 1:
                raise FrameError("an answer to no request")
            if frames:
                return frames[0]
