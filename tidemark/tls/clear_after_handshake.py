"""Mutual authentication by TLS, after which the connection continues in clear.

For replication in a trusted network: the handshake is TLS's own, with the same certificates, and
TLS is closed in order (``close_notify`` both ways) before the first byte of Kafka's protocol. The
cost compared with encryption: an attacker who can change packets in transit can take over an
authenticated connection.

Records are read one by one, because the bytes behind the last one belong to the next protocol.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

_HEADER_BYTES = 5
#: TLS's own limit for a record (RFC 8446, 5.2).
_RECORD_BYTES_MAX = 2**14 + 256
#: Handshake and close take about a dozen records; a peer that sends more is refused.
_RECORDS_MAX = 64


async def authenticate_and_clear(
    connected: socket.socket, context: ssl.SSLContext, *, server_side: bool
) -> dict[str, Any]:
    """Handshake, then close TLS but not the (non-blocking) socket; the verified certificate of the
    other side. Raises ``OSError`` (``ssl.SSLError`` and a lost connection are); the caller limits
    the time."""
    exchange = _Exchange(connected, context, server_side=server_side)
    await exchange.run(exchange.tls.do_handshake)
    certificate = exchange.tls.getpeercert() or {}
    await exchange.run(exchange.tls.unwrap)
    return certificate


class _Exchange:
    """One connection while TLS is on it."""

    def __init__(
        self, connected: socket.socket, context: ssl.SSLContext, *, server_side: bool
    ) -> None:
        self._socket = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._records_left = _RECORDS_MAX
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)

    async def run(self, step: Callable[[], object]) -> None:
        """Repeat ``step`` until it is done, sending and receiving what it needs."""
        while True:
            try:
                step()
            except ssl.SSLWantReadError:
                await self._send()
                self._incoming.write(await self._record())
            except ssl.SSLError:
                await self._send()  # the alert that says why
                raise
            else:
                await self._send()
                return

    async def _send(self) -> None:
        data = self._outgoing.read()
        if data:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def _record(self) -> bytes:
        if not self._records_left:
            raise ConnectionAbortedError("the handshake does not end")
        self._records_left -= 1
        header = await self._exactly(_HEADER_BYTES)
        length = int.from_bytes(header[3:], "big")
        if length > _RECORD_BYTES_MAX:
            raise ConnectionAbortedError("it does not speak TLS")
        return header + await self._exactly(length)

    async def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = await asyncio.get_running_loop().sock_recv(self._socket, count - len(data))
            if not piece:
                raise ConnectionResetError("the other side ended the connection")
            data += piece
        return data
