"""One Kafka connection over a blocking socket, for the thread that sends heartbeats."""

import selectors
import socket
import struct
import time
from typing import Any, Self, TypeVar

from tidemark.wire.framing import FrameError, decode_response, encode_request

R = TypeVar("R")
_FRAME_BYTES_MAX = 1024 * 1024
_KICKS_MAX = 4096


class BlockingConnection:
    """One request at a time; any error makes it unusable."""

    def __init__(self, host: str, port: int, *, client_id: str, timeout_s: float) -> None:
        self._client_id = client_id
        self._correlation_id = 0
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def request(self, entity: Any, response_type: type[R], timeout_s: float) -> R:
        """Ask and wait; raises ``OSError`` (time-outs are ``TimeoutError``) or ``FrameError``."""
        deadline_s = time.monotonic() + timeout_s
        self._correlation_id += 1
        self._socket.settimeout(timeout_s)
        self._socket.sendall(encode_request(entity, self._correlation_id, self._client_id))
        (length,) = struct.unpack(">i", self._receive(4, deadline_s))
        if not 4 <= length <= _FRAME_BYTES_MAX:
            raise FrameError(f"an answer of {length} bytes")
        correlation_id, answer = decode_response(response_type, self._receive(length, deadline_s))
        if correlation_id != self._correlation_id:
            raise FrameError(f"an answer to request {correlation_id}, not {self._correlation_id}")
        return answer

    def wait(self, kicks: socket.socket, timeout_s: float) -> None:
        """Until the time is over or there are kicks, which are taken; raises ``OSError`` as soon as
        the other side has ended the connection, ``FrameError`` if it speaks without being asked."""
        with selectors.PollSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(kicks, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(timeout_s)]
        if self._socket in ready:
            if not self._socket.recv(1):
                raise ConnectionResetError("the other side ended the connection")
            raise FrameError("an answer to no request")
        if kicks in ready:
            kicks.recv(_KICKS_MAX)

    def _receive(self, count: int, deadline_s: float) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no answer in time")
            self._socket.settimeout(left_s)
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("the other side ended the connection")
            parts += part
        return bytes(parts)
